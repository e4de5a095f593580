"""Savepoints that older versions have written can be restored."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import golden_job
import subtasks_job
import timed_job
from job_support import Jobs
from turnback.job.directory import JobDirectory
from turnback.testing import JobHarness
from turnback.testing.streams import newest_state
from verification import verify_savepoint

ALL = sorted((Path(__file__).parents[1] / "integration" / "golden").iterdir())
GOLDEN = [path for path in ALL if path.name.startswith("savepoint")]
SUBTASKS = [path for path in ALL if path.name.startswith("subtasks")]
TIMED = [path for path in ALL if path.name.startswith(("joins", "panes", "timed", "windows"))]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.name)
def test_it_goes_on_as_if_it_had_never_stopped(jobs: Jobs, path: Path, tmp_path: Path) -> None:
    assert verify_savepoint(path) == []
    mine = tmp_path / "savepoint"
    shutil.copytree(path, mine)
    events = tmp_path / "events"
    golden_job.write(events, range(40, 80))
    env = jobs.env()
    golden_job.build(env, events, jobs.directory / "restored")
    env.execute("golden", bounded=True, start_from=mine)

    golden_job.write(events, range(40))
    (events / "40.json").unlink()
    env = jobs.env()
    golden_job.build(env, events, jobs.directory / "whole")
    env.execute("whole", bounded=True)
    first = jobs.out("whole")
    golden_job.write(events, range(40, 80))
    env = jobs.env()
    golden_job.build(env, events, jobs.directory / "whole")
    env.execute("whole", bounded=True)
    rest = list(jobs.out("whole"))
    for row in first:
        rest.remove(row)
    assert len(rest) == 40
    assert jobs.out("restored") == rest


@pytest.mark.parametrize("path", TIMED, ids=lambda p: p.name)
def test_what_goes_by_time_goes_on_as_if_it_had_never_stopped(path: Path, tmp_path: Path) -> None:
    assert verify_savepoint(path) == []
    mine = tmp_path / "savepoint"
    shutil.copytree(path, mine)
    program, uids = timed_job.PROGRAMS[path.name.partition("-")[0]]
    rest = timed_job.elements(range(40, 80))
    with JobHarness(program, tmp_path / "restored") as job:
        timed_job.push_first(job)
        job.stop()
        before = {uid: len(job.output(f"{uid}-out")) for uid in uids}
        job.start(start_from=mine, parallelism=3)
        job.push("s", *rest)
        restored = {uid: job.output(f"{uid}-out")[n:] for uid, n in before.items()}
    with JobHarness(program, tmp_path / "whole") as job:
        timed_job.push_first(job)
        job.push("s", *rest)
        whole = {uid: job.output(f"{uid}-out")[n:] for uid, n in before.items()}
    assert all(whole.values())
    for uid, expected in whole.items():
        assert sorted(map(tuple, restored[uid])) == sorted(map(tuple, expected)), uid


@pytest.mark.parametrize("parallelism", [1, 3, 8])
@pytest.mark.parametrize("path", SUBTASKS, ids=lambda p: p.name)
def test_state_of_subtasks(jobs: Jobs, path: Path, tmp_path: Path, parallelism: int) -> None:
    assert verify_savepoint(path) == []
    mine = tmp_path / "savepoint"
    shutil.copytree(path, mine)
    subtasks_job.write(tmp_path / "events", [3, 100])
    env = jobs.env(parallelism=parallelism)
    subtasks_job.build(env, tmp_path / "events")
    env.execute("subtasks", bounded=True, start_from=mine)

    def state(uid: str, name: str) -> dict[Any, Any]:
        return newest_state(JobDirectory.locate(str(jobs.root), "subtasks"), uid, name)

    def elements(name: str) -> list[Any]:
        return [element for part in state("keep", name).values() for element in part]

    numbers = [*range(7), 3, 100]
    assert sorted(map(tuple, elements("split"))) == sorted((n, str(n)) for n in numbers)
    assert sorted(elements("raw")) == sorted(bytes([n, 255]) for n in numbers)
    assert sorted(elements("together")) == sorted([*range(7)] * parallelism + [3, 100])
    assert state("keep", "shared") == {0: {"made": 7}}
    assert state("name", "names") == {0: {n: f"name {n}" for n in numbers}}
    assert state("name", "count") == dict.fromkeys(numbers, 1) | {3: 2}
