from contextlib import suppress
from itertools import count

import msgspec
import pytest

from coordinator_fakes import HookedStorage, memory
from manual_clock import ManualClock
from turnback.job.history import (
    AttemptStarted,
    CheckpointFailed,
    CheckpointStats,
    History,
    JobEnded,
    Restarting,
    newest_checkpoint,
    read_history,
    recorded_history,
)


def done(number: int) -> CheckpointStats:
    return CheckpointStats(number, number, "periodic", 1, 2, 3, 4, 5, 6, 7)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


def test_everything_comes_back_in_order(clock) -> None:
    storage = memory()
    events = [
        AttemptStarted("chk-7", 12),
        done(8),
        CheckpointFailed(13, "manual", "no answer", True, 9),
        Restarting("boom", 1_000),
        JobEnded("FAILED", "boom"),
    ]
    history = History(storage, 3, clock)
    for event in events:
        clock.set_now_ms(clock.now_ms() - 10)  # order does not follow the clock
        history.record(event)
    records = read_history(storage)
    assert [record.event for record in records] == events
    assert [(record.attempt, record.index) for record in records] == [(3, n) for n in range(5)]
    assert [record.at_ms for record in records] == [990, 980, 970, 960, 950]


def test_the_measurements_of_a_checkpoint_keep_their_names_on_disk() -> None:
    storage = memory()
    event = (
        b'{"type":"checkpoint-completed","number":3,"epoch":9,"trigger":"manual","waited_ms":1,'
        b'"manifest_ms":2,"commit_ms":3,"bytes_written":4,"files_written":5,"full_bytes":6,'
        b'"files":7,"sync_ms":8,"tasks":2}'
    )
    record = b'{"attempt":1,"index":0,"at_ms":5,"event":' + event + b"}"
    storage.put("history/1-0.json", b'{"format":1,"records":[' + record + b"]}")
    (read,) = read_history(storage)
    assert read.event == CheckpointStats(3, 9, "manual", 1, 2, 3, 4, 5, 6, 7, 8, 2)
    assert msgspec.json.encode(read.event) == event
    assert (read.event.async_ms, read.event.duration_ms) == (5, 14)


def test_attempts_are_merged(clock) -> None:
    storage = memory()
    for attempt in (1, 2, 10):
        History(storage, attempt, clock).record(AttemptStarted(f"chk-{attempt}"))
    assert [record.attempt for record in read_history(storage)] == [1, 2, 10]


def test_routine_events_are_written_together(clock) -> None:
    storage = HookedStorage(memory())
    history = History(storage, 1, clock)
    for number in range(100):
        history.add(done(number))
        history.flush_if_due()
        clock.advance(1_000)
    puts = [path for operation, path in storage.operations if operation == "put"]
    assert 15 <= len(puts) <= 25
    history.flush()
    assert len(read_history(storage)) == 100


def test_a_history_that_cannot_be_written_is_written_later(clock) -> None:
    storage = HookedStorage(memory())
    history = History(storage, 1, clock)
    storage.fail("put", "history")
    for number in range(10):
        history.record(done(number))
    storage.heal()
    history.record(JobEnded("FINISHED"))
    assert len(read_history(storage)) == 11


def test_growth_is_bounded_and_what_matters_is_kept_longest(clock) -> None:
    storage = memory()
    for attempt in range(1, 61):
        history = History(storage, attempt, clock)
        history.record(AttemptStarted(None))
        for number in range(150):
            history.add(done(number))
        history.record(Restarting("again", 1))
    assert len(storage.list("history")) <= 21
    records = read_history(storage)
    assert len(records) <= 6_000
    starts = [record for record in records if isinstance(record.event, AttemptStarted)]
    assert [record.attempt for record in starts] == list(range(1, 61))
    newest = [record for record in records if record.attempt == 60]
    assert len(newest) == 152


def test_a_crash_in_the_middle_of_folding_shows_nothing_twice(clock) -> None:
    storage = HookedStorage(memory())

    class Crash(BaseException):
        pass

    def crash(operation: str, path: str) -> None:
        if operation == "delete":
            raise Crash

    storage.before = crash
    with pytest.raises(Crash):
        for attempt in range(1, 40):
            History(storage, attempt, clock).record(AttemptStarted(None))
    storage.heal()
    attempts = [record.attempt for record in read_history(storage)]
    assert attempts == list(range(1, len(attempts) + 1))
    assert len(attempts) == 21


@pytest.mark.parametrize("dies", [False, True])
def test_checkpoints_that_are_forgotten_are_counted(clock, dies) -> None:
    """However often their records were folded, and whenever the driver has died meanwhile."""
    storage = HookedStorage(memory())

    class Crash(BaseException):
        pass

    deletes = count(1)

    def crash(operation: str, path: str) -> None:
        if operation == "delete" and dies and next(deletes) % 7 == 0:
            raise Crash

    storage.before = crash
    completed = failed = 0
    for attempt in range(1, 4):
        history = History(storage, attempt, clock)
        history.add(AttemptStarted(None))
        for number in range(4_000):
            fails = number % 100 == 0
            completed, failed = completed + (not fails), failed + fails
            history.add(CheckpointFailed(number, "periodic", "full") if fails else done(number))
            if number % 50 == 0:
                with suppress(Crash):
                    history.flush()
        with suppress(Crash):
            history.flush()
    records, forgotten = recorded_history(storage)
    assert len(records) < 12_000
    for kind, name, wanted in (
        (CheckpointStats, "completed", completed),
        (CheckpointFailed, "failed", failed),
    ):
        counted = sum(getattr(each, name) for each in forgotten.values())
        assert counted > 0
        assert counted + sum(isinstance(r.event, kind) for r in records) == wanted
    starts = [r.attempt for r in records if isinstance(r.event, AttemptStarted)]
    assert starts == [1, 2, 3]


def test_the_newest_checkpoint_is_found_in_whichever_file_it_is(clock) -> None:
    storage = memory()
    assert newest_checkpoint(storage) is None
    first = History(storage, 2, clock)
    for number in range(1, 200):  # with the start of the attempt, a whole file
        first.add(done(number))
    first.record(AttemptStarted(None))
    for attempt in (3, 10):
        later = History(storage, attempt, clock)
        later.record(AttemptStarted("chk-199"))
        later.record(CheckpointFailed(200, "periodic", "no answer"))
    storage.put("history/11-0.json", b"damaged")
    unknown = b'{"attempt":12,"index":0,"at_ms":5,"event":{"type":"of-a-newer-version"}}'
    storage.put("history/12-0.json", b'{"format":1,"records":[' + unknown + b"]}")
    assert newest_checkpoint(storage) == done(199)
    later.record(done(201))
    assert newest_checkpoint(storage) == done(201)


def test_files_that_cannot_be_read_are_skipped(clock) -> None:
    storage = memory()
    History(storage, 1, clock).record(AttemptStarted(None))
    storage.put("history/2-0.json", b"rubbish")
    storage.put("history/3-0.json", b'{"format": 9, "new": 1}')
    storage.put("history/4-0.json", b'{"format": 1, "records": [], "\xff": "\xff"}')
    record = (
        b'{"attempt":5,"index":0,"at_ms":5,"event":{"type":"attempt-started","snapshot":"\xff"}}'
    )
    storage.put("history/5-0.json", b'{"format":1,"records":[' + record + b"]}")
    storage.put("history/notes.txt", b"")
    assert [record.attempt for record in read_history(storage)] == [1]
