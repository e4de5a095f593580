"""What tasks have prepared whose output did not count is rolled back before it is in the way."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import locking_sink
import pytest
from job_support import COUNTED, Count, Jobs, counted
from locking_sink import LockingSink
from pyspark import cloudpickle

from turnback.core.errors import EpochConflictError
from turnback.spark import epochs


@pytest.fixture(autouse=True)
def _by_value() -> Any:
    cloudpickle.register_pickle_by_value(locking_sink)
    yield
    cloudpickle.unregister_pickle_by_value(locking_sink)


def test_a_replayed_epoch_does_not_wait_for_locks_of_its_first_run(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, calls = LockingSink(jobs.directory / "db"), []
    real = epochs.run_epoch

    def conflicting(*arguments: Any) -> Any:
        calls.append(sink.prepared())
        acks = real(*arguments)
        if len(calls) == 2:
            raise EpochConflictError("two attempts of a task were read")
        return acks

    monkeypatch.setattr(epochs, "run_epoch", conflicting)
    jobs.feed("events", {"k": "a"}, {"k": "b"})
    jobs.feed("events", {"k": "c"}, {"k": "c"})
    # No checkpoint before the end: what the first epoch has prepared waits all the while.
    env = jobs.env(interval=600_000)
    stream = jobs.files(env, "events", "k string")
    stream.key_by("k").process(Count(), COUNTED).uid("count").sink_to(sink).uid("db")
    env.execute("job", bounded=True)
    assert len(calls) == 3
    assert len(calls[1]) > 0
    assert calls[2] == calls[1]
    assert sink.visible() == counted("abcc")
    assert sink.prepared() == []


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from pyspark import cloudpickle
import job_support, locking_sink
from turnback.spark.session import spark_session
for module in (job_support, locking_sink):
    cloudpickle.register_pickle_by_value(module)
here = Path(sys.argv[1])
spark = spark_session("local[2,3]", spark__sql__shuffle__partitions="2")
jobs = job_support.Jobs(spark, here)
sink = locking_sink.LockingSink(here / "db", patience_s=0, killed=here / "kill")
env = jobs.env(interval=600_000)
stream = jobs.files(env, "events", "k string")
counts = stream.key_by("k").process(job_support.Count(), job_support.COUNTED).uid("count")
counts.sink_to(sink).uid("db")
env.execute("job")
"""


def test_what_a_task_prepared_before_its_worker_died_goes_while_the_job_runs(
    jobs: Jobs, tmp_path: Path
) -> None:
    sink = LockingSink(tmp_path / "db")
    (tmp_path / "kill").touch()
    jobs.feed("events", {"k": "a"})
    log = tmp_path / "log"
    with log.open("wb") as out:
        driver = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(Path(__file__).parent)],
            stdout=out,
            stderr=out,
        )
    try:
        deadline = time.monotonic() + 120
        epoch = None
        while epoch != 1:
            assert driver.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
            epoch = _epoch(tmp_path / "jobs" / "job" / "status.json")
        # The epoch waits for its checkpoint, in the second try of its task; the first is gone.
        assert not (tmp_path / "kill").exists()
        (left,) = sink.prepared()
        assert left.startswith("1-1-")
        assert json.loads((tmp_path / "db" / "prepared" / left).read_text()) == [["a", 1]]
    finally:
        driver.kill()
        driver.wait()


def _epoch(status: Path) -> int | None:
    if not status.exists():
        return None
    text = status.read_text()
    return json.loads(text[text.index("{") :]).get("epoch")
