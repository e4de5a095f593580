"""Removing many files: at once where the storage can, and one after the other where that fails."""

from __future__ import annotations

import pytest

from coordinator_fakes import memory
from turnback.errors import StorageError
from turnback.storage.base import delete_files
from turnback.storage.open import MemoryStorage


class Deleting:
    """A storage of files a to e, some of which cannot be deleted; `calls` are its requests."""

    def __init__(self, *stuck: str) -> None:
        self.inner: MemoryStorage = memory()
        self.stuck = set(stuck)
        self.calls: list[str] = []
        for name in "abcde":
            self.inner.put(name, b"")

    def delete(self, path: str) -> None:
        self.calls.append(path)
        if path in self.stuck:
            raise StorageError(f"cannot delete {path}")
        self.inner.delete(path)


class DeletingMany(Deleting):
    def delete_many(self, paths) -> None:
        self.calls.append(",".join(paths))
        for path in paths:
            if path in self.stuck:
                raise StorageError(f"cannot delete {path}")
            self.inner.delete(path)


@pytest.mark.parametrize("kind", [Deleting, DeletingMany])
def test_those_that_cannot_be_removed_are_told_and_the_others_are_gone(kind) -> None:
    storage = kind("b", "d")
    failed = delete_files(storage, ["a", "b", "c", "d"])
    assert {path: str(error) for path, error in failed.items()} == {
        "b": "cannot delete b",
        "d": "cannot delete d",
    }
    assert storage.inner.list() == ["b", "d", "e"]


def test_one_call_where_the_storage_can() -> None:
    storage = DeletingMany()
    assert delete_files(storage, ["a", "b", "c"]) == {}
    assert storage.calls == ["a,b,c"]
    assert storage.inner.list() == ["d", "e"]


@pytest.mark.parametrize("kind", [Deleting, DeletingMany])
def test_none_and_one(kind) -> None:
    storage = kind()
    assert delete_files(storage, []) == {}
    assert delete_files(storage, ["a"]) == {}
    assert storage.calls == ["a"]
