"""Functions per element and over batches in turn, against a plain dict.

Every attempt restores what the one before left, with another function, parallelism, backend and
cut into epochs, tasks and batches.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import BACKENDS, LocalEngine, collected, environment, source
from tiers import examples
from turnback import KeyedProcessFunction, Types, ValueStateDescriptor
from turnback.functions import KeyedBatchFunction, KeyedColumns
from turnback.worker import runners as batch_runners

SCHEMA = Types.ROW_NAMED(["k", "b", "n"], [Types.STRING(), Types.BOOLEAN(), Types.LONG()])
OUTPUT = "key string, n bigint, seen bigint, tags array<string>"
STATS = Types.ROW_NAMED(["n", "seen"], [Types.LONG(), Types.LONG()])
TAGS = Types.LIST(Types.STRING())

Stats = tuple[int, int]
State = tuple[Stats | None, list[str] | None]


def step(state: State, n: int) -> State:
    """What an element does to the state of its key; multiples of 5 remove some or all of it."""
    (total, seen), tags = state[0] or (0, 0), state[1] or []
    stats = None if (total + n) % 5 == 0 else (total + n, seen + 1)
    return stats, None if n % 5 == 0 else [*tags, str(n)][-3:]


def shown(key: Any, state: State) -> tuple[Any, ...]:
    return repr(key), *(state[0] or (None, None)), state[1]


class OneByOne(KeyedProcessFunction):
    stats = ValueStateDescriptor("stats", STATS)
    tags = ValueStateDescriptor("tags", TAGS)

    def process_element(self, value: Any, ctx: Any) -> Any:
        stats, tags = step((self.stats.value(), self.tags.value()), value.n)
        self.stats.update(stats)
        self.tags.update(tags)
        yield shown(_plain(ctx.get_current_key()), (stats, tags))


class InBatches(KeyedBatchFunction):
    stats = ValueStateDescriptor("stats", STATS)
    tags = ValueStateDescriptor("tags", TAGS)

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        keys = [_plain(key) for key in state.keys.to_pylist()]
        stats = [row and (row["n"], row["seen"]) for row in state.read(self.stats).to_pylist()]
        tags = state.read(self.tags).to_pylist()
        rows = []
        for i, n in zip(state.index.tolist(), batch["n"].to_pylist(), strict=True):
            stats[i], tags[i] = step((stats[i], tags[i]), n)
            rows.append(shown(keys[i], (stats[i], tags[i])))
        state.write(self.stats, stats)
        state.write(self.tags, pa.array(tags, TAGS.arrow()))
        columns = [list(column) for column in zip(*rows, strict=True)]
        return pa.table(dict(zip(("key", "n", "seen", "tags"), columns, strict=True)))


class Look(KeyedProcessFunction):
    """The state of each key, unchanged."""

    stats = ValueStateDescriptor("stats", STATS)
    tags = ValueStateDescriptor("tags", TAGS)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield shown(_plain(ctx.get_current_key()), (self.stats.value(), self.tags.value()))


def _plain(key: Any) -> Any:
    return tuple(key.values()) if isinstance(key, dict) else key


KEYS: dict[str, Any] = {
    "column": (lambda s: s.key_by("k"), lambda k, b, n: k),
    "two columns": (lambda s: s.key_by("b", "k"), lambda k, b, n: (b, k)),
    "function": (lambda s: s.key_by(lambda r: len(r.k), key_type=int), lambda k, b, n: len(k)),
}
elements = st.lists(
    st.tuples(st.sampled_from(["", "a", "b", "ab", "é", "\0"]), st.booleans(), st.integers(-9, 9)),
    max_size=14,
)


@settings(max_examples=examples(60), deadline=None)
@given(by=st.sampled_from(sorted(KEYS)), data=st.data())
def test_output_and_state_are_those_of_a_function_per_element(by: str, data: st.DataObject) -> None:
    key_by, key_of = KEYS[by]
    model: dict[Any, State] = {}
    everything: list[Any] = []
    files: Any = ()
    number = 0
    with tempfile.TemporaryDirectory() as root:
        for attempt in range(1, 5):
            last = attempt == 4
            function = Look if last else data.draw(st.sampled_from([OneByOne, InBatches]))
            env = environment(data.draw(st.integers(1, 3))).set_max_parallelism(8)
            stream = key_by(source(env, "s", SCHEMA)).process(function(), OUTPUT).uid("op")
            sink = collected(stream, "out")
            engine = LocalEngine(
                env.plan(), Path(root), attempt=attempt, files=files, epoch=number,
                backend=data.draw(st.sampled_from(BACKENDS)),
                source_tasks=data.draw(st.integers(1, 4)),
            )  # fmt: skip
            expected = []
            for _ in range(1 if last else data.draw(st.integers(1, 2))):
                rows = everything if last else data.draw(elements)
                for row in _in_order(rows, engine.source_tasks):
                    key = key_of(*row)
                    state = model.get(key, (None, None))
                    model[key] = state if last else step(state, row[2])
                    expected.append(shown(key, model[key]))
                everything = everything if last else everything + rows
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(batch_runners, "MOST_ROWS", data.draw(st.integers(1, 20)))
                    engine.epoch({"s": rows})
            found = [(r.key, r.n, r.seen, r.tags) for r in sink.results]
            assert Counter(map(repr, found)) == Counter(map(repr, expected))
            files, number = engine.file_index.live(), engine.number


def _in_order(rows: list[Any], tasks: int) -> list[Any]:
    """The order in which one key's elements arrive when rows are dealt out to tasks."""
    return [row for task in range(tasks) for row in rows[task::tasks]]
