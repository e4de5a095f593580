import pytest

from turnback.checkpoint.ledger import Nothing, Situation, Trigger, Wait, decide
from turnback.config.checkpointing import CheckpointSettings

EVERY_SECOND = CheckpointSettings(interval_ms=1_000)


def test_the_first_is_due_an_interval_after_the_start() -> None:
    fresh = Situation(started=500, changed=True)
    assert decide(500, EVERY_SECOND, fresh) == Wait(1_000)
    assert decide(1_499, EVERY_SECOND, fresh) == Wait(1)
    assert decide(1_500, EVERY_SECOND, fresh) == Trigger("periodic")


def test_the_interval_counts_from_the_last_trigger() -> None:
    running = Situation(started=0, changed=True, last_trigger=5_000, last_end=5_900)
    assert decide(5_950, EVERY_SECOND, running) == Wait(50)
    assert decide(6_000, EVERY_SECOND, running) == Trigger("periodic")


def test_the_pause_counts_from_the_last_end() -> None:
    settings = CheckpointSettings(interval_ms=1_000, min_pause_ms=700)
    running = Situation(started=0, changed=True, last_trigger=5_000, last_end=5_900)
    assert decide(6_000, settings, running) == Wait(600)
    assert decide(6_600, settings, running) == Trigger("periodic")


def test_nothing_new_nothing_to_do() -> None:
    assert decide(10**9, EVERY_SECOND, Situation(started=0)) == Nothing()
    assert decide(10**9, EVERY_SECOND, Situation(started=0, requested="manual")) == Nothing()


@pytest.mark.parametrize(
    ("most", "under_way", "expected"),
    [
        (1, 0, Trigger("periodic")),
        (1, 1, Nothing()),
        (3, 2, Trigger("periodic")),
        (3, 3, Nothing()),
    ],
)
def test_only_so_many_at_once(most: int, under_way: int, expected: object) -> None:
    settings = CheckpointSettings(interval_ms=1_000, max_concurrent=most)
    situation = Situation(started=0, changed=True, in_flight=under_way)
    assert decide(1_000, settings, situation) == expected


def test_a_request_waits_for_a_place_but_not_for_time() -> None:
    settings = CheckpointSettings(interval_ms=1_000, min_pause_ms=700)
    asked = Situation(started=0, changed=True, requested="final", last_trigger=10, last_end=11)
    assert decide(12, settings, asked) == Trigger("final")
    busy = Situation(started=0, changed=True, requested="final", in_flight=1)
    assert decide(12, settings, busy) == Nothing()


def test_switched_off_only_requests_count() -> None:
    off = CheckpointSettings()
    assert decide(10**9, off, Situation(started=0, changed=True)) == Nothing()
    asked = Situation(started=0, changed=True, requested="manual")
    assert decide(0, off, asked) == Trigger("manual")
