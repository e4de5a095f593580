"""Declared aggregations against a plain dict, with tasks, batches and epochs cut at random.

Every attempt restores what the one before left, with another parallelism and backend.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from local_engine import BACKENDS, LocalEngine, collected, environment, source
from tiers import examples
from turnback import Types, count, max_of, mean_of, min_of, sum_of
from turnback.functions import count_of, last_of, list_of
from turnback.worker import runners as batch_runners

SCHEMA = Types.ROW_NAMED(
    ["k", "b", "n", "at"], [Types.STRING(), Types.BOOLEAN(), Types.LONG(), Types.LONG()]
)
KEYS: dict[str, Any] = {
    "column": (lambda s: s.key_by("k"), lambda row: (row[0],)),
    "two columns": (lambda s: s.key_by("b", "k"), lambda row: (row[1], row[0])),
    "function": (lambda s: s.key_by(lambda r: len(r.k), key_type=int), lambda row: (len(row[0]),)),
}
rows_ = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "ab", "é", "\0"]),
        st.booleans(),
        st.none() | st.integers(-9, 9),
    ),
    max_size=14,
)


def expected(key: tuple[Any, ...], rows: list[Any]) -> tuple[Any, ...]:
    values = [n for _, _, n, _ in rows if n is not None]
    return (
        *key,
        len(rows),
        len(values),
        sum(values) if values else None,
        min(values, default=None),
        max(values, default=None),
        sum(values) / len(values) if values else None,
        max(rows, key=lambda row: row[3])[2],
        sorted(values),
    )


def plain(row: Any) -> tuple[Any, ...]:
    *others, values = row
    return *others, sorted(values)


@settings(max_examples=examples(60), deadline=None)
@given(by=st.sampled_from(sorted(KEYS)), data=st.data())
def test_results_are_those_of_all_elements_so_far(by: str, data: st.DataObject) -> None:
    key_by, key_of = KEYS[by]
    model: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
    files: Any = ()
    number = at = 0
    with tempfile.TemporaryDirectory() as root:
        for attempt in range(1, 4):
            env = environment(data.draw(st.integers(1, 3))).set_max_parallelism(8)
            stream = source(env, "s", SCHEMA)
            if data.draw(st.booleans()):
                stream = stream.filter(lambda row: True)  # whether or not Python comes before it
            aggregated = key_by(stream).aggregate(
                rows=count(),
                values=count_of("n"),
                total=sum_of("n"),
                least=min_of("n"),
                greatest=max_of("n"),
                mean=mean_of("n"),
                latest=last_of("n", by="at"),
                every=list_of("n"),
            )
            sink = collected(aggregated.uid("op"), "out")
            engine = LocalEngine(
                env.plan(), Path(root), attempt=attempt, files=files, epoch=number,
                backend=data.draw(st.sampled_from(BACKENDS)),
                source_tasks=data.draw(st.integers(1, 4)),
            )  # fmt: skip
            for _ in range(data.draw(st.integers(1, 3))):
                rows = [(*row, at := at + 1) for row in data.draw(rows_)]
                for row in rows:
                    model[key_of(row)].append(row)
                seen = len(sink.results)
                with pytest.MonkeyPatch.context() as patch:
                    # Only what combines may be cut: a row per key and epoch is what is promised.
                    patch.setattr(batch_runners, "MOST_BYTES", data.draw(st.integers(1, 2000)))
                    engine.epoch({"s": rows})
                new = [plain(row) for row in sink.results[seen:]]
                changed = {key_of(row) for row in rows}
                latest = {row[:-8]: row for row in new}
                assert latest == {key: expected(key, model[key]) for key in changed}
            files, number = engine.file_index.live(), engine.number
