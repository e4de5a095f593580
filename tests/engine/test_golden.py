"""Savepoints that older versions have written can be restored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import golden_job
from job_support import Jobs
from verification import verify_savepoint

GOLDEN = sorted((Path(__file__).parents[1] / "integration" / "golden").iterdir())


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
