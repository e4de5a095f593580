"""What is acknowledged is on disk: the order of system calls, and what happens when they fail."""

import errno
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import turnback
from services.missing import missing
from turnback.errors import AlreadyExistsError, StorageError
from turnback.storage.base import put_if_absent_or_same
from turnback.storage.local import LocalStorage

SOURCE = str(Path(turnback.__file__).parents[1])
TRACED = "fsync,fdatasync,linkat,link,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,write"


class Spy:
    """Records syncs and changes of names, and lets a chosen sync fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.events: list[str] = []
        self.fail_files = self.fail_directories = False
        self._root = str(root)
        for name in ("fsync", "link", "rename", "unlink", "mkdir", "rmdir"):
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "fsync":
                directory = stat.S_ISDIR(os.fstat(args[0]).st_mode)
                what = str(Path(f"/proc/self/fd/{args[0]}").readlink()).replace(self._root, "ROOT")
                self.events.append(f"sync {re.sub('.turnback-tmp-[0-9a-f]+', 'TEMP', what)}")
                if self.fail_directories if directory else self.fail_files:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            else:
                target = args[1] if name in ("link", "rename") else args[0]
                self.events.append(f"{name} {re.sub('.turnback-tmp-.*', 'TEMP', str(target))}")
            return real(*args, **kwargs)

        return call


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch, root: Path) -> Spy:
    root.mkdir()
    LocalStorage(root).put("warm/up", b"")
    return Spy(monkeypatch, root)


def test_put_syncs_the_file_then_renames_then_syncs_the_directory(root: Path, spy: Spy) -> None:
    LocalStorage(root).put("warm/a", b"1")
    assert spy.events == ["sync ROOT/warm/TEMP", "rename a", "unlink TEMP", "sync ROOT/warm"]


def test_put_if_absent_syncs_the_file_then_links_then_syncs_the_directory(
    root: Path, spy: Spy
) -> None:
    LocalStorage(root).put_if_absent("warm/a", b"1")
    assert spy.events == ["sync ROOT/warm/TEMP", "link a", "unlink TEMP", "sync ROOT/warm"]


def test_what_is_reported_as_existing_is_synced(root: Path, spy: Spy) -> None:
    with pytest.raises(AlreadyExistsError):
        LocalStorage(root).put_if_absent("warm/up", b"1")
    assert spy.events[-1] == "sync ROOT/warm"


def test_every_new_directory_is_synced_into_its_parent(root: Path, spy: Spy) -> None:
    LocalStorage(root).put("a/b/c", b"1")
    assert spy.events[:4] == ["mkdir a", "sync ROOT", "mkdir b", "sync ROOT/a"]
    assert spy.events[-1] == "sync ROOT/a/b"


def test_a_directory_someone_else_just_made_is_synced_once(root: Path, spy: Spy) -> None:
    (root / "theirs").mkdir()
    spy.events.clear()
    storage = LocalStorage(root)
    storage.put("theirs/1", b"")
    assert spy.events.count("sync ROOT") == 1
    spy.events.clear()
    storage.put("theirs/2", b"")
    assert spy.events.count("sync ROOT") == 0


def test_a_directory_that_was_removed_and_made_again_is_synced_again(
    root: Path, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems give a new directory the inode of one that was just removed."""
    real = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((real(file)[0], 4711, *[0] * 8)))
    storage = LocalStorage(root)
    storage.put("a/b/c", b"1")
    storage.delete("a/b/c")
    assert names(root) == ["warm"]
    spy.events.clear()
    storage.put("a/b/c", b"1")
    assert spy.events[:4] == ["mkdir a", "sync ROOT", "mkdir b", "sync ROOT/a"]
    storage.delete("a/b/c")
    (root / "a" / "b").mkdir(parents=True)  # by another process
    spy.events.clear()
    storage.put("a/b/c", b"1")
    assert spy.events[:2] == ["sync ROOT", "sync ROOT/a"]


def test_a_new_root_is_synced_with_all_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(monkeypatch, tmp_path)
    LocalStorage(tmp_path / "x/y/root").put("a", b"")
    for directory in ("ROOT", "ROOT/x", "ROOT/x/y", "ROOT/x/y/root"):
        assert f"sync {directory}" in spy.events


def test_delete_is_synced(root: Path, spy: Spy) -> None:
    LocalStorage(root).delete("warm/up")
    assert spy.events[:2] == ["unlink up", "sync ROOT/warm"]


def test_a_failed_file_sync_leaves_the_old_file_and_no_other(root: Path, spy: Spy) -> None:
    storage = LocalStorage(root)
    storage.put("warm/a", b"old")
    spy.fail_files = True
    for write, name in ((storage.put, "warm/a"), (storage.put_if_absent, "warm/b")):
        with pytest.raises(StorageError, match=rf"{name}.*Input/output error.*EIO"):
            write(name, b"new")
    assert names(root / "warm") == ["a", "up"]
    assert storage.get("warm/a") == b"old"


def test_a_failed_directory_sync_is_not_success_and_cannot_be_claimed(root: Path, spy: Spy) -> None:
    storage = LocalStorage(root)
    spy.fail_directories = True
    with pytest.raises(StorageError, match=r"warm/a.*EIO"):
        storage.put("warm/a", b"")
    with pytest.raises(StorageError, match=r"warm/b.*EIO") as failure:
        put_if_absent_or_same(storage, "warm/b", b"ours")
    assert not isinstance(failure.value, AlreadyExistsError)
    spy.fail_directories = False
    put_if_absent_or_same(storage, "warm/b", b"ours")
    assert storage.list() == ["warm/a", "warm/b", "warm/up"]


def test_a_file_system_without_hard_links_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="no hard links"):
        LocalStorage(root).put_if_absent("a", b"")
    assert names(root) == []


def test_a_link_whose_reply_was_lost_on_nfs_is_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def twice(*args: object, **kwargs: object) -> None:
        real(*args, **kwargs)  # type: ignore[arg-type]
        real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", twice)
    LocalStorage(root).put_if_absent("a", b"ours")
    assert names(root) == ["a"]


# The real thing: system calls as the kernel sees them, a full disk, a closed directory.


def strace(code: str, log: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("strace") is None:
        missing("strace is not installed")
    python = [sys.executable, "-c", f"from turnback.storage.local import LocalStorage\n{code}"]
    done = subprocess.run(
        ["strace", "-f", "-y", "-o", log, "-e", f"trace={TRACED}", *options, *python],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "PTRACE" in done.stderr or "ptrace" in done.stderr:
        missing(f"strace may not trace here: {done.stderr.strip()}")
    return done


def test_the_kernel_is_told_in_the_right_order(tmp_path: Path) -> None:
    root = tmp_path / "root"
    code = f"LocalStorage({str(root)!r}).put_if_absent('d/slot', b'bytes')"
    assert strace(code, tmp_path / "log").returncode == 0
    calls = [line for line in (tmp_path / "log").read_text().splitlines() if str(tmp_path) in line]
    order = [
        r"mkdir\(.*root\"",
        rf"fsync\(\d+<{tmp_path}>\)",
        r"mkdirat\(.*\"d\"",
        rf"fsync\(\d+<{root}>\)",
        r"write\(.*\.turnback-tmp-.*\"bytes\"",
        r"fsync\(.*\.turnback-tmp-",
        r"linkat\(.*\"slot\"",
        r"unlinkat\(.*\.turnback-tmp-",
        rf"fsync\(\d+<{root}/d>\)",
    ]
    position = 0
    for pattern in order:
        found = [n for n in range(position, len(calls)) if re.search(pattern, calls[n])]
        assert found, f"{pattern} not after line {position} of\n" + "\n".join(calls)
        position = found[0] + 1


def test_a_sync_refused_by_the_kernel_leaves_the_old_file(tmp_path: Path) -> None:
    root = tmp_path / "root"
    LocalStorage(root).put("d/a", b"old")
    code = f"LocalStorage({str(root)!r}).put('d/a', b'new')"
    # Two syncs make sure of the directories, the third is that of the file.
    done = strace(code, tmp_path / "log", "-e", "inject=fsync:error=EIO:when=3")
    assert done.returncode == 1
    assert re.search(r"StorageError: cannot write d/a in file://.*\(EIO\)", done.stderr)
    assert LocalStorage(root).get("d/a") == b"old"
    assert names(root / "d") == ["a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "turnback-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        missing("only root can mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    storage = LocalStorage(small_disk / "root")
    storage.put("d/a", b"o" * 100_000)
    for write, name in ((storage.put, "d/a"), (storage.put_if_absent, "d/b")):
        with pytest.raises(StorageError, match=rf"{name} in .*No space left.*ENOSPC"):
            write(name, b"n" * 300_000)
    assert storage.get("d/a") == b"o" * 100_000
    assert names(small_disk / "root/d") == ["a"]
    storage.put("d/a", b"n" * 100_000)  # the failed writes hold no space


def test_a_file_size_limit(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "root")
    storage.put("d/a", b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StorageError, match=r"d/a in .*File too large.*EFBIG"):
            storage.put("d/a", b"n" * 20_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert storage.get("d/a") == b"old"
    assert names(tmp_path / "root/d") == ["a"]


CLOSED = """
import os, sys
from turnback.errors import NotFoundError, StorageError
from turnback.storage.local import LocalStorage
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
storage = LocalStorage(sys.argv[1])
calls = [("list",), ("list", "job"), ("list", "job/c"), ("get", "job/c/1"), ("delete", "job/c/1"),
         ("put", "job/c/2", b""), ("put_if_absent", "job/c/1", b"")]
for name, *arguments in calls:
    try:
        print("returned", getattr(storage, name)(*arguments))
    except NotFoundError as error:
        print("missing", error)
    except StorageError as error:
        print("failed", error)
"""


def test_a_closed_directory_is_not_an_empty_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    top = tmp_path_factory.mktemp("closed")
    LocalStorage(top).put("job/c/1", b"1")
    opened = [top, *top.parents]
    modes = {path: path.stat().st_mode for path in opened}
    try:
        for path in opened:
            if not modes[path] & stat.S_IXOTH:
                path.chmod(modes[path] | 0o055)
        (top / "job/c").chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", CLOSED, top],
            env={**os.environ, "PYTHONPATH": SOURCE},
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        for path, mode in modes.items():
            path.chmod(stat.S_IMODE(mode))
        (top / "job/c").chmod(0o755)
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stderr
    assert all(re.match("failed .*EACCES", line) for line in lines), done.stdout
