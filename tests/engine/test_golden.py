"""Savepoints that older versions have written can be restored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import golden_job
import timed_job
from job_support import Jobs
from turnback.testing import JobHarness
from verification import verify_savepoint

ALL = sorted((Path(__file__).parents[1] / "integration" / "golden").iterdir())
GOLDEN = [path for path in ALL if path.name.startswith("savepoint")]
TIMED = [path for path in ALL if path.name.startswith("timed")]


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
    rest = timed_job.elements(range(40, 80))
    with JobHarness(timed_job.build, tmp_path / "restored") as job:
        timed_job.push_first(job)
        job.stop()
        before = {uid: len(job.output(f"{uid}-out")) for uid in timed_job.OUTPUTS}
        job.start(start_from=mine, parallelism=3)
        job.push("s", *rest)
        restored = {uid: job.output(f"{uid}-out")[n:] for uid, n in before.items()}
    with JobHarness(timed_job.build, tmp_path / "whole") as job:
        timed_job.push_first(job)
        job.push("s", *rest)
        whole = {uid: job.output(f"{uid}-out")[n:] for uid, n in before.items()}
    assert all(whole.values())
    for uid, expected in whole.items():
        assert sorted(map(tuple, restored[uid])) == sorted(map(tuple, expected)), uid
