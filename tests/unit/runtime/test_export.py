from __future__ import annotations

from types import SimpleNamespace

from turnback.runtime import export
from turnback.runtime.storageref import StorageRef
from turnback.state import StateFile

HERE, THERE = StorageRef("memory://here"), StorageRef("memory://there")


def file(
    name: str, length: int = 10, rows: int = 5, groups: tuple[int, int] = (0, 15)
) -> StateFile:
    return StateFile(name, length, "xxh3:0", rows, 1, 1, *groups, ("op",))


def test_every_task_folds_about_as_many_rows(monkeypatch):
    monkeypatch.setattr(export, "SPAN_ROWS", 100)
    files = (file("a", rows=250, groups=(0, 7)), file("b", rows=250, groups=(8, 15)))
    manifest = SimpleNamespace(state=files, max_parallelism=16)
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
