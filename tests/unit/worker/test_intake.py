"""State that is taken over is written as files of the job's own, however much of it there is."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

from state_support import opener
from turnback.functions.descriptors import TimeOrderedStateDescriptor
from turnback.snapshot.table import ROWS
from turnback.state.delta import read_delta
from turnback.state.files import StorageRef, storage_of
from turnback.state.merging import live_rows
from turnback.state.schema import KeySchema, StateSchema
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import RowTypeInfo, Types
from turnback.worker import state_import as intake
from turnback.worker.state_import import IntakeTask, WaitingRows

LIST = StateSchema(uid="op", name="l", kind="list", key=KeySchema((), True), value="bytes")


def rows(group, position, value):
    columns = [[group], [b"hot"], [b"%012d" % position], [value]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def taken(tmp_path, tables):
    target = StorageRef(str(tmp_path))
    task = IntakeTask(b"", 0, {}, target, attempt=1, line="1-a", epoch=5)
    files = [task._write(LIST, chunk) for chunk in intake._chunks(tables)]
    return files, lambda file: storage_of(target).get(file.path)


def test_rows_come_in_any_order_of_groups(tmp_path):
    groups = [4, 1, 3, 1, 4, 0]
    files, read = taken(tmp_path, [rows(g, i, b"v%d" % i) for i, g in enumerate(groups)])
    assert [(f.first_group, f.last_group, f.rows) for f in files] == [(0, 4, 6)]
    found = [row for _, table in live_rows(files, opener(read)) for row in table.to_pylist()]
    assert [(row["group"], row["value"]) for row in found] == [
        (0, b"v5"), (1, b"v1"), (1, b"v3"), (3, b"v2"), (4, b"v0"), (4, b"v4")
    ]  # fmt: skip


def test_files_hold_their_rows_in_the_order_of_local_stores(tmp_path):
    given = [
        (g, key, i) for i, g in enumerate([4, 1, 4]) for key in (b"\xa2bb", b"\xa1c", b"\xa1a")
    ]
    tables = [
        rows(group, position, b"v").set_column(1, ROWS.field(1), pa.array([key], pa.binary()))
        for group, key, position in reversed(given)
    ]
    (file,), read = taken(tmp_path, tables)
    found = [row for batch in read_delta(read(file)).batches() for row in batch().to_pylist()]
    order = [(row["group"], row["key"], row["sub"]) for row in found]
    assert order == sorted((g, key, b"%012d" % i) for g, key, i in given)


@pytest.mark.slow
def test_more_than_2_gib_in_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(intake, "FILE_BYTES", 1 << 40)
    large = pa.array([b"x" * (56 << 20)], pa.binary())
    tables = [rows(3, i, b"").set_column(3, ROWS.field(3), large) for i in range(40)]
    files, read = taken(tmp_path, tables)
    assert [file.rows for file in files] == [40]
    sizes = [len(row["value"]) for _, t in live_rows(files, opener(read)) for row in t.to_pylist()]
    assert sizes == [56 << 20] * 40


def test_elements_that_an_older_version_let_wait_get_their_strategies():
    """Those of one key and time, which were in several states, come together."""
    element, place = Types.LONG(), Types.LIST(Types.LONG())
    before = Types.LIST(RowTypeInfo(("time", "element", "place"), (Types.LONG(), element, place)))
    names = ("time", "element", "place", "strategy")
    now = Types.LIST(RowTypeInfo(names, (Types.LONG(), element, place, Types.STRING())))
    write, read = Serializer(before).encode, Serializer(now).decode

    def stored(*entries):
        value = before.describe()
        schema = msgspec.structs.replace(LIST, kind="waiting", value=value)
        columns = [[group, key, b"5", write(value)] for group, key, value in entries]
        table = pa.table([list(column) for column in zip(*columns, strict=True)], schema=ROWS)
        return SimpleNamespace(schema=schema, rows=lambda first, last: [table])

    parts = [
        WaitingRows(stored((1, b"a", [(3, 30, [1])]), (2, b"b", [(4, 40, None)])), "ta"),
        WaitingRows(stored((1, b"a", [(5, 50, [2]), (6, 60, [3])])), "tb"),
    ]
    descriptor = TimeOrderedStateDescriptor("ahead.input1", now)
    table = intake._named_elements(parts, descriptor, (0, 9), {}).to_pylist()
    assert [(row["group"], row["key"], read(row["value"])) for row in table] == [
        (1, b"a", [(3, 30, [1], "ta"), (5, 50, [2], "tb"), (6, 60, [3], "tb")]),
        (2, b"b", [(4, 40, None, "ta")]),
    ]
