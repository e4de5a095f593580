from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pyarrow as pa

from turnback.snapshot import parts as parts_module
from turnback.snapshot import writer as export
from turnback.snapshot.parts import PartsWriter
from turnback.snapshot.table import ROWS
from turnback.state.files import StateFile, StorageRef
from turnback.state.schema import KeySchema, StateSchema
from turnback.storage.local import LocalStorage

HERE, THERE = StorageRef("memory://here"), StorageRef("memory://there")


def file(
    name: str, length: int = 10, rows: int = 5, groups: tuple[int, int] = (0, 15)
) -> StateFile:
    return StateFile(name, length, "xxh3:0", rows, 1, 1, *groups, ("op",))


def test_every_task_folds_about_as_many_rows(monkeypatch):
    monkeypatch.setattr(export, "SPAN_ROWS", 100)
    files = (file("a", rows=250, groups=(0, 7)), file("b", rows=250, groups=(8, 15)))
    manifest = SimpleNamespace(state=files, max_parallelism=16, schemas=(), created_ms=0)
    tasks = export.export_tasks(manifest, HERE, THERE)
    assert len(tasks) == 5
    covered = sorted((f.path, f.first_group, f.last_group) for t in tasks for f in t.files)
    groups = {p: [g for q, a, b in covered if q == p for g in range(a, b + 1)] for p in ("a", "b")}
    assert groups == {"a": list(range(8)), "b": list(range(8, 16))}


def test_small_files_are_copied_together(monkeypatch):
    monkeypatch.setattr(export, "COPY_BYTES", 25)
    manifest = SimpleNamespace(state=tuple(file(str(i)) for i in range(7)))
    tasks = export.copy_tasks(manifest, HERE, THERE)
    assert [[f.path for f in t.files] for t in tasks] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert export.copy_tasks(SimpleNamespace(state=()), HERE, THERE) == []


def test_rows_are_written_as_they_come(monkeypatch, tmp_path):
    """A task holds no more of its share in memory than a part of a file."""
    key = KeySchema(("string",), True)
    schema = StateSchema(uid="op", name="n", kind="value", key=key, value="long")
    there = []

    def live_rows(files, read, limits):
        for group in range(4):
            there.append(len(LocalStorage(tmp_path).list()))
            columns = [pa.array([group], pa.int32())]
            columns += [pa.array([value], pa.binary()) for value in (b"\xa1k", None, b"\x01")]
            yield schema, pa.Table.from_arrays(columns, schema=ROWS)

    monkeypatch.setattr(export, "live_rows", live_rows)
    monkeypatch.setattr(parts_module, "GROUP_ROWS", 1)
    monkeypatch.setattr(export, "PartsWriter", partial(PartsWriter, part_bytes=1))
    ((found, parts),) = export.ExportTask((), HERE, StorageRef(str(tmp_path))).run()
    assert found == schema
    assert [part.first_group for part in parts] == [0, 1, 2, 3]
    assert there == [0, 0, 1, 2]
