"""What tasks have prepared whose output did not count is rolled back before it is in the way."""

from __future__ import annotations

from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from locking_sink import LockingSink
from turnback.core.errors import EpochConflictError
from turnback.testing.engine import LocalEpochInput


def test_a_replayed_epoch_does_not_wait_for_locks_of_its_first_run(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, calls = LockingSink(jobs.directory / "db"), []
    real = LocalEpochInput.run

    def conflicting(*arguments: Any) -> Any:
        calls.append(sink.prepared())
        barriers = real(*arguments)
        if len(calls) == 2:
            raise EpochConflictError("two attempts of a task were read")
        return barriers

    monkeypatch.setattr(LocalEpochInput, "run", conflicting)
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
