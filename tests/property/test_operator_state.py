"""Operator state against plain lists: whatever is pushed, killed, rescaled and saved in between."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tiers import examples
from turnback import ListStateDescriptor, MapFunction, StreamExecutionEnvironment, Types
from turnback.functions import CheckpointedFunction
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source


class Hold(MapFunction, CheckpointedFunction):
    """Holds every element in a list that is split, and even ones in one that is put together."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.held_state = store.get_list_state(ListStateDescriptor("held", int))
        self.even_state = store.get_union_list_state(ListStateDescriptor("even", int))
        self.held = [*self.held_state.get()]

    def map(self, value: int) -> tuple[int, int, int]:
        self.held.append(value)
        if value % 2 == 0:
            self.even_state.add(value)
        return value, sum(self.held), sum(self.even_state.get())

    def snapshot_state(self, context: Any) -> None:
        self.held_state.update(self.held)


def program(env: StreamExecutionEnvironment) -> None:
    numbers = source(env, "s", Types.LONG())
    out = numbers.map(Hold(), "n bigint, held bigint, even bigint").uid("hold")
    out.sink_to(DiscardSink()).uid("out")


class Model:
    """What the subtasks hold, and what has come out."""

    def __init__(self, parallelism: int) -> None:
        self.held: list[list[int]] = [[] for _ in range(parallelism)]
        self.even: list[list[int]] = [[] for _ in range(parallelism)]
        self.out: list[tuple[int, int, int]] = []

    def push(self, values: list[int]) -> None:
        """One task reads them, and gives them to the subtasks in turn."""
        for i, value in enumerate(values):
            subtask = i % len(self.held)
            held, even = self.held[subtask], self.even[subtask]
            held.append(value)
            if value % 2 == 0:
                even.append(value)
            self.out.append((value, sum(held), sum(even)))

    def restart(self, parallelism: int) -> None:
        if parallelism != len(self.held):
            flat = [value for part in self.held for value in part]
            share, left = divmod(len(flat), parallelism)
            self.held = []
            for subtask in range(parallelism):
                size = share + (subtask < left)
                self.held.append(flat[:size])
                flat = flat[size:]
        even = [value for part in self.even for value in part]
        self.even = [list(even) for _ in range(parallelism)]


parallelisms = st.sampled_from([1, 2, 3])
steps = st.one_of(
    st.tuples(st.just("push"), st.lists(st.integers(0, 99), min_size=1, max_size=7)),
    st.tuples(st.just("crash"), st.none()),
    st.tuples(st.just("rescale"), parallelisms),
    st.tuples(st.just("save"), parallelisms),
)


@given(parallelisms, st.lists(steps, max_size=6))
@settings(max_examples=examples(25), deadline=None)
def test_the_same_as_plain_lists(parallelism: int, done: list[tuple[str, Any]]) -> None:
    model = Model(parallelism)
    with (
        tempfile.TemporaryDirectory() as directory,
        JobHarness(program, Path(directory), parallelism=parallelism) as job,
    ):
        for step, argument in [*done, ("push", [1, 2, 3, 4])]:
            if step == "push":
                job.push("s", *argument)
                model.push(argument)
            elif step == "crash":
                job.checkpoint()
                job.crash()
                job.start()
                model.restart(len(model.held))
            elif step == "rescale":
                job.checkpoint()
                job.restart(parallelism=argument)
                model.restart(argument)
            else:
                saved = job.savepoint()
                job.stop()
                job.start(start_from=saved, parallelism=argument, state_backend="rocksdb")
                model.restart(argument)
        assert [tuple(row) for row in sorted(job.output("out"))] == sorted(model.out)
        held = job.state("hold", "held")
        assert [held.get(i, []) for i in range(len(model.held))] == model.held
