"""When a driver looks for dead letters that were given back."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coordinator_fakes import HookedStorage, memory
from manual_clock import ManualClock
from turnback.checkpoint.manifest import RedriveProgress
from turnback.driver.redrive import Redriver
from turnback.job.redrive import RedriveInbox
from unit.letter_support import letter


@pytest.fixture
def storage() -> HookedStorage:
    return HookedStorage(memory())


def test_a_batch_behind_a_gap_is_tried_again_if_it_could_not_be_fed(storage) -> None:
    """One that was removed by hand leaves a gap; the next is not found by its number."""
    clock = ManualClock(1_700_000_000_000)
    inbox = RedriveInbox(storage, "j")
    inbox.add([letter(1)])
    inbox.add([letter(2)])
    storage.delete("redrive/j/1.json")
    plan = SimpleNamespace(operators=tuple)
    redriver = Redriver(plan, inbox, "j", clock)
    progress = RedriveProgress().begin(1, 0)
    storage.fail("put", "outcome")
    assert redriver.next(progress) is None
    storage.heal()
    clock.advance(60_000)
    feed = redriver.next(progress)
    assert feed is not None
    assert feed.batch == 2
