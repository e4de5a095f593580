"""All five kinds of keyed state on both backends, against plain Python; odd keys, large values."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from job_support import Jobs
from turnback import (
    CollectSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
)

SCHEMA = "k string, op string, n bigint"


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1] if accumulator[1] else None

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class Everything(KeyedProcessFunction):
    """Applies an operation to all states and gives all there is in them."""

    value = ValueStateDescriptor("value", int)
    numbers = ListStateDescriptor("list", int)
    entries = MapStateDescriptor("map", str, int)
    most = ReducingStateDescriptor("reducing", max, int)
    mean = AggregatingStateDescriptor("aggregating", Mean(), PAIR)

    def process_element(self, row: Any, ctx: Any) -> Any:
        n = row.n
        if row.op == "add":
            self.value.update((self.value.value() or 0) + n)
            self.numbers.add(n)
            self.entries.put(f"e{n % 3}", n)
            self.most.add(n)
            self.mean.add(n)
        elif row.op == "replace":
            self.numbers.update([n, n + 1])
            self.entries.remove(f"e{n % 3}")
        elif row.op == "clear":
            for state in (self.value, self.numbers, self.entries, self.most, self.mean):
                state.clear()
        yield row.k, json.dumps(self.contents())

    def contents(self) -> list[Any]:
        return [
            self.value.value(),
            list(self.numbers.get() or ()),
            sorted(self.entries.items()),
            self.most.get(),
            self.mean.get(),
        ]


class InOpen(Everything):
    """The same with descriptors in `open`, under other names."""

    value = numbers = entries = most = mean = None  # type: ignore[assignment]

    def open(self, runtime_context: Any) -> None:
        get = runtime_context
        self.value = get.get_state(ValueStateDescriptor("v", Types.LONG()))
        self.numbers = get.get_list_state(ListStateDescriptor("l", Types.LONG()))
        self.entries = get.get_map_state(MapStateDescriptor("m", Types.STRING(), Types.LONG()))
        self.most = get.get_reducing_state(ReducingStateDescriptor("r", max, "bigint"))
        self.mean = get.get_aggregating_state(AggregatingStateDescriptor("a", Mean(), PAIR))


class Model:
    """The same in plain Python."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.value: int | None = None
        self.numbers: list[int] = []
        self.entries: dict[str, int] = {}
        self.added: list[int] = []

    def apply(self, op: str, n: int) -> list[Any]:
        if op == "add":
            self.value = (self.value or 0) + n
            self.numbers.append(n)
            self.entries[f"e{n % 3}"] = n
            self.added.append(n)
        elif op == "replace":
            self.numbers = [n, n + 1]
            self.entries.pop(f"e{n % 3}", None)
        elif op == "clear":
            self.clear()
        added = self.added
        mean = sum(added) / len(added) if added else None
        most = max(added, default=None)
        entries = [list(e) for e in sorted(self.entries.items())]
        return [self.value, self.numbers, entries, most, mean]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_every_kind_of_state_over_several_epochs(jobs: Jobs, backend: str) -> None:
    dice, models = random.Random(7), defaultdict[str, Model](Model)
    expected = defaultdict(list)
    for _ in range(5):
        records = []
        for _ in range(25):
            record = (dice.choice("abcd"), dice.choice(["add"] * 5 + ["replace", "clear"]),
                      dice.randrange(100))  # fmt: skip
            records.append(dict(zip(("k", "op", "n"), record, strict=True)))
            k, op, n = record
            expected[k].append(json.dumps(models[k].apply(op, n)))
        jobs.feed("events", *records)
    env = jobs.env().set_state_backend(backend)
    keyed = jobs.files(env, "events", SCHEMA).key_by("k")
    declared, opened = CollectSink(), CollectSink()
    keyed.process(Everything(), "k string, text string").uid("declared").sink_to(declared)
    keyed.process(InOpen(), "k string, text string").uid("opened").sink_to(opened)
    report = env.execute("job", bounded=True)
    assert len(report.epochs) == 5
    for sink in (declared, opened):
        found = defaultdict(list)
        for k, text in sink.results:
            found[k].append(text)
        assert found == expected


KEYS: dict[str, tuple[str, list[Any]]] = {
    "text": ("string", ["", "nul\0nul", "\0", "Zoë", "Zoe\u0308", "K" * 2**20, "k" * 511, " "]),
    "number": ("bigint", [0, -1, 2**63 - 1, -(2**63), 42]),
    "day": ("date", [date(1970, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    "amount": ("decimal(20,3)", [Decimal("0"), Decimal("-1.5"), Decimal("99999999999999999.999")]),
    "at": (
        "timestamp",
        [datetime(2024, 7, 1, 12, 30, 0, 1, UTC), datetime(1950, 1, 1, tzinfo=UTC)],
    ),
    "data": ("binary", [b"", b"\0", b"\xff\xfe", b"x" * 1000]),
    "flag": ("boolean", [True, False]),
}
ODD = "i bigint, " + ", ".join(f"{name} {kind}" for name, (kind, _) in KEYS.items())
TOGETHER = ("text", "number", "day", "flag")


class CountKeys(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)
    seen = ListStateDescriptor("seen", int)

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.seen.add(n)
        assert list(self.seen.get()) == list(range(1, n + 1))
        key, wanted = ctx.get_current_key(), tuple(value[c] for c in self.columns)
        assert key == (wanted if len(wanted) > 1 else wanted[0])
        yield value.i, n


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_odd_keys_are_told_apart_and_found_again(jobs: Jobs, backend: str) -> None:
    """By column, by function and as part of a tuple, in two runs of three rounds each."""
    rows = [(i, *(keys[i % len(keys)] for _, keys in KEYS.values())) for i in range(8)] * 6
    names = ["i", *KEYS]
    groups = [*((name,) for name in KEYS), TOGETHER]
    for half in (0, 24):
        env, sinks = jobs.env(parallelism=3).set_state_backend(backend), {}
        stream = jobs.given(env, "rows", rows[half : half + 24], ODD)
        for columns in groups:
            types = ", ".join(f"{name} {KEYS[name][0]}" for name in columns)
            one = KEYS[columns[0]][0] if len(columns) == 1 else types
            ways = {
                "columns": stream.key_by(*columns),
                "function": stream.key_by(key_of(columns), key_type=one),
            }
            for way, keyed in ways.items():
                out = keyed.process(CountKeys(columns), "i bigint, n bigint").uid(f"{way} {types}")
                sinks[columns, way] = CollectSink()
                out.sink_to(sinks[columns, way]).uid(f"{way} {types} out")
        env.execute("job", bounded=True)
        for (columns, way), sink in sinks.items():
            places, seen, wanted = [names.index(c) for c in columns], Counter[Any](), []
            for row in rows[: half + 24]:
                key = tuple(row[p] for p in places)
                seen[key] += 1
                wanted.append((row[0], seen[key]))
            assert sorted(sink.results) == sorted(wanted[half:]), f"{columns} by {way}"


def key_of(columns: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(columns) == 1:
        return lambda row: row[columns[0]]
    return lambda row: tuple(row[c] for c in columns)


class Keep(KeyedProcessFunction):
    text = ValueStateDescriptor("text", str)
    parts = MapStateDescriptor("parts", int, bytes)

    def process_element(self, value: Any, ctx: Any) -> Any:
        before = self.text.value()
        yield value.k, None if before is None else len(before), len(list(self.parts.keys()))
        size = int(value.k) << 20
        assert before is None or before == "ä" * (size // 2)
        self.text.update("ä" * (size // 2))
        self.parts.put(value.n, bytes([value.n % 256]) * size)
        assert all(v == bytes([n % 256]) * size for n, v in self.parts.items())


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_values_of_some_mib(jobs: Jobs, backend: str) -> None:
    for n in range(2):
        jobs.feed("events", *({"k": k, "n": n} for k in ("1", "8")))
    env, sink = jobs.env().set_state_backend(backend), CollectSink()
    keyed = jobs.files(env, "events", "k string, n bigint").key_by("k")
    keyed.process(Keep(), "k string, before bigint, parts bigint").uid("keep").sink_to(sink)
    env.execute("job", bounded=True)
    assert {tuple(row) for row in sink.results} == {
        ("1", None, 0), ("1", 2**19, 1), ("8", None, 0), ("8", 2**22, 1),
    }  # fmt: skip
