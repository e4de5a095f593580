"""What a job had promised when it died is settled without starting it."""

from __future__ import annotations

import pytest
from place import JOB, Place

import faults

pytestmark = pytest.mark.no_jvm


@pytest.mark.parametrize("script", [False, True], ids=["by itself", "with the program"])
def test_promised_output_is_committed_by_hand_and_only_once(place: Place, script: bool) -> None:
    die(place)
    (promised, *others) = place.ask("transactions", "list", "counts")
    assert promised["state"] == "in doubt"
    assert promised["sink"] == "user counts"
    before = sum(map(len, place.counted().values()))
    program = ("--script", JOB, "--", place.events, place.out) if script else ()
    done = place.ask("transactions", "commit", "counts", "--yes", *program)
    assert done["transactions"] == {
        "user counts": 1 + sum(o["state"] == "in doubt" for o in others)
    }
    assert sum(map(len, place.counted().values())) > before
    assert place.ask("transactions", "list", "counts") == []
    if not script:
        # the job goes on after it, and doubles nothing
        place.feed()
        place.turnback("run", JOB, place.events, place.out, "--bounded")
        assert place.complete()


def test_promised_output_can_be_dropped_knowingly(place: Place) -> None:
    die(place)
    assert "--yes" in place.turnback("transactions", "abort", "counts", code=9)
    assert place.ask("transactions", "list", "counts")
    place.ask("transactions", "abort", "counts", "--yes")
    assert place.ask("transactions", "list", "counts") == []
    before = place.counted()
    place.feed()  # else nothing may be left to count
    place.turnback("run", JOB, place.events, place.out, "--bounded")
    counted = place.counted()
    lost = {user: total - len(counted[user]) for user, total in place.fed.items()}
    assert all(n > 0 for n in lost.values())
    assert all(set(before.get(user, [])) <= set(numbers) for user, numbers in counted.items())
    for user, numbers in counted.items():
        assert len(set(numbers)) == len(numbers)
        assert max(numbers) == place.fed[user]


def die(place: Place) -> None:
    """Run the job until a checkpoint is durable and its output is not committed."""
    place.feed()
    usual = place.environment
    place.environment = usual | {
        "PYTHONPATH": faults.DIRECTORY,
        "TURNBACK_KILL_AT": "after-manifest:1",
    }
    place.turnback(
        *("run", "-D", "restart-strategy.type=none"),
        *(JOB, place.events, place.out, "--bounded"),
        code=1,
    )
    place.environment = usual
    assert place.ask("list", "-a")[0]["state"] == "FAILED"
