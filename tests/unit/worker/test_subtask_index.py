"""The number of the task at hand, as functions are told it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from local_engine import LocalEngine, collected, environment, source
from turnback import KeyedProcessFunction, ProcessFunction


class Index(ProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.context = runtime_context

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.n, self.context.get_index_of_this_subtask()


class KeyedIndex(KeyedProcessFunction):
    open = Index.open
    process_element = Index.process_element


def test_it_is_that_of_the_task_at_hand(tmp_path: Path) -> None:
    env = environment(2)
    numbers = source(env, "src", "n bigint")
    before = collected(numbers.process(Index(), "n bigint, task bigint"), "before")
    keyed = numbers.key_by("n").process(KeyedIndex(), "n bigint, task bigint")
    after = collected(keyed, "after")
    engine = LocalEngine(env.plan(), tmp_path, source_tasks=3)
    for first in (0, 6):
        # An element goes to the source task of its position.
        engine.epoch({"src": [(n,) for n in range(first, first + 6)]})
    assert sorted(before.results) == [(n, n % 3) for n in range(12)]
    assert {task for _, task in after.results} == {0, 1}
