"""All that goes by time survives every change of parallelism, from checkpoints and savepoints."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import timed_job
from timed_job import elements
from turnback.snapshot.find import load_savepoint
from turnback.testing import JobHarness
from turnback.views.browse import page

EVERY_CHANGE = (1, 2, 1, 3, 1, 8, 2, 3, 2, 8, 3, 8, 1)
STEP = 7
PROGRAMS = timed_job.PROGRAMS


def outputs(job: JobHarness, name: str) -> dict[str, list[Any]]:
    return {uid: sorted(map(tuple, job.output(f"{uid}-out"))) for uid in PROGRAMS[name][1]}


def unbroken(directory: Path, name: str, numbers: range) -> dict[str, list[Any]]:
    with JobHarness(PROGRAMS[name][0], directory) as job:
        job.push("s", *elements(numbers))
        return outputs(job, name)


def test_the_way_has_every_change() -> None:
    sizes = set(EVERY_CHANGE)
    assert sizes == {1, 2, 3, 8}
    assert set(pairwise(EVERY_CHANGE)) == {(a, b) for a in sizes for b in sizes if a != b}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_output_is_that_of_a_run_that_never_changed(tmp_path: Path, name: str) -> None:
    job = JobHarness(PROGRAMS[name][0], tmp_path / "job", parallelism=EVERY_CHANGE[0])
    with job:
        for number, parallelism in enumerate(EVERY_CHANGE):
            if number:
                savepoint = job.savepoint() if number // 2 % 2 else None
                job.stop()
                backend = "rocksdb" if number % 2 else "hashmap"
                job.start(parallelism=parallelism, state_backend=backend, start_from=savepoint)
            job.push("s", *elements(range(number * STEP, (number + 1) * STEP)))
        found = outputs(job, name)
    expected = unbroken(tmp_path / "unbroken", name, range(len(EVERY_CHANGE) * STEP))
    assert all(expected.values())
    assert found == expected


def test_every_table_of_a_savepoint_has_plain_columns(tmp_path: Path) -> None:
    target = tmp_path / "sp"
    timed_job.main("timed", target)
    found = {}
    for parent in sorted((target / "state").iterdir()):
        for state in sorted(parent.iterdir()):
            names = pq.read_table(state).schema.names
            assert names[:2] == ["key_group", "key"]
            found[f"{parent.name}/{state.name}"] = " ".join(names[2:])
    assert found["timers/timers.event"] == "time value"
    assert found["timers/timers.processing"] == "time value"
    assert found["tumbling/windows"] == "start end value"
    assert found["tumbling/window.elements"] == "start end number value"
    assert found["tumbling/window.state"] == "start end name value"
    assert found["tumbling/window.alarms"] == "time domain start end value"
    assert found["sessions/windows"] == "start end value"
    assert found["every-third/window.triggers"] == "start end name value"
    assert found["forgetful/map"] == "map_key value updated_at"
    snapshot = load_savepoint(str(target), {})
    shown = page(snapshot, "tumbling", "windows")
    assert shown.columns == ("key", "start", "end", "value")
    assert all(row[2] - row[1] == 10 for row in shown.rows)
    timers = page(snapshot, "timers", "timers.processing", key="k/1")
    assert timers.rows == (("k/1", timed_job.YEAR_2100_MS, True),)
