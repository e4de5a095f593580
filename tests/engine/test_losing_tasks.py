"""What tasks have prepared whose output did not count is rolled back before it is in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from locking_sink import LockingSink
from turnback.errors import EpochConflictError
from turnback.spark.engine import SparkEpochInput
from turnback.testing.engine import LocalEpochInput


def test_a_replayed_epoch_does_not_wait_for_locks_of_its_first_run(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, calls = LockingSink(jobs.directory / "db"), []
    raw = LockingSink(jobs.directory / "raw")  # before the shuffle, which must not be used again

    def conflicting(run: Callable[..., Any]) -> Callable[..., Any]:
        def conflict(*arguments: Any) -> Any:
            calls.append(sink.prepared())
            barriers = run(*arguments)
            if len(calls) == 2:
                raise EpochConflictError("two attempts of a task were read")
            return barriers

        return conflict

    for kind in (LocalEpochInput, SparkEpochInput):
        monkeypatch.setattr(kind, "run", conflicting(kind.run))
    jobs.feed("events", {"k": "a"}, {"k": "b"})
    jobs.feed("events", {"k": "c"}, {"k": "c"})
    # No checkpoint before the end: what the first epoch has prepared waits all the while.
    env = jobs.env(interval=600_000)
    stream = jobs.files(env, "events", "k string")
    stream.sink_to(raw).uid("raw")
    stream.key_by("k").process(Count(), COUNTED).uid("count").sink_to(sink).uid("db")
    env.execute("job", bounded=True)
    assert len(calls) == 3
    assert len(calls[1]) > 0
    assert calls[2] == calls[1]
    assert sink.visible() == counted("abcc")
    assert raw.visible() == [("a",), ("b",), ("c",), ("c",)]
    assert sink.prepared() == raw.prepared() == []
