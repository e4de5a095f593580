import os
import pickle
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage_contract import StorageContract
from turnback.errors import AlreadyExistsError, NotFoundError, StorageError
from turnback.storage.base import Storage
from turnback.storage.directory import Access
from turnback.storage.local import LocalStorage


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return LocalStorage(tmp_path / "root")


class TestLocalStorage(StorageContract):
    pass


def everything(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_nothing_is_created_before_the_first_write(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "new" / "root")
    assert storage.list() == []
    storage.delete("a")
    with pytest.raises(NotFoundError):
        storage.get("a")
    assert everything(tmp_path) == []
    storage.put("a", b"")
    assert everything(tmp_path) == ["new", "new/root", "new/root/a"]


def test_a_write_leaves_nothing_but_the_file(storage: Storage, tmp_path: Path) -> None:
    storage.put("a/1", b"old")
    storage.put("a/1", b"new")
    storage.put_if_absent("a/2", b"")
    with pytest.raises(AlreadyExistsError):
        storage.put_if_absent("a/2", b"")
    assert everything(tmp_path / "root") == ["a", "a/1", "a/2"]
    assert (tmp_path / "root/a/2").stat().st_nlink == 1


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path, *paths: str) -> list[int]:
    return [stat.S_IMODE((root / path).stat().st_mode) for path in paths]


@pytest.mark.usefixtures("umask")
def test_only_its_user_can_read_what_is_written(storage: Storage, tmp_path: Path) -> None:
    storage.put("d/f", b"")
    storage.put_if_absent("d/g", b"")
    assert modes(tmp_path / "root", ".", "d", "d/f", "d/g") == [0o700, 0o700, 0o600, 0o600]


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("mode", "directory", "file"), [
    (0o2770, 0o2770, 0o660), (0o2755, 0o2750, 0o640), (0o777, 0o700, 0o600),
])  # fmt: skip
def test_a_directory_with_the_group_bit_is_shared_with_its_group(
    tmp_path: Path, mode: int, directory: int, file: int
) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(mode)
    LocalStorage(root).put("d/f", b"")
    LocalStorage(root / "made").put("d/f", b"")
    paths = ("d", "made", "made/d", "d/f", "made/d/f")
    assert modes(root, *paths) == [directory] * 3 + [file] * 2


@pytest.mark.usefixtures("umask")
def test_what_is_written_for_others_has_the_permissions_the_umask_leaves(tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(LocalStorage(tmp_path / "root", Access.UMASK)))
    storage.put("d/f", b"")
    assert modes(tmp_path / "root", ".", "d", "d/f") == [0o755, 0o755, 0o644]


def test_directories_left_empty_are_removed(storage: Storage, tmp_path: Path) -> None:
    storage.put("state/1/x/a", b"")
    storage.put("state/2/b", b"")
    storage.delete("state/1/x/a")
    assert everything(tmp_path / "root") == ["state", "state/2", "state/2/b"]
    storage.delete("state/2/b")
    assert everything(tmp_path) == ["root"]


def test_files_being_written_are_not_listed(storage: Storage, tmp_path: Path) -> None:
    storage.put("a/1", b"")
    (tmp_path / "root/a/.turnback-tmp-0123").write_bytes(b"half")
    (tmp_path / "root/.turnback-tmp-4567").write_bytes(b"half")
    assert storage.list() == ["a/1"]


def test_it_is_the_same_storage_after_pickling(storage: Storage) -> None:
    storage.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.uri == storage.uri
    assert copy.get("a") == b"1"


def test_a_relative_root_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = LocalStorage("here")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    storage.put("a", b"")
    assert everything(tmp_path) == ["here", "here/a", "other"]


def test_no_file_descriptor_is_left_open(storage: Storage, tmp_path: Path) -> None:
    def use() -> None:
        storage.put("a/b/c", b"1")
        for action in (
            lambda: storage.put_if_absent("a/b/c", b"2"),
            lambda: storage.get("a/b"),
            lambda: storage.get("x/y"),
            lambda: storage.put("a/b/c/d", b""),
            lambda: storage.put("a/b", b""),
            lambda: storage.get("n" * 300),
            lambda: storage.put("n" * 300, b""),
        ):
            with pytest.raises(StorageError):
                action()
        storage.list()
        storage.list("a/b/c")
        storage.delete("a/b/c")

    use()
    before = len(list(Path("/proc/self/fd").iterdir()))
    use()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_name_too_long_for_the_file_system_is_a_storage_error(storage: Storage) -> None:
    with pytest.raises(StorageError, match=r"nnn.*ENAMETOOLONG"):
        storage.put("n" * 256, b"")
    storage.put("n" * 255, b"x")
    assert storage.get("n" * 255) == b"x"


def test_special_files_are_not_ours(storage: Storage, tmp_path: Path) -> None:
    storage.put("a", b"")
    os.mkfifo(tmp_path / "root/fifo")
    assert storage.list() == ["a"]
    with pytest.raises(NotFoundError):  # and does not wait for a writer
        storage.get("fifo")


@given(st.text(max_size=12))
@example("a/../b")
@example("a/\x7f")
def test_any_path_is_refused_or_comes_back(
    tmp_path_factory: pytest.TempPathFactory, path: str
) -> None:
    top = tmp_path_factory.mktemp("any")
    storage = LocalStorage(top / "root")
    try:
        storage.put(path, b"x")
    except StorageError:
        assert storage.list() == []
    else:
        assert storage.list() == [path]
        assert storage.get(path) == b"x"
        storage.delete(path)
    assert everything(top) in ([], ["root"])
