"""No link inside a storage leads out of it, whatever the operation."""

from collections.abc import Callable
from pathlib import Path

import pytest

from turnback.errors import StorageError
from turnback.storage.base import Storage
from turnback.storage.local import LocalStorage

Operation = Callable[[Storage, str], object]
OPERATIONS: dict[str, Operation] = {
    "put": lambda storage, path: storage.put(path, b"evil"),
    "put_if_absent": lambda storage, path: storage.put_if_absent(path, b"evil"),
    "get": lambda storage, path: storage.get(path),
    "delete": lambda storage, path: storage.delete(path),
    "list": lambda storage, path: storage.list(path),
    "sizes": lambda storage, path: storage.sizes(path),
    "folders": lambda storage, path: storage.folders(path),
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    directory = tmp_path / "outside"
    (directory / "sub").mkdir(parents=True)
    (directory / "secret").write_bytes(b"secret")
    return directory


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    directory = tmp_path / "root"
    (directory / "a").mkdir(parents=True)
    (directory / "a/real").write_bytes(b"real")
    (directory / "a/out").symlink_to(outside)
    (directory / "a/relative").symlink_to("../../outside")
    (directory / "a/file").symlink_to(outside / "secret")
    (directory / "a/dangling").symlink_to(outside / "new")
    (directory / "a/inside").symlink_to("real")
    return directory


def snapshot(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "path", ["a/out/secret", "a/out/sub/new", "a/relative/secret", "a/out/sub/deep/er"]
)
def test_a_linked_directory_is_not_entered(
    tmp_path: Path, root: Path, operation: str, path: str
) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(StorageError, match="symbolic link"):
        OPERATIONS[operation](LocalStorage(root), path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("path", ["a/out", "a/file", "a/dangling", "a/inside"])
def test_a_link_is_no_file(tmp_path: Path, root: Path, operation: str, path: str) -> None:
    before = snapshot(tmp_path)
    with pytest.raises(StorageError, match="symbolic link"):
        OPERATIONS[operation](LocalStorage(root), path)
    assert snapshot(tmp_path) == before


def test_a_listing_with_a_link_in_it_fails_rather_than_leave_it_out(root: Path) -> None:
    with pytest.raises(StorageError, match=r"a/(out|relative|file|dangling|inside)"):
        LocalStorage(root).list()


def test_a_link_is_no_folder(root: Path) -> None:
    (root / "a/real folder").mkdir()
    (root / "a/.turnback-tmp-x").mkdir()
    assert LocalStorage(root).folders("a") == ["real folder"]


def test_links_on_the_way_to_the_root_are_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to("disk")
    storage = LocalStorage(tmp_path / "root")
    storage.put("a", b"1")
    assert (tmp_path / "disk/a").read_bytes() == b"1"
    assert storage.list() == ["a"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_root_whose_target_is_gone_is_not_an_empty_storage(
    tmp_path: Path, operation: str
) -> None:
    (tmp_path / "root").symlink_to("unmounted")
    with pytest.raises(StorageError, match="link to a directory that does not exist"):
        OPERATIONS[operation](LocalStorage(tmp_path / "root"), "a")
    assert not (tmp_path / "unmounted").exists()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_root_that_became_a_file_is_not_an_empty_storage(tmp_path: Path, operation: str) -> None:
    storage = LocalStorage(tmp_path / "root")
    (tmp_path / "root").write_bytes(b"")
    with pytest.raises(StorageError, match="not a directory"):
        OPERATIONS[operation](storage, "a")
