"""Jobs that are large in one respect, each with the answer it must give.

Every case runs a job over some files, each of which is an epoch, and then once more over one file
that is new, with empty local stores: state must come back from its files.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.engines import spark_session
from benchmarks.job_memory import JobMemory
from benchmarks.limit_trial import Case, LimitTrial
from benchmarks.result import check
from benchmarks.saved import directory_bytes
from turnback import (
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
)

EPOCHS = 4
KEYS = 100
COUNTED = "k string, n bigint"


def _keys(epoch: int) -> pa.Table:
    return pa.table({"k": [f"key-{i}" for i in range(KEYS)], "n": [epoch] * KEYS})


def _counts(trial: LimitTrial, build: Callable[[DataStream], DataStream], first: int) -> None:
    """Every key once an epoch; what comes out must be `first` in the first epoch, then one more."""
    for epoch in range(EPOCHS):
        trial.feed(_keys(epoch))
    found = trial.run(COUNTED, build)
    trial.feed(_keys(EPOCHS))
    found += trial.run(COUNTED, build)
    expected = [(f"key-{i}", first + epoch) for i in range(KEYS) for epoch in range(EPOCHS + 1)]
    check("counts", sorted(map(tuple, found)), sorted(expected))


def operators(trial: LimitTrial, size: int) -> None:
    """Functions one after the other in one level."""

    def build(events: DataStream) -> DataStream:
        for i in range(size):
            events = events.map(lambda row: Row(row.k, row.n + 1), COUNTED).uid(f"map-{i}")
        return events

    _counts(trial, build, size)


class Count(KeyedProcessFunction):
    """Gives the number of elements of the key, plus what it was made with, for each of them."""

    count = ValueStateDescriptor("count", int)

    def __init__(self, number: int) -> None:
        self.number = number

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        yield Row(value.k, n + self.number)


def levels(trial: LimitTrial, size: int) -> None:
    """Keyed functions one after the other, each behind a shuffle of its own."""

    def build(events: DataStream) -> DataStream:
        for i in range(size):
            events = events.key_by("k").process(Count(i), COUNTED).uid(f"count-{i}")
        return events

    _counts(trial, build, size)


class ManyStates(KeyedProcessFunction):
    """Adds one to each of its states, and gives the least of them, which is that of all."""

    def __init__(self, size: int) -> None:
        self.size = size

    def open(self, runtime_context: RuntimeContext) -> None:
        self.states = [
            runtime_context.get_state(ValueStateDescriptor(f"state-{i}", Types.LONG()))
            for i in range(self.size)
        ]

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        for state in self.states:
            state.update((state.value() or 0) + 1)
        counts = {state.value() for state in self.states}
        yield Row(value.k, counts.pop() if len(counts) == 1 else -1)


def states(trial: LimitTrial, size: int) -> None:
    """States in one function, all of them read and written for every element."""
    _counts(trial, lambda events: _many_states(events, size, 0), 1)


def states_of_functions(trial: LimitTrial, size: int) -> None:
    """The same number of states, in functions of 10 side by side."""

    def build(events: DataStream) -> DataStream:
        first, *others = [_many_states(events, 10, i) for i in range(size // 10)]
        return first.union(*others).key_by("k").process(Least(size // 10), COUNTED).uid("least")

    _counts(trial, build, 1)


class Least(KeyedProcessFunction):
    """Gives what all of some inputs say, once all of them have; -1 if they differ."""

    seen = ListStateDescriptor("seen", int)

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        self.seen.add(value.n)
        seen = self.seen.get()
        if len(seen) == self.inputs:
            self.seen.clear()
            yield Row(value.k, seen[0] if len(set(seen)) == 1 else -1)


def _many_states(events: DataStream, size: int, number: int) -> DataStream:
    return events.key_by("k").process(ManyStates(size), COUNTED).uid(f"many-{number}")


def key_groups(trial: LimitTrial, size: int) -> None:
    """Key groups of a keyed function."""
    trial.max_parallelism = size
    _counts(trial, lambda events: events.key_by("k").process(Count(0), COUNTED).uid("count"), 1)


class Elements(KeyedProcessFunction):
    """Adds elements to the list of the key, one by one or all at once; `how` is "read" to sum."""

    elements = ListStateDescriptor("elements", int)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        if value.k == "add":
            for i in range(value.n):
                self.elements.add(i)
        elif value.k == "add_all":
            self.elements.add_all(range(value.n))
        found = self.elements.get() if value.k == "read" else []
        yield Row(str(sum(found)), len(found))


class Entries(KeyedProcessFunction):
    """The same with the entries of a map."""

    entries = MapStateDescriptor("entries", int, int)
    size = ValueStateDescriptor("size", int)

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        found: Sequence[int] = []
        if value.k == "read":
            found = self.entries.values()
        else:
            start = self.size.value() or 0
            for i in range(value.n):
                self.entries.put(start + i, i)
            self.size.update(start + value.n)
        yield Row(str(sum(found)), len(found))


def _one_key(trial: LimitTrial, size: int, function: KeyedProcessFunction) -> None:
    """Half of what one key holds in two epochs one by one, the rest in two at once; then read."""

    def build(events: DataStream) -> DataStream:
        return events.key_by(lambda row: 1, int).process(function, COUNTED).uid("hot")

    quarter = size // 4
    for how in ("add", "add", "add_all", "add_all"):
        trial.feed(pa.table({"k": [how], "n": [quarter]}))
    trial.run(COUNTED, build)
    trial.feed(pa.table({"k": ["read"], "n": [0]}))
    (read,) = trial.run(COUNTED, build)
    check("elements", read.n, 4 * quarter)
    check("their sum", int(read.k), 4 * sum(range(quarter)))


def list_elements(trial: LimitTrial, size: int) -> None:
    """Elements in the list of one key."""
    _one_key(trial, size, Elements())


def map_entries(trial: LimitTrial, size: int) -> None:
    """Entries in the map of one key."""
    _one_key(trial, size, Entries())


def _bytes(number: int, size: int) -> bytes:
    """Bytes that compression makes nothing of, the same for the same number."""
    return np.random.default_rng(number).bytes(size)


class LargeValues(KeyedProcessFunction):
    """Checks the value of the epoch before, and puts another one in its place."""

    large = ValueStateDescriptor("large", bytes)

    def __init__(self, size: int) -> None:
        self.size = size

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        before = self.large.value()
        if before is not None and before != _bytes(value.n - 1, self.size):
            yield Row("wrong", -1)
        self.large.update(_bytes(value.n, self.size))
        yield Row(value.k, value.n)


def values(trial: LimitTrial, size: int) -> None:
    """Bytes in one value; 8 keys have one each."""

    def build(events: DataStream) -> DataStream:
        return events.key_by("k").process(LargeValues(size), COUNTED).uid("large")

    rows: list[Row] = []
    for epoch in range(EPOCHS):
        trial.feed(_keys(epoch)[:8])
    rows += trial.run(COUNTED, build)
    trial.feed(_keys(EPOCHS)[:8])
    rows += trial.run(COUNTED, build)
    expected = [(f"key-{i}", epoch) for i in range(8) for epoch in range(EPOCHS + 1)]
    check("rows", sorted(map(tuple, rows)), sorted(expected))


LARGE_ROWS = 40
"""Of 64 MiB: more than the 2 GiB that a column of an Arrow batch may hold."""


class Checksum(KeyedProcessFunction):
    """Gives the checksum of a large element."""

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        yield Row(value.k, zlib.crc32(value.data))


def large_records(trial: LimitTrial, size: int) -> None:
    """Bytes in one element, 40 of them in an epoch: from the source through a shuffle."""
    # Spark's Parquet reader decodes so many rows at once, 4,096 by default, in the JVM's heap.
    trial.spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", "2")
    data = [_bytes(i, size) for i in range(4)]
    chosen = [i % 4 for i in range(LARGE_ROWS)]
    table = pa.table({"k": [f"key-{i}" for i in chosen], "data": [data[i] for i in chosen]})
    _checksums(trial, "k string, data binary", table, data, lambda events: events)


def large_output(trial: LimitTrial, size: int) -> None:
    """Bytes in one element, 40 of them made in one epoch from small ones, through a shuffle."""
    table = pa.table({"k": [f"key-{i % 4}" for i in range(LARGE_ROWS)]})

    def enlarge(events: DataStream) -> DataStream:
        def large(row: Row) -> Row:
            return Row(row.k, _bytes(int(row.k[4:]), size))

        return events.map(large, "k string, data binary").uid("enlarge")

    _checksums(trial, "k string", table, [_bytes(i, size) for i in range(4)], enlarge)


def _checksums(
    trial: LimitTrial,
    schema: str,
    table: pa.Table,
    data: list[bytes],
    before: Callable[[DataStream], DataStream],
) -> None:
    def build(events: DataStream) -> DataStream:
        return before(events).key_by("k").process(Checksum(), COUNTED).uid("checksum")

    trial.feed(table)
    trial.feed(table)
    rows = trial.run(schema, build)
    expected = [(f"key-{i % 4}", zlib.crc32(data[i % 4])) for i in range(2 * LARGE_ROWS)]
    check("checksums", sorted(map(tuple, rows)), sorted(expected))


def key_bytes(trial: LimitTrial, size: int) -> None:
    """Bytes in one key; 100 keys."""
    keys = [f"{i}-" + "x" * size for i in range(KEYS)]
    for epoch in range(EPOCHS):
        trial.feed(pa.table({"k": keys, "n": [epoch] * KEYS}))

    def build(events: DataStream) -> DataStream:
        counts = events.key_by("k").process(Count(0), COUNTED).uid("count")
        return counts.map(lambda row: Row(row.k.split("-")[0], row.n), COUNTED).uid("short")

    rows = trial.run(COUNTED, build)
    trial.feed(pa.table({"k": keys, "n": [0] * KEYS}))
    rows += trial.run(COUNTED, build)
    expected = [(str(i), n) for i in range(KEYS) for n in range(1, EPOCHS + 2)]
    check("counts", sorted(map(tuple, rows)), sorted(expected))


def columns(trial: LimitTrial, size: int) -> None:
    """Columns of the rows that are shuffled; all of them are read, and given on."""
    names = [f"c{i}" for i in range(size)]
    schema = "k string, " + ", ".join(f"{name} bigint" for name in names)

    class Sum(KeyedProcessFunction):
        count = ValueStateDescriptor("last", Types.ROW_NAMED(names, [Types.LONG()] * size))

        def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
            before = self.count.value()
            now = (
                value[1:]
                if before is None
                else [a + b for a, b in zip(before, value[1:], strict=True)]
            )
            self.count.update(Row(*now))
            yield Row(value.k, *now)

    def build(events: DataStream) -> DataStream:
        sums = events.key_by("k").process(Sum(), schema).uid("sum")
        return sums.map(lambda row: Row(row.k, sum(row[1:])), COUNTED).uid("total")

    def feed() -> None:
        every = {name: [i] * KEYS for i, name in enumerate(names)}
        trial.feed(pa.table({"k": [f"key-{i}" for i in range(KEYS)], **every}))

    for _ in range(EPOCHS):
        feed()
    rows = trial.run(schema, build)
    feed()
    rows += trial.run(schema, build)
    total = sum(range(size))
    expected = [(f"key-{i}", total * n) for i in range(KEYS) for n in range(1, EPOCHS + 2)]
    check("sums", sorted(map(tuple, rows)), sorted(expected))


MIB = 1 << 20
CASES: dict[str, tuple[Case, int]] = {
    "operators": (operators, 200),
    "levels": (levels, 50),
    "states": (states, 500),
    "states-of-functions": (states_of_functions, 500),
    "key-groups": (key_groups, 32_768),
    "list": (list_elements, 10_000_000),
    "map": (map_entries, 10_000_000),
    "value": (values, 64 * MIB),
    "record": (large_records, 64 * MIB),
    "output": (large_output, 64 * MIB),
    "key": (key_bytes, MIB),
    "columns": (columns, 1_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--scratch", type=Path, required=True)
    given = parser.parse_args()
    trial = LimitTrial(spark_session.start("limits", given.scratch), given.scratch, given.backend)
    with JobMemory() as memory:
        CASES[given.name][0](trial, given.size)
    found = {
        "first_s": trial.first_s,
        "epoch_s": trial.epoch_s,
        "restore_s": trial.restore_s,
        "worker_bytes": memory.worker_bytes,
        "jvm_bytes": memory.jvm_bytes,
        "driver_bytes": memory.driver_bytes,
        "state_bytes": directory_bytes(given.scratch / "jobs"),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
