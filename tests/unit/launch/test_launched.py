"""What wins: the command line over the program, and going on over beginning again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnback import ClaimMode, RestartStrategies
from turnback.api.environment import Launched, collecting_name
from turnback.config.checkpointing import CheckpointSettings
from turnback.driver.job import JobSpec
from turnback.errors import ConfigurationError
from turnback.job.run import Launch, RunDirectory, StartOptions

SPEC = JobSpec("job", "root", CheckpointSettings(), RestartStrategies.no_restart(), "hashmap")


def starting(spec: JobSpec = SPEC, **options: Any) -> JobSpec:
    """A job whose program says how it starts."""
    return replace(spec, start=StartOptions(**options))


def launched(tmp_path: Path, **said: Any) -> Launched:
    return Launched(Launch(script="job.py", **said), RunDirectory(tmp_path))


def test_what_the_command_line_does_not_say_stays(tmp_path: Path) -> None:
    spec = starting(start_from="chk-7", renames={"a": "b"}, claim_mode=ClaimMode.CLAIM)
    one = launched(tmp_path, arguments=("-v",))
    found = one.override(spec)
    assert found == replace(spec, run=one.run, script=("job.py", "-v"), started=found.started)


def test_what_the_command_line_says_wins(tmp_path: Path) -> None:
    one = launched(
        tmp_path,
        name="other",
        start_from="/sp",
        allow_non_restored_state=("x",),
        renames={"a": "c"},
        fork=True,
        allow_pickled_state=True,
        take_over_sinks=True,
        claim_mode=ClaimMode.CLAIM,
    )
    spec = one.override(starting(fresh=True, renames={"a": "b", "d": "e"}))
    assert spec == replace(
        SPEC,
        name="other",
        start=StartOptions(
            start_from="/sp",
            allow_non_restored_state=("x",),
            renames={"a": "c", "d": "e"},
            fork=True,
            allow_pickled_state=True,
            take_over_sinks=True,
            claim_mode=ClaimMode.CLAIM,
        ),
        run=one.run,
        script=("job.py",),
        started=spec.started,
    )


def test_fresh_wins_over_a_snapshot_in_the_code(tmp_path: Path) -> None:
    found = launched(tmp_path, fresh=True).override(starting(start_from="chk-7"))
    assert (found.start.start_from, found.start.fresh) == (None, True)


@pytest.mark.parametrize("said", [{"start_from": "/sp"}, {"fresh": True}, {}])
@pytest.mark.parametrize("coded", [{"start_from": "chk-7"}, {"fresh": True}, {}])
def test_a_driver_that_is_started_again_goes_on(
    tmp_path: Path, said: dict[str, Any], coded: dict[str, Any]
) -> None:
    again = launched(tmp_path, **said)
    again.run.set_running(1)
    found = again.override(starting(**coded))
    assert (found.start.start_from, found.start.fresh) == (None, False)
    assert found.resumed


@pytest.mark.parametrize("said", [True, False])
def test_what_was_taken_over_is_not_taken_back_by_a_restart(tmp_path: Path, said: bool) -> None:
    """Two jobs whose supervisors both took over would take from each other for ever."""
    spec = starting(take_over_sinks=not said)
    one = launched(tmp_path, take_over_sinks=said)
    assert one.override(spec).start.take_over_sinks
    assert not one.override(spec).start.take_over_sinks
    again = launched(tmp_path, take_over_sinks=said)
    again.run.set_running(1)
    assert not again.override(spec).start.take_over_sinks


def test_a_program_that_runs_its_job_again_goes_on_with_it(tmp_path: Path) -> None:
    one = launched(tmp_path, name="other", start_from="/sp")
    assert one.override(SPEC).start.start_from == "/sp"
    again = one.override(SPEC)
    assert (again.name, again.start.start_from) == ("other", None)


def test_a_program_with_two_jobs_is_refused(tmp_path: Path) -> None:
    one = launched(tmp_path)
    one.override(SPEC)
    with pytest.raises(ConfigurationError, match="'job' and 'second'"):
        one.override(replace(SPEC, name="second"))


@pytest.mark.parametrize("said", [{"start_from": "/sp"}, {"fresh": True}, {}])
def test_what_only_hands_out_its_elements_never_goes_on(
    tmp_path: Path, said: dict[str, Any]
) -> None:
    spec = replace(starting(fresh=True), collects=True)
    first = launched(tmp_path, **said).override(spec)
    again = launched(tmp_path, **said)
    again.run.set_running(1)
    found = again.override(spec)
    assert (found.start.start_from, found.start.fresh) == (
        first.start.start_from,
        first.start.fresh,
    )
    assert found.start.fresh or found.start.start_from == "/sp"


def test_several_that_only_hand_out_their_elements(tmp_path: Path) -> None:
    one = launched(tmp_path, name="other")
    names = [collecting_name(one, str(tmp_path)) for _ in range(2)]
    specs = [
        one.override(replace(starting(fresh=True), name=name, collects=True)) for name in names
    ]
    assert [spec.name for spec in specs] == ["other", "other-2"]
    assert all(spec.start.fresh for spec in specs)
    with pytest.raises(ConfigurationError, match="'other-2' and 'job'"):
        one.override(SPEC)


def test_checkpoints_in_memory_are_refused_in_the_background(tmp_path: Path) -> None:
    spec = replace(SPEC, root="memory://jobs/root")
    assert launched(tmp_path).override(spec).root == spec.root
    with pytest.raises(ConfigurationError, match="to hashmap or rocksdb, or run"):
        launched(tmp_path, detached=True).override(spec)
