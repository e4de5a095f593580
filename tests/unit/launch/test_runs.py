from __future__ import annotations

import stat
from pathlib import Path

import pytest
from launch_support import Launches

from turnback.config.launch import LAUNCH, LAUNCH_VARIABLE, Launch, current_launch
from turnback.coordinator import ProcessId, RunError
from turnback.core.errors import ConfigurationError, JobInUseError
from turnback.launch.runs import Runs


def test_a_launch_is_read_back_by_the_program_it_starts(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launches.prepare("finishes")
    monkeypatch.setenv(LAUNCH_VARIABLE, str(run.path / LAUNCH))
    found = current_launch()
    assert found is not None
    assert found.arguments == (str(launches.root), "finishes")


def test_a_program_that_was_started_by_other_means_has_no_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    assert current_launch() is None


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"script": 7}', b"[]"])
def test_a_launch_that_is_gone_or_damaged_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / LAUNCH).write_bytes(content)
    monkeypatch.setenv(LAUNCH_VARIABLE, str(tmp_path / LAUNCH))
    with pytest.raises(ConfigurationError, match=r"launch\.json"):
        current_launch()


def test_nobody_else_can_read_what_a_driver_prints(launches: Launches) -> None:
    run = launches.prepare("finishes")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"run\.dir"):
        Runs(tmp_path / "file").create(Launch(script="job.py"))


def test_only_launches_that_are_over_are_removed(launches: Launches, tmp_path: Path) -> None:
    over, alive = launches.prepare("a"), launches.prepare("b")
    alive.set_driver(ProcessId.current())
    (launches.runs.root / "something else").mkdir()
    (launches.runs.root / "link").symlink_to(alive.path)
    assert launches.runs.over() == [over.path]
    for path in (alive.path, tmp_path, launches.runs.root / "link"):
        with pytest.raises(ConfigurationError, match="over"):
            launches.runs.remove(path)
    launches.runs.remove(over.path)
    assert not over.path.exists()
    alive.set_driver(ProcessId("here", None, 1, None))


def test_no_launches_yet(tmp_path: Path) -> None:
    assert Runs(tmp_path / "none").over() == []


def test_errors_come_back_as_what_they_were() -> None:
    error = RunError("JobInUseError", "it runs").rebuilt()
    assert type(error) is JobInUseError
    assert str(error) == "it runs"
    for kind in ("ValueError", "annotations", "", "Exception"):
        assert RunError(kind, "x").rebuilt() is None
