"""A broadcast stream against a plain loop, over any epochs, tasks and attempts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import LocalEngine, collected, environment, source
from tiers import examples
from turnback import MapStateDescriptor, ValueStateDescriptor
from turnback.functions import KeyedBroadcastProcessFunction

RULES = MapStateDescriptor("rules", str, str)
RULE, ELEMENT, OUT = "name string, text string", "k string, n bigint", "k string, text string"


class Tell(KeyedBroadcastProcessFunction):
    """Tells the rule of a key, and how many elements of it have come since any rule has."""

    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        rule = ctx.get_broadcast_state(RULES).get(value.k)
        yield value.k, f"{rule} {self.count.value()}"

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(value.name, (rules.get(value.name) or "")[-6:] + value.text)
        ctx.apply_to_keyed_state(Tell.count, lambda key, count: count.update(None))


names = st.sampled_from("abc")
epochs = st.lists(
    st.tuples(
        st.lists(st.tuples(names, st.sampled_from("xyz")), max_size=5),
        st.lists(st.tuples(names, st.just(0)), max_size=6),
        st.booleans(),
    ),
    max_size=5,
)


@given(epochs, st.sampled_from([1, 2, 3]), st.sampled_from([1, 3]))
@settings(max_examples=examples(30), deadline=None)
def test_the_same_as_a_plain_loop(epochs: Any, parallelism: int, tasks: int) -> None:
    env = environment(parallelism)
    rules = source(env, "r", RULE).broadcast(RULES)
    keyed = source(env, "s", ELEMENT).key_by("k")
    sink = collected(keyed.connect(rules).process(Tell(), OUT).uid("tell"), "out")
    known: dict[str, str] = {}
    counts: dict[str, int] = {}
    expected: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        engine = LocalEngine(env.plan(), root, source_tasks=tasks)
        for given_rules, elements, restart in epochs:
            if restart:
                engine = LocalEngine(
                    env.plan(),
                    root,
                    attempt=engine.attempt + 1,
                    files=engine.file_index.live(),
                    epoch=engine.number,
                    backend="hashmap",
                    source_tasks=tasks,
                )
            engine.epoch({"r": given_rules, "s": elements})
            for task in range(tasks):
                for name, text in given_rules[task::tasks]:
                    known[name] = known.get(name, "")[-6:] + text
                    counts.clear()
            for key, _ in elements:
                counts[key] = counts.get(key, 0) + 1
                expected.append((key, f"{known.get(key)} {counts[key]}"))
    assert sorted(map(tuple, sink.results)) == sorted(expected)
