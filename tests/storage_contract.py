"""What every storage has to do; each test class of a storage inherits it."""

import pytest

from turnback.errors import AlreadyExistsError, NotFoundError, StorageError
from turnback.storage.base import Storage, put_if_absent_or_same

HOSTILE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "a//b",
    "a/",
    "a\0b",
    "a/\0",
    "\ud800",
    ".turnback-tmp-1",
    "a/.turnback-tmp-1",
]
ODD = [
    "a b",
    "a%2Fb",
    "%",
    "%2e%2e",
    "...",
    "..a",
    "a..",
    ".hidden",
    "~",
    "a+b&c=d",
    "a#b?c",
    "b\\c",
    "ünï/cödé",
    "u\u0308",
    "x*y",
    "q\"'<>|",
]


class StorageContract:
    def test_get_returns_what_put_wrote(self, storage: Storage) -> None:
        for data in (b"", b"x", bytes(range(256)) * 1000):
            storage.put("a/b/file", data)
            assert storage.get("a/b/file") == data

    def test_a_large_file(self, storage: Storage) -> None:
        data = bytes(range(251)) * (40 * 1024 * 1024 // 251)
        storage.put("large", data)
        assert storage.get("large") == data
        storage.put_if_absent("large-too", data)
        assert storage.get("large-too") == data

    def test_put_if_absent_writes_once(self, storage: Storage) -> None:
        storage.put_if_absent("a/slot", b"first")
        with pytest.raises(AlreadyExistsError, match="a/slot"):
            storage.put_if_absent("a/slot", b"second")
        assert storage.get("a/slot") == b"first"
        assert storage.list() == ["a/slot"]

    def test_put_if_absent_works_again_after_delete(self, storage: Storage) -> None:
        storage.put_if_absent("a/slot", b"first")
        storage.delete("a/slot")
        storage.put_if_absent("a/slot", b"second")
        assert storage.get("a/slot") == b"second"

    def test_a_missing_file_is_not_found(self, storage: Storage) -> None:
        storage.put("a/b", b"")
        for path in ("nothing", "nothing/at/all", "a", "a/c", "a/b/c"):
            with pytest.raises(NotFoundError, match=path):
                storage.get(path)

    def test_list_is_recursive_sorted_and_relative_to_the_root(self, storage: Storage) -> None:
        paths = ["b", "a/y/1", "a/x/2", "a/x/1", "a-b/1", "ab/1", "a/y.json"]
        for path in paths:
            storage.put(path, b"")
        assert storage.list() == sorted(paths)
        below = ["a/x/1", "a/x/2", "a/y.json", "a/y/1"]
        assert storage.list("a") == below
        assert storage.list("a/") == below
        assert storage.list("a/x") == below[:2]

    def test_list_of_nothing_is_empty(self, storage: Storage) -> None:
        assert storage.list() == []
        assert storage.list("a") == []
        storage.put("a/b", b"")
        assert storage.list("c") == []
        assert storage.list("a/b") == []
        assert storage.list("a/b/c") == []

    def test_sizes_are_those_of_the_listed_files(self, storage: Storage) -> None:
        storage.put("b/2", b"12")
        storage.put("b/1", b"")
        storage.put("a", b"1")
        assert list(storage.sizes().items()) == [("a", 1), ("b/1", 0), ("b/2", 2)]
        assert storage.sizes("b") == {"b/1": 0, "b/2": 2}
        assert storage.sizes("a") == storage.sizes("c") == {}

    def test_folders_are_the_names_directly_below(self, storage: Storage) -> None:
        for path in ("b", "a/y/1", "a/x/z/2", "a/x/1", "a-b/1", "ab/1", "a/y.json"):
            storage.put(path, b"")
        assert storage.folders() == ["a", "a-b", "ab"]
        assert storage.folders("a") == storage.folders("a/") == ["x", "y"]
        assert storage.folders("a/x") == ["z"]
        storage.delete("a-b/1")
        assert storage.folders() == ["a", "ab"]

    def test_folders_of_nothing_are_none(self, storage: Storage) -> None:
        assert storage.folders() == storage.folders("a") == []
        storage.put("a/b", b"")
        for prefix in ("c", "a", "a/b", "a/b/c"):
            assert storage.folders(prefix) == []

    def test_delete_removes_only_that_file(self, storage: Storage) -> None:
        for path in ("a/1", "a/2", "a2"):
            storage.put(path, b"")
        storage.delete("a/1")
        assert storage.list() == ["a/2", "a2"]
        storage.delete("a/2")
        assert storage.list() == ["a2"]

    def test_delete_of_a_missing_file_is_fine(self, storage: Storage) -> None:
        storage.put("a/b", b"")
        for path in ("nothing", "no/thing", "a", "a/b/c"):
            storage.delete(path)
        assert storage.list() == ["a/b"]

    @pytest.mark.parametrize("path", ODD)
    def test_odd_names_come_back_as_they_were(self, storage: Storage, path: str) -> None:
        storage.put(f"{path}/1", b"1")
        storage.put_if_absent(f"d/{path}", b"2")
        assert storage.list() == sorted([f"{path}/1", f"d/{path}"])
        assert storage.list(path) == [f"{path}/1"]
        assert storage.folders() == sorted({path.split("/")[0], "d"})
        assert storage.get(f"{path}/1") + storage.get(f"d/{path}") == b"12"
        storage.delete(f"{path}/1")
        assert storage.list() == [f"d/{path}"]

    @pytest.mark.parametrize("path", HOSTILE)
    def test_hostile_paths_are_refused(self, storage: Storage, path: str) -> None:
        storage.put("a/b", b"")
        with pytest.raises(StorageError, match="not a path inside"):
            storage.put(path, b"")
        with pytest.raises(StorageError, match="not a path inside"):
            storage.put_if_absent(path, b"")
        with pytest.raises(StorageError, match="not a path inside"):
            storage.get(path)
        with pytest.raises(StorageError, match="not a path inside"):
            storage.delete(path)
        if path not in ("", "a/"):
            with pytest.raises(StorageError, match="not a path inside"):
                storage.list(path)
            with pytest.raises(StorageError, match="not a path inside"):
                storage.folders(path)
            with pytest.raises(StorageError, match="not a path inside"):
                storage.sizes(path)
        assert storage.list() == ["a/b"]

    def test_a_file_is_no_directory(self, storage: Storage) -> None:
        storage.put("a/b", b"kept")
        for write in (storage.put, storage.put_if_absent):
            with pytest.raises(StorageError) as failure:
                write("a", b"")
            assert not isinstance(failure.value, AlreadyExistsError)
            with pytest.raises(StorageError) as failure:
                write("a/b/c", b"")
            assert not isinstance(failure.value, AlreadyExistsError)
        assert storage.list() == ["a/b"]
        assert storage.get("a/b") == b"kept"

    def test_claim_tells_our_bytes_from_others(self, storage: Storage) -> None:
        put_if_absent_or_same(storage, "slot", b"ours")
        put_if_absent_or_same(storage, "slot", b"ours")
        with pytest.raises(AlreadyExistsError, match="slot"):
            put_if_absent_or_same(storage, "slot", b"theirs")
        assert storage.get("slot") == b"ours"
