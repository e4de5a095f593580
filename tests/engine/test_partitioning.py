"""Where the elements of a stream without a key go, as the user says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import DataStream, MapFunction, Types
from turnback.errors import ElementTypeError, PlanError, UserFunctionError
from turnback.functions import Partitioner
from turnback.plan.plan import Routing

LONG = Types.LONG()


class Where(MapFunction):
    """Gives each element with the subtask it has come to."""

    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context

    def map(self, value: int) -> int:
        return value * 100 + int(self.context.get_index_of_this_subtask())


def run(tmp_path: Path, spread: Any, elements: Any, parallelism: int = 3) -> list[tuple[int, int]]:
    """Each element with the subtask it has come to."""
    env = environment(parallelism)
    spread_out: DataStream = spread(source(env, "s", LONG))
    sink = collected(spread_out.map(Where(), LONG).uid("where"), "out")
    LocalEngine(env.plan(), tmp_path).epoch({"s": elements})
    return sorted((n // 100, n % 100) for n in sink.results)


@pytest.mark.parametrize("how", ["rebalance", "rescale", "shuffle"])
def test_elements_are_spread_evenly_and_alike_every_time(tmp_path: Path, how: str) -> None:
    found = run(tmp_path / "a", lambda stream: getattr(stream, how)(), range(30))
    assert Counter(subtask for _, subtask in found) == {0: 10, 1: 10, 2: 10}
    assert found == run(tmp_path / "b", lambda stream: getattr(stream, how)(), range(30))


def test_every_subtask_gets_what_is_broadcast(tmp_path: Path) -> None:
    found = run(tmp_path, lambda stream: stream.broadcast(), [7, 8])
    assert found == [(7, 0), (7, 1), (7, 2), (8, 0), (8, 1), (8, 2)]


class ByRest(Partitioner):
    def partition(self, key: Any, num_partitions: int) -> int:
        return int(key) % num_partitions


@pytest.mark.parametrize("partitioner", [ByRest(), lambda key, n: key % n])
def test_a_partitioner_of_the_users(tmp_path: Path, partitioner: Any) -> None:
    found = run(tmp_path, lambda s: s.partition_custom(partitioner, lambda n: n + 1), range(9))
    assert found == [(n, (n + 1) % 3) for n in range(9)]


@pytest.mark.parametrize(
    ("partitioner", "error", "message"),
    [
        (
            lambda key, n: n,
            ElementTypeError,
            "'where': the partitioner returned 3 for .*from 0 to 2",
        ),
        (lambda key, n: "0", ElementTypeError, "the partitioner returned '0'"),
        (lambda key, n: 1 / 0, UserFunctionError, "'where' .partition_custom. failed: ZeroDiv"),
    ],
)
def test_a_partitioner_that_is_wrong(
    tmp_path: Path, partitioner: Any, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        run(tmp_path, lambda stream: stream.partition_custom(partitioner, lambda n: n), [1])


def test_the_last_word_counts_and_two_readers_have_their_own() -> None:
    env = environment(3)
    numbers = source(env, "s", LONG)
    collected(numbers.broadcast().rebalance().map(lambda n: n, LONG).uid("a"), "out a")
    collected(numbers.broadcast().map(lambda n: n, LONG).uid("b"), "out b")
    collected(numbers.broadcast().key_by(lambda n: n, key_type=int).reduce(max).uid("c"), "out c")
    united = numbers.broadcast().union(source(env, "t", LONG))
    collected(united.rebalance().map(lambda n: n, LONG).uid("d"), "out d")
    routings = sorted((c.reader, c.routing(c.last_level).value) for c in env.plan().channels)
    assert routings == [
        ("a", "rebalance"),
        ("b", "broadcast"),
        ("c", "key function"),
        ("d", "rebalance"),
    ], "those of s to a and to d are spread alike, and so sent once"
    assert all(c.routing(c.last_level - 1) is Routing.TRANSIT for c in env.plan().channels)


def test_forward_leaves_elements_where_they_are() -> None:
    env = environment(3)
    numbers = source(env, "s", LONG).rebalance().map(lambda n: n, LONG).uid("a")
    collected(numbers.forward().map(lambda n: n, LONG).uid("b"), "out")
    levels = [[op.uid for op in level.operators] for level in env.plan().levels]
    assert levels == [["s"], ["a", "b", "out"]]


def test_forward_to_another_parallelism_is_refused() -> None:
    env = environment(3)
    numbers = source(env, "s", LONG).rebalance().map(lambda n: n, LONG).uid("a")
    collected(numbers.forward().map(lambda n: n, LONG).uid("b").set_parallelism(2), "out")
    with pytest.raises(PlanError, match=r"operator 'b' .* as forward\(\) requires.* use rebalance"):
        env.plan()


@pytest.mark.parametrize("how", ["rebalance", "rescale", "shuffle", "forward", "broadcast"])
def test_a_keyed_stream_goes_by_its_key(how: str) -> None:
    keyed = source(environment(), "s", "k string").key_by("k")
    with pytest.raises(PlanError, match=f"key_by decides where elements go, and {how}"):
        getattr(keyed, how)()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, lambda n: n), "partitioner must be a Partitioner or a function"),
        ((ByRest, lambda n: n), "partitioner must be a Partitioner or a function"),
        ((ByRest(), "n"), "key_selector must be a KeySelector or a function"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        source(environment(), "s", LONG).partition_custom(*arguments)
