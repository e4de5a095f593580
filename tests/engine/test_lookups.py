"""State of a running job, looked up by key: equal to what the job holds, whatever it does then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    Types,
    ValueStateDescriptor,
    look_up,
)
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
)
from turnback.testing import JobHarness, source
from turnback.views.browse import look_up as look_up_text
from turnback.views.jobs import Jobs


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class All(KeyedProcessFunction):
    """Keeps all there is of each key in state of every kind; every fifth element starts anew."""

    last = ValueStateDescriptor(
        "last", Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
    )
    seen = ListStateDescriptor("seen", Types.LONG())
    by_text = MapStateDescriptor("by text", Types.STRING(), Types.LONG())
    total = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
    mean = AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.LONG(), Types.LONG()]))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value.n % 5 == 0:
            self.seen.clear()
        self.last.update(Row(n=value.n, text=f"text {value.n}"))
        self.seen.add(value.n)
        self.by_text.put(f"text {value.n % 3}", value.n)
        self.total.add(value.n)
        self.mean.add(value.n)
        yield value.n


def program(env: Any) -> None:
    events = source(env, "events", "user string, day int, n bigint")
    events.key_by("user", "day").process(All(), Types.LONG()).uid("all").print().uid("out")


def held(numbers: list[int]) -> dict[str, Any]:
    """What the states of a key hold after these elements."""
    start = max((i for i, n in enumerate(numbers) if n % 5 == 0), default=0)
    return {
        "last": Row(n=numbers[-1], text=f"text {numbers[-1]}"),
        "seen": numbers[start:],
        "by text": {f"text {n % 3}": n for n in numbers},
        "total": sum(numbers),
        "mean": (sum(numbers), len(numbers)),
    }


@pytest.fixture
def job(tmp_path: Path) -> Iterator[JobHarness]:
    settings = {"execution.checkpointing.num-retained": 1}
    with JobHarness(program, tmp_path, name="orders", configuration=settings) as harness:
        yield harness


def test_state_of_every_kind_is_what_the_job_holds(job):
    root = job.directory / "jobs"
    pushed: dict[tuple[str, int], list[int]] = {}
    for n in range(1, 12):
        for user in ("alice", "bob"):
            pushed.setdefault((user, n % 2), []).append(n)
            job.push("events", (user, n % 2, n), checkpoint=False)
        job.checkpoint()
        for key, numbers in pushed.items():
            for name, value in held(numbers).items():
                found = look_up("orders", "all", name, key, root=root)
                assert (found.found, found.value, found.next) == (True, value, None), name
    assert not look_up("orders", "all", "seen", ("carol", 1), root=root).found
    assert look_up("orders", "all", "last", ("carol", 1), root=root).value is None
    shown = look_up_text(Jobs(str(root)).get("orders"), "all", "seen", '["alice", 1]')
    assert (shown.columns, shown.rows) == (("position", "value"), ((0, 5), (1, 7), (2, 9), (3, 11)))
    shown = look_up_text(Jobs(str(root)).get("orders"), "all", "last", "alice,1")
    assert shown.rows == (({"n": 11, "text": "text 11"},),)


def test_a_job_that_checkpoints_merges_and_deletes_never_disturbs_a_look_up(job):
    """Every answer is the state of one epoch, none is older than the one before."""
    root = job.directory / "jobs"
    states, done, problems, answers = [], threading.Event(), [], [0, 0]

    def look(reader: int, name: str) -> None:
        before = 0
        while not done.is_set() or not answers[reader]:
            try:
                found = look_up("orders", "all", name, ("alice", 0), root=root)
                number = [s[name] for s in states].index(found.value)
                assert found.epoch >= before
                before, answers[reader] = found.epoch, answers[reader] + 1
            except BaseException as error:  # noqa: BLE001 - shown by the test
                problems.append(error)
                return
            assert number >= 0

    for n in range(1, 61):
        states.append(held(list(range(1, n + 1))))
    job.push("events", ("alice", 0, 1))
    readers = [threading.Thread(target=look, args=args) for args in enumerate(("seen", "by text"))]
    for reader in readers:
        reader.start()
    for n in range(2, 61):
        job.push("events", ("alice", 0, n))
    done.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert min(answers) > 5
    assert look_up("orders", "all", "seen", ("alice", 0), root=root).value == [60]
    assert len(list((root / "orders" / "state").rglob("*.arrow"))) < 40  # they are merged
