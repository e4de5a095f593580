"""Key groups of any size: the limits are made small, and once the real ones are passed."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from msgspec.structs import replace

from state_support import opener
from turnback.state import delta
from turnback.state import merging as mergeinput
from turnback.state.delta import (
    COLUMNS,
    WIDE_COLUMNS,
    BuiltDelta,
    DeltaBuilder,
    bounded_batches,
    read_delta,
    write_delta,
)
from turnback.state.merging import live_rows, merge
from turnback.state.schema import KeySchema, StateSchema

pytestmark = pytest.mark.slow

KEY = KeySchema((), True)
VALUE = StateSchema(uid="b", name="v", kind="value", key=KEY, value="long")
MAP = StateSchema(uid="a", name="m", kind="map", key=KEY, value="long", sub="string")
LIST = StateSchema(uid="a", name="l", kind="list", key=KEY, value="long")
LONG = b"long" * 100
KEYS = [b"x", b"y", b"", LONG + b"1", LONG + b"2"]
SUBS = [b"s", b"t", b"", LONG + b"s", LONG + b"t"]


def changes(rng, schema, count):
    """Random changes of one state, clears before the rest."""
    rows = {}
    for _ in range(count):
        key, value = rng.choice(KEYS), rng.choice([None, b"1", b"2" * rng.randrange(80)])
        sub = None if schema is VALUE else rng.choice([None, *SUBS])
        if sub is None and schema is not VALUE:
            value = None
        rows[rng.choice([0, 3, 3, 3, 4]), key, sub] = value
    return sorted(rows.items(), key=lambda row: row[0][2] is not None)


def random_files(seed):
    rng = random.Random(seed)
    blobs, files = {}, []
    for epoch in range(1, rng.randrange(2, 9)):
        builder = DeltaBuilder()
        for schema in (VALUE, MAP, LIST):
            rows = changes(rng, schema, rng.randrange(40))
            builder.add(
                schema,
                [group for (group, _, _), _ in rows],
                [key for (_, key, _), _ in rows],
                [sub for (_, _, sub), _ in rows],
                [value for _, value in rows],
            )
        built = builder.build()
        if built is not None:
            blobs[f"f{epoch}"] = built.data
            files.append(built.file(f"f{epoch}", epoch, 1))
    return files, lambda file: blobs[file.path]


def content(built):
    """The rows of a file; in every group, those of a key after its clear."""
    found = read_delta(built.data)
    rows = [tuple(row.values()) for batch in found.batches() for row in batch().to_pylist()]
    assert [row[1] for row in rows] == sorted(row[1] for row in rows)
    put = set()
    for state, group, key, sub, value in rows:
        if found.schemas[state] is not VALUE and sub is None and value is None:
            assert (state, group, key) not in put
        put.add((state, group, key))
    return built[1:], sorted((found.schemas[row[0]].name, *row[1:]) for row in map(_plain, rows))


def _plain(row):
    return tuple(b"\xffnone" if part is None else part for part in row)


def live(files, read):
    found = [
        (s.name, *row.values()) for s, t in live_rows(files, opener(read)) for row in t.to_pylist()
    ]
    return sorted(map(_plain, found))


@pytest.mark.parametrize("held", [0, 200, 3_000])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]
)
def test_the_result_does_not_depend_on_what_fits_into_memory(monkeypatch, seed, held):
    files, read = random_files(seed)
    plain = [content(merge(files, read, final=final)) for final in (False, True)]
    rows = live(files, read)
    monkeypatch.setattr(mergeinput, "HELD_BYTES", held)
    monkeypatch.setattr(delta, "BATCH_ROWS", 5)
    cut, read_cut = random_files(seed)
    assert [content(merge(cut, read_cut, final=final)) for final in (False, True)] == plain
    assert live(cut, read_cut) == rows


@pytest.mark.parametrize("held", [0, 200, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_a_complete_file_changes_nothing_but_what_is_compared(monkeypatch, seed, held):
    """Its rows are known to be of different entries; without the mark all are compared."""
    files, read = random_files(seed)
    older = files[: len(files) // 2 + 1]
    first, last = older[0].first_epoch, older[-1].last_epoch
    built = merge(older, read, final=True)
    base = replace(built.file("base", last), first_epoch=first, complete=True)
    later = files[len(older) :]

    def read_both(file):
        return built.data if file.path == "base" else read(file)

    monkeypatch.setattr(mergeinput, "HELD_BYTES", held)
    marked, unmarked = [base, *later], [replace(base, complete=False), *later]
    assert live(marked, read_both) == live(unmarked, read_both) == live(files, read)
    for final in (False, True):
        merged = [content(merge(some, read_both, final=final)) for some in (marked, unmarked)]
        assert merged[0] == merged[1]


def test_of_two_complete_files_with_a_group_in_common_the_later_wins():
    blobs, files = {}, []
    for epoch in (1, 2):
        builder = DeltaBuilder()
        builder.add(VALUE, [3, 4], [b"x", b"%d" % epoch], None, [b"%d" % epoch, b"v"])
        built = builder.build()
        blobs[str(epoch)] = built.data
        files.append(replace(built.file(str(epoch), epoch, 1), complete=True))
    rows = live(files, lambda file: blobs[file.path])
    assert [row[2:] for row in rows if row[1] == 3] == [(b"x", b"\xffnone", b"2")]
    assert len(rows) == 3


def test_a_large_group_is_read_a_batch_at_a_time(monkeypatch):
    monkeypatch.setattr(mergeinput, "HELD_BYTES", 10_000)
    monkeypatch.setattr(delta, "BATCH_BYTES", 4_000)
    blobs, files = {}, []
    for epoch in range(1, 5):
        builder = DeltaBuilder()
        subs = [f"{epoch}-{i:03d}".encode() for i in range(100)]
        builder.add(MAP, [7] * 100, [b"hot"] * 100, subs, [b"v" * 1_000] * 100)
        builder.add(VALUE, [9], [b"after"], None, [b"v"])
        built = builder.build()
        blobs[str(epoch)] = built.data
        files.append(built.file(str(epoch), epoch, 1))
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for _, table in live_rows(files, opener(lambda file: blobs[file.path])):
        most, count = max(most, pa.total_allocated_bytes() - before), count + len(table)
    assert count == 401
    assert most < 100_000  # of 400,000


@pytest.mark.parametrize("wide", [True, False])
def test_batches_of_rows_that_lie_behind_the_reach_of_offsets(monkeypatch, wide):
    monkeypatch.setattr(delta, "_MOST_OFFSET", 10)
    monkeypatch.setattr(delta, "BATCH_BYTES", 30)
    columns = [[0] * 20, [1] * 20, [b"key"] * 20, [None, b"sub"] * 10, [b"0123456789", None] * 10]
    schema = WIDE_COLUMNS if wide else COLUMNS
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    table = pa.concat_tables([pa.Table.from_arrays(arrays, schema=schema)] * 2)
    batches = list(bounded_batches(table))
    assert max(batch.num_rows for batch in batches) < 5
    assert pa.Table.from_batches(batches).to_pylist() == table.to_pylist()


@pytest.mark.slow
def test_a_list_of_more_than_2_gib_under_one_key():
    size, blobs, files = 56 << 20, {}, []
    for epoch in range(1, 9):
        value = pa.array([bytes([epoch]) * size], pa.binary())

        def batches(epoch=epoch, value=value):
            for i in range(5):
                where = [pa.array([0], pa.int16()), pa.array([3], pa.int32())]
                names = [pa.array([b], pa.binary()) for b in (b"hot", b"%08d%04d" % (epoch, i))]
                yield pa.record_batch([*where, *names, value], schema=COLUMNS)

        data = write_delta([LIST], batches())
        blobs[str(epoch)] = data
        files.append(BuiltDelta(data, 5, 3, 3, ("a",)).file(str(epoch), epoch, 1))
    before = pa.total_allocated_bytes()
    built = merge(files, lambda file: blobs[file.path], final=False)
    merged = built.file("merged", 8)
    count = most = 0
    for _, table in live_rows([merged], opener(lambda file: built.data)):
        most = max(most, pa.total_allocated_bytes() - before)
        for row in table.to_pylist():
            epoch = count // 5 + 1
            assert row["sub"] == b"%08d%04d" % (epoch, count % 5)
            assert (len(row["value"]), row["value"][-1]) == (size, epoch)
            count += 1
    assert count == built.rows == 40
    assert most < 1 << 30
