"""The test support that runs actors in an order decided by a seed."""

import pytest

from interleaving import SEED, InterleavedStorage, Interleaving, replayable, seeds
from turnback.errors import AlreadyExistsError
from turnback.storage.open import MemoryStorage


def count_up(storage: InterleavedStorage) -> None:
    """Adds one to a number, without any protection."""
    number = int(storage.get("number"))
    storage.put("number", str(number + 1).encode())


def play(seed: int) -> tuple[list[str], int]:
    order = Interleaving(seed)
    storage = InterleavedStorage(MemoryStorage(f"interleaving-{seed}"), order)
    storage.put("number", b"0")
    for name in ("a", "b", "c"):
        order.add(name, lambda: count_up(storage))
    order.run()
    return order.trace, int(storage.get("number"))


def test_a_seed_gives_one_order_and_others_give_others() -> None:
    played = [play(seed) for seed in range(30)]
    assert played == [play(seed) for seed in range(30)]
    assert {result for _, result in played} == {1, 2, 3}


def test_what_an_actor_raises_is_raised_with_the_seed() -> None:
    def fail() -> None:
        order.point("here")
        raise AlreadyExistsError("oh")

    with pytest.raises(AlreadyExistsError) as raised, replayable(7) as order:
        order.add("a", fail)
        order.run()
    first, second = raised.value.__notes__
    assert f"{SEED}=7" in first
    assert second == "a: here"


def test_a_killed_group_does_nothing_more() -> None:
    done: list[str] = []

    def step(order: Interleaving, name: str) -> None:
        try:
            for number in range(50):
                order.point(str(number))
                done.append(name)
        finally:
            order.point("the process is gone, so nothing is tidied up")
            done.append("tidied up")

    order = Interleaving(1)
    order.add("mortal", lambda: step(order, "mortal"), group="process", mortality=0.2)
    order.add("beside", lambda: step(order, "beside"), group="process")
    order.add("other", lambda: step(order, "other"))
    order.run()
    assert order.was_killed("process")
    assert done.count("other") == 50
    assert done.count("tidied up") == 1
    assert done.count("mortal") + done.count("beside") < 100


def test_actors_that_wait_for_each_other_are_reported() -> None:
    order = Interleaving(1)
    order.add("a", lambda: order.wait_until(lambda: False))
    with pytest.raises(AssertionError, match="wait for each other"):
        order.run()


def test_few_seeds_or_one_can_be_asked_for(monkeypatch) -> None:
    monkeypatch.delenv("TURNBACK_EXAMPLES", raising=False)
    assert list(seeds(10)) == list(range(10))
    monkeypatch.setenv("TURNBACK_EXAMPLES", "few")
    assert list(seeds(10)) == [0, 1]
    monkeypatch.setenv(SEED, "41")
    assert list(seeds(3)) == [41]
