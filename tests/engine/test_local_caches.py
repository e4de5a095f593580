"""What jobs keep on the machines they run on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted, eventually
from turnback import CollectSink, StreamExecutionEnvironment
from turnback.checkpoint.manifest import Fence
from turnback.errors import JobFailedError
from turnback.worker.local_state import StoreOwner, all_stores


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return tmp_path / "local"


def owners(local: Path) -> list[StoreOwner | None]:
    return [each.owner() for each in all_stores([str(local)]) if each.path.is_relative_to(local)]


def counting(
    jobs: Jobs, local: Path, source: str, function: Any = None
) -> tuple[StreamExecutionEnvironment, CollectSink]:
    env = jobs.env(parallelism=1, **{"state.backend.local-dir": str(local)})
    events = jobs.files(env, source, "k string", "events")
    sink = CollectSink()
    events.key_by("k").process(function or Count(), COUNTED).uid("count").sink_to(sink).uid("out")
    return env, sink


def collected(sink: CollectSink) -> list[tuple[str, int]]:
    return sorted((tuple(row) for row in sink.results), key=repr)


def test_a_copy_of_a_running_job_on_its_machine_disturbs_neither(jobs: Jobs, local: Path) -> None:
    """It has the job's id and goes on with its numbers, and its end removes what it has used."""
    jobs.feed("events", {"k": "a"})
    env, sink = counting(jobs, local, "events")
    client = jobs.start(env)
    eventually(lambda: len(jobs.checkpoints()) > 0)
    (own,) = owners(local)
    # With its status, the copy would be taken for a job that runs.
    ignored = shutil.ignore_patterns("status.json", ".turnback-tmp*")
    shutil.copytree(jobs.root, jobs.directory / "copied" / "jobs", ignore=ignored)
    copies = Jobs(jobs.directory / "copied", jobs._spark)
    for _ in range(3):
        copies.feed("others", {"k": "a"}, {"k": "a"})
    copied, other_sink = counting(copies, local, "others")
    copied.execute("job", bounded=True)
    assert collected(other_sink)[-1] == ("a", 7)
    assert owners(local) == [own]
    jobs.feed("events", {"k": "a"})
    eventually(lambda: len(sink.results) == 2)
    assert collected(sink) == counted("aa")
    client.cancel()
    client.result(60)
    assert owners(local) == []


class Breaks(Count):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.k == "bad":
            raise ValueError("bad")
        yield from super().process_element(value, ctx)


def test_a_fresh_start_removes_what_the_job_has_left_under_its_older_id(
    jobs: Jobs, local: Path
) -> None:
    jobs.feed("events", {"k": "a"})
    jobs.feed("events", {"k": "bad"})
    env, _ = counting(jobs, local, "events", Breaks())
    with pytest.raises(JobFailedError):
        env.execute("job", bounded=True)
    (left,) = owners(local)
    assert left is not None
    assert left.job == "job"
    env, _ = counting(jobs, local, "other")
    env.execute("job", bounded=True, fresh=True)
    assert owners(local) == []


def test_state_files_name_the_attempt_of_the_driver_that_wrote_them(
    jobs: Jobs, local: Path
) -> None:
    for _ in range(2):
        jobs.feed("events", {"k": "a"})
        env, _ = counting(jobs, local, "events")
        env.execute("job", bounded=True)
    slots = map(jobs.log().get, jobs.log().numbers())
    lines = {slot.line for slot in slots if isinstance(slot, Fence)}
    last = jobs.checkpoints()[-1]
    found = {line for file in last.state for line, _ in file.lineage}
    assert found <= lines
    assert len(found) == 2
