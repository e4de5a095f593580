"""When a checkpoint is due."""

from concurrent.futures import Future

import pytest

from coordinator_fakes import cut
from turnback.checkpoint.protocol import Decision, Ledger
from turnback.config.checkpointing import CheckpointSettings

EVERY_SECOND = CheckpointSettings(interval_ms=1_000)
NOTHING, PERIODIC = Decision(), Decision("periodic")


def ledger(settings: CheckpointSettings = EVERY_SECOND, started: int = 0) -> Ledger:
    """A ledger with an epoch that no checkpoint covers."""
    made = Ledger(settings, started)
    made.confirm(cut(1))
    return made


def with_one_before(settings: CheckpointSettings = EVERY_SECOND) -> Ledger:
    """A checkpoint was triggered at 5,000 and ended at 5,900."""
    made = ledger(settings)
    made.discard(made.begin("periodic", 5_000), 5_900)
    return made


def test_the_first_is_due_an_interval_after_the_start() -> None:
    fresh = ledger(started=500)
    assert fresh.decide(500) == Decision(wait_ms=1_000)
    assert fresh.decide(1_499) == Decision(wait_ms=1)
    assert fresh.decide(1_500) == PERIODIC


def test_the_interval_counts_from_the_last_trigger() -> None:
    assert with_one_before().decide(5_950) == Decision(wait_ms=50)
    assert with_one_before().decide(6_000) == PERIODIC


def test_the_pause_counts_from_the_last_end() -> None:
    settings = CheckpointSettings(interval_ms=1_000, min_pause_ms=700)
    assert with_one_before(settings).decide(6_000) == Decision(wait_ms=600)
    assert with_one_before(settings).decide(6_600) == PERIODIC


def test_nothing_new_nothing_to_do() -> None:
    empty = Ledger(EVERY_SECOND, 0)
    assert empty.decide(10**9) == NOTHING
    empty.requests.append(("manual", Future()))
    assert empty.decide(10**9) == NOTHING


@pytest.mark.parametrize(
    ("most", "under_way", "expected"),
    [(1, 0, PERIODIC), (1, 1, NOTHING), (3, 2, PERIODIC), (3, 3, NOTHING)],
)
def test_only_so_many_at_once(most: int, under_way: int, expected: Decision) -> None:
    busy = ledger(CheckpointSettings(interval_ms=1_000, max_concurrent=most))
    for number in range(under_way):
        busy.begin("periodic", 0)
        busy.confirm(cut(number + 2))
    assert busy.decide(1_000) == expected


def test_a_request_waits_for_a_place_but_not_for_time() -> None:
    asked = with_one_before(CheckpointSettings(interval_ms=1_000, min_pause_ms=700))
    asked.requests += [("manual", Future()), ("final", Future())]
    assert asked.decide(5_901) == Decision("final")
    busy = ledger()
    busy.begin("periodic", 0)
    busy.confirm(cut(2))
    busy.requests.append(("final", Future()))
    assert busy.decide(12) == NOTHING


def test_switched_off_only_requests_count() -> None:
    off = ledger(CheckpointSettings())
    assert off.decide(10**9) == NOTHING
    off.requests.append(("manual", Future()))
    assert off.decide(0) == Decision("manual")
