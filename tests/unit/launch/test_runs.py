from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from launch_support import Launches
from msgspec.structs import replace

from turnback.errors import ConfigurationError, JobInUseError
from turnback.job.run import (
    LAUNCH,
    LAUNCH_VARIABLE,
    Launch,
    ProcessId,
    RunEnd,
    RunError,
    RunningJob,
    current_run,
)
from turnback.launch.runs import Runs

GONE = ProcessId(ProcessId.current().host, ProcessId.current().machine, 1, "never")


def test_a_launch_is_read_back_by_the_program_it_starts(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launches.prepare("finishes")
    monkeypatch.setenv(LAUNCH_VARIABLE, str(run.path / LAUNCH))
    assert current_run().launch().arguments == (str(launches.root), "finishes")


def test_a_program_that_was_started_by_other_means_has_no_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(LAUNCH_VARIABLE, raising=False)
    assert current_run() is None


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"script": 7}', b"[]"])
def test_a_launch_that_is_gone_or_damaged_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / LAUNCH).write_bytes(content)
    monkeypatch.setenv(LAUNCH_VARIABLE, str(tmp_path / LAUNCH))
    with pytest.raises(ConfigurationError, match=r"launch\.json"):
        current_run().launch()


def test_nobody_else_can_read_what_a_driver_prints(launches: Launches) -> None:
    run = launches.prepare("finishes")
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def test_a_directory_that_cannot_be_made_says_what_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"run\.dir"):
        Runs(tmp_path / "file").create(Launch(script="job.py"))


def test_only_launches_that_are_over_are_removed(launches: Launches, tmp_path: Path) -> None:
    over, alive = launches.prepare("a"), launches.prepare("b")
    over.set_supervisor(GONE)
    alive.set_driver(ProcessId.current())
    (launches.runs.root / "something else").mkdir()
    (launches.runs.root / "link").symlink_to(alive.path)
    assert launches.runs.finished(str(launches.root)) == ([over.path], [])
    for path in (alive.path, tmp_path, launches.runs.root / "link"):
        with pytest.raises(ConfigurationError, match="has ended"):
            launches.runs.remove(path)
    launches.runs.remove(over.path)
    assert not over.path.exists()
    alive.set_driver(GONE)


def test_no_launches_yet(tmp_path: Path) -> None:
    assert Runs(tmp_path / "none").finished(str(tmp_path)) == ([], [])


def test_a_launch_that_is_just_being_started_is_not_over(launches: Launches) -> None:
    run = launches.prepare("a")
    assert launches.runs.finished(str(launches.root)).paths == []
    run.set_launcher(GONE)  # it died before it had started a supervisor
    assert launches.runs.finished(str(launches.root)).paths == [run.path]


@pytest.mark.parametrize("kind", ["another host", "another container"])
def test_what_runs_where_it_cannot_be_seen_is_over_when_it_says_so(
    launches: Launches, kind: str
) -> None:
    """Machines and containers may share a home directory."""
    here = ProcessId.current()
    assert here.machine is not None
    there = {
        "another host": ProcessId("elsewhere", "boot pid:[1]", 1, "1"),
        "another container": replace(GONE, machine=f"{here.machine.split()[0]} pid:[1]"),
    }[kind]
    run = launches.prepare("a")
    run.set_supervisor(there)
    assert launches.runs.finished(str(launches.root)).paths == []
    run.set_end(RunEnd(0, "it has ended"))
    assert launches.runs.finished(str(launches.root)).paths == [run.path]


def test_after_a_reboot_nothing_of_before_runs(launches: Launches) -> None:
    run = launches.prepare("a")
    run.set_supervisor(replace(GONE, machine="another-boot pid:[1]"))
    assert launches.runs.finished(str(launches.root)).paths == [run.path]


def ended(launches: Launches, directory: str | None = None, **launch: Any) -> Path:
    """A launch that is over, of a job in this directory or of none."""
    run = launches.runs.create(Launch(script="job.py", **launch))
    run.set_supervisor(GONE)
    if directory is not None:
        run.set_job(RunningJob(name="job", job_id="id", root="jobs", directory=directory))
    return run.path


def test_launches_of_jobs_in_another_root_are_not_touched(
    launches: Launches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a b")
    here = f"file://{tmp_path}/a%20b"
    mine = ended(launches, f"{here}/job")
    through_a_link = ended(launches, f"file://{tmp_path}/link/job", root="/elsewhere")
    ended(launches, f"file://{tmp_path}/b/job", root=str(tmp_path / "a b"))
    ended(launches, f"{here}/deeper/job")
    ended(launches, "s3://bucket/jobs/job")
    monkeypatch.chdir(tmp_path)
    for root in (str(tmp_path / "a b"), f"{tmp_path}/a b/", here, "a b", "./b/../a b", "link"):
        assert set(launches.runs.finished(root).paths) == {mine, through_a_link}, root
    assert len(launches.runs.finished("s3a://bucket/jobs/").paths) == 1
    assert launches.runs.finished(str(tmp_path)) == ([], [])


def test_a_launch_that_never_came_to_a_job_belongs_to_the_root_it_was_started_with(
    launches: Launches, tmp_path: Path
) -> None:
    mine = ended(launches, root=str(tmp_path / "a"))
    ended(launches, root=str(tmp_path / "b"))
    relative = {"state.checkpoints.dir": "a"}
    older = ended(launches, directory=None, settings=relative)
    settings = ended(launches, settings={"state.checkpoints.dir": str(tmp_path / "a")})
    unknown = ended(launches)
    damaged = ended(launches, root=str(tmp_path / "a"))
    (damaged / LAUNCH).write_text("{")
    found = launches.runs.finished(str(tmp_path / "a"))
    assert set(found.paths) == {mine, settings}
    assert set(found.unclear) == {unknown, damaged}
    assert older not in found.paths  # it was started in another directory


def test_errors_come_back_as_what_they_were() -> None:
    error = RunError("JobInUseError", "it runs").rebuilt()
    assert type(error) is JobInUseError
    assert str(error) == "it runs"
    for kind in ("ValueError", "annotations", "", "Exception"):
        assert RunError(kind, "x").rebuilt() is None
