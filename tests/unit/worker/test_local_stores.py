"""Local stores are caches of one job directory, and go when nobody needs them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, collected, environment, source
from services.missing import missing
from turnback import CollectSink, KeyedProcessFunction, ValueStateDescriptor
from turnback.errors import LocalStoreError, StateError
from turnback.state.files import StorageRef
from turnback.storage.directory import DirectoryLock
from turnback.worker import local_state as localstores
from turnback.worker.local_state import (
    UNUSED_S,
    LocalStores,
    NewestDelta,
    StoreOwner,
    all_stores,
    remove_others,
    sweep_unused,
)

JOB = StoreOwner(job="orders", job_id="id1", directory="file:///jobs/orders")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Default places of a machine of its own."""
    (tmp_path / "shm").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(localstores, "_SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(localstores, "_swept", set())
    return tmp_path


def filled(
    owner: StoreOwner = JOB, backend: str = "rocksdb", local_dir: str | None = None
) -> LocalStores:
    """Stores as tasks leave them."""
    stores = LocalStores.of(owner, backend, local_dir)
    for partition in range(2):
        lock = DirectoryLock.take(stores.store(0, partition))
        assert lock is not None
        lock.directory.mkdir(exist_ok=True)
        (lock.directory / "data").write_bytes(b"x" * 10_000)
        lock.release()
    stores.mark_used(owner)
    return stores


def copied(**changed: str) -> StoreOwner:
    fields = {"job": JOB.job, "job_id": JOB.job_id, "directory": JOB.directory}
    return StoreOwner(**(fields | changed))


def age(stores: LocalStores, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(stores.path / "owner.json", (then, then))


def copies_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.copy"))


def test_a_copy_of_the_newest_file_leaves_room_for_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that finds shared memory full is kept on disk from then on."""
    newest = NewestDelta(tmp_path, StorageRef("s3://bucket/jobs/orders"))
    free = shutil.disk_usage(tmp_path)._replace(free=64_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    newest.keep("state/1/a.arrow", b"x" * 1_000)
    assert copies_in(tmp_path) == ["a.arrow.copy"]
    newest.keep("state/1/b.arrow", b"x" * 1_001)
    assert copies_in(tmp_path) == []


def test_nothing_is_left_of_a_copy_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:500])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    newest = NewestDelta(tmp_path, StorageRef("s3://bucket/jobs/orders"))
    newest.keep("state/1/a.arrow", b"x" * 1_000)
    assert copies_in(tmp_path) == []


def test_a_copy_of_a_job_directory_has_stores_of_its_own() -> None:
    here = LocalStores.of(JOB, "rocksdb", "/data")
    there = LocalStores.of(copied(directory="file:///backup/orders"), "rocksdb", "/data")
    again = LocalStores.of(copied(job_id="id2"), "rocksdb", "/data")
    assert len({here.path, there.path, again.path}) == 3
    assert here.path.parent == Path(f"/data/turnback-{os.getuid()}")
    assert here.path.name.startswith("id1-")


def test_the_memory_backend_uses_shared_memory_and_rocksdb_the_disk(machine: Path) -> None:
    assert LocalStores.of(JOB, "hashmap", None).path.is_relative_to(machine / "shm")
    assert LocalStores.of(JOB, "rocksdb", None).path.is_relative_to(machine / "tmp")


def test_only_their_user_can_look_into_them(machine: Path) -> None:
    stores = LocalStores.of(JOB, "rocksdb", str(machine / "shared" / "by all"))
    before = os.umask(0o022)
    try:
        stores.make_private()
        assert stat.S_IMODE(stores.path.parent.stat().st_mode) == 0o700
        stores.path.parent.chmod(0o755)  # as older versions made it
        stores.make_private()
    finally:
        os.umask(before)
    assert stat.S_IMODE(stores.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(stores.path.parents[1].stat().st_mode) == 0o755  # others have theirs there


@pytest.mark.parametrize("prepared", ["link", "foreign", "file"])
def test_a_directory_in_the_hands_of_others_is_refused(machine: Path, prepared: str) -> None:
    own = machine / "local" / f"turnback-{os.getuid()}"
    own.parent.mkdir()
    if prepared == "link":
        (machine / "theirs").mkdir()
        own.symlink_to(machine / "theirs")
    elif prepared == "file":
        own.touch()
    elif os.getuid():
        pytest.skip("only root can give a directory away")
    else:
        own.mkdir()
        os.chown(own, 12345, -1)
    env = environment(1)
    stream = source(env, "src", "key string, n bigint")
    keyed = stream.key_by("key").process(Sum(), "key string, n bigint").uid("sum")
    collected(keyed, "sink")
    engine = LocalEngine(env.plan(), machine / "job", attempt=1, backend="rocksdb")
    engine.local = machine / "local"
    with pytest.raises(StateError, match=r"local state\. Remove it, or set"):
        engine.epoch({"src": [("k", 1)]})


def test_they_say_whose_they_are_and_when_they_were_used() -> None:
    stores = filled()
    assert stores.owner() == JOB
    age(stores, 1800)
    stores.mark_used(JOB)
    assert 1700 < time.time() - stores.last_used_s() < 1900  # touched once an hour at most
    age(stores, 7200)
    stores.mark_used(JOB)
    assert time.time() - stores.last_used_s() < 60
    assert stores.size() >= 20_000
    (stores.path / "owner.json").write_text("{")
    assert stores.owner() is None


def test_all_is_removed_if_nobody_has_it_open() -> None:
    stores = filled()
    assert stores.remove()
    assert not stores.path.exists()
    assert stores.remove()


def test_a_store_that_is_open_stays_and_so_does_its_owner() -> None:
    stores = filled()
    lock = DirectoryLock.take(stores.store(0, 1))
    assert lock is not None
    assert stores.is_open()
    assert not stores.remove()
    assert (stores.store(0, 1) / "data").exists()
    assert not stores.store(0, 0).exists()
    assert stores.owner() == JOB
    lock.release()
    assert not stores.is_open()
    assert stores.remove()
    assert not stores.path.exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    """Otherwise two processes hold the lock on one directory."""
    directory = tmp_path / "a" / "store"
    script = f"""
        import fcntl, os, sys
        from pathlib import Path
        from turnback.storage.directory import DirectoryLock
        real = fcntl.flock
        def late(descriptor, how):
            fcntl.flock = real
            print("opened", flush=True)
            sys.stdin.readline()
            real(descriptor, how)
        fcntl.flock = late
        lock = DirectoryLock.take(Path({str(directory)!r}))
        print(lock is not None, flush=True)
        sys.stdin.readline()
    """
    mine = DirectoryLock.take(directory)
    assert mine is not None
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "opened\n"
        mine.remove()
        mine.release()
        directory.parent.rmdir()
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "True\n"
        assert DirectoryLock.take(directory) is None
        print(file=other.stdin, flush=True)


def test_a_starting_driver_removes_what_its_job_used_before() -> None:
    older, otherwise = filled(copied(job_id="id0")), filled(JOB, "hashmap")
    copy = filled(copied(directory="file:///backup/orders"))
    mine = filled()
    held = filled(copied(job_id="held"))
    lock = DirectoryLock.take(held.store(0, 0))
    assert lock is not None
    remove_others(JOB, "rocksdb", None)
    assert not older.path.exists()
    assert not otherwise.path.exists()
    assert [each.path.exists() for each in (copy, mine, held)] == [True] * 3
    lock.release()


def test_whichever_byte_of_the_owner_is_damaged_a_driver_starts_and_the_owner_is_mended() -> None:
    stores = filled()
    note = stores.path / "owner.json"
    intact = note.read_bytes()
    for place in range(len(intact)):
        damaged = bytearray(intact)
        damaged[place] ^= 0xFF
        note.write_bytes(damaged)
        remove_others(JOB, "rocksdb", None)
        stores.mark_used(JOB)
        assert note.read_bytes() == intact
    assert stores.store(0, 0).exists()


def test_stores_that_nobody_has_used_for_long_go_when_a_worker_starts() -> None:
    mine, used, unused, held = (filled(copied(job_id=name)) for name in ("a", "b", "c", "d"))
    for stores in (mine, unused, held):
        age(stores, UNUSED_S + 60)
    lock = DirectoryLock.take(held.store(0, 1))
    assert lock is not None
    sweep_unused(mine)
    assert [each.path.exists() for each in (mine, used, unused)] == [True, True, False]
    assert (held.store(0, 1) / "data").exists()
    lock.release()
    sweep_unused(mine)
    assert held.path.exists()  # once per process


class Sum(KeyedProcessFunction):
    total = ValueStateDescriptor("total", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.key, self.total.value()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_tasks_of_a_job_and_of_its_copy_share_nothing(machine: Path, backend: str) -> None:
    """The copy has the same id, attempt numbers, epochs and files, on the same machine."""
    unused = filled(copied(job_id="unused"), local_dir=str(machine / "local"))
    age(unused, UNUSED_S + 60)

    def attempt(root: str, number: int, **how: Any) -> tuple[LocalEngine, CollectSink]:
        env = environment(1)
        stream = source(env, "src", "key string, n bigint")
        keyed = stream.key_by("key").process(Sum(), "key string, n bigint").uid("sum")
        sink = collected(keyed, "sink")
        engine = LocalEngine(env.plan(), machine / root, attempt=number, backend=backend, **how)
        engine.local = machine / "local"
        return engine, sink

    first, _ = attempt("original", 1)
    first.epoch({"src": [("k", 1)]})
    shutil.copytree(machine / "original" / "job", machine / "copy" / "job")
    files = first.file_index.live()
    original, results = attempt("original", 2, files=files, epoch=1)
    copy, others = attempt("copy", 2, files=files, epoch=1)
    for _ in range(3):
        copy.epoch({"src": [("k", 1000)]})
        original.epoch({"src": [("k", 1)]})
    assert [n for _, n in results.results] == [2, 3, 4]
    assert [n for _, n in others.results] == [1001, 2001, 3001]
    found = [each.owner() for each in all_stores([str(machine / "local")])]
    assert len(found) == len(set(found)) == 2
    assert not unused.path.exists()


@pytest.fixture
def small_memory(machine: Path) -> Iterator[Path]:
    """A shared memory of one MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "turnback-test", str(machine / "shm")]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        missing("only root can mount a small memory")
    try:
        yield machine / "shm"
    finally:
        subprocess.run(["umount", machine / "shm"], check=True)


class Longest(KeyedProcessFunction):
    text = ValueStateDescriptor("text", str)

    def process_element(self, value: Any, ctx: Any) -> Any:
        if len(value.text) > len(self.text.value() or ""):
            self.text.update(value.text)
        yield value.key, len(self.text.value())


def keeping_texts(root: Path, local: Path, **how: Any) -> tuple[LocalEngine, CollectSink]:
    env = environment(2)
    stream = source(env, "src", "key string, text string")
    sink = collected(stream.key_by("key").process(Longest(), "key string, n bigint").uid("t"), "s")
    engine = LocalEngine(env.plan(), root, backend="hashmap", **how)
    engine.local = local
    return engine, sink


def on_disk(machine: Path) -> list[str]:
    return sorted(path.name for path in (machine / "tmp").rglob("*-on-disk/0-?"))


def test_state_that_outgrows_memory_goes_on_on_disk(
    machine: Path, small_memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, sink = keeping_texts(machine, small_memory)
    keys = [f"k{number}" for number in range(40)]
    for length in (1_000, 20_000, 20_001, 20_002):
        engine.epoch({"src": [(key, "x" * length) for key in keys]})
    engine.epoch({"src": [(key, "") for key in keys]})
    assert {n for _, n in sink.results[-len(keys) :]} == {20_002}
    assert on_disk(machine) == ["0-0", "0-1"]
    assert caplog.text.count("does not fit in memory") == 2  # once for each partition
    assert not list(small_memory.rglob("data.mdb"))  # it is free again, for others
    # Another driver goes on where they are, and only another backend gives them up.
    owner = StoreOwner(job="job", job_id="id", directory=engine.storage.uri)
    remove_others(owner, "hashmap", str(small_memory))
    again, sink = keeping_texts(
        machine, small_memory, attempt=2, files=engine.file_index.live(), epoch=engine.number
    )
    again.epoch({"src": [(key, "") for key in keys]})
    assert {n for _, n in sink.results} == {20_002}
    assert {ack.opened for ack in again.acks.acks if ack.opened} == {"home"}
    remove_others(owner, "rocksdb", None)
    assert on_disk(machine) == []


def test_a_memory_that_is_full_from_the_start(machine: Path, small_memory: Path) -> None:
    others = small_memory / "others"
    with others.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    engine, sink = keeping_texts(machine, small_memory)
    engine.epoch({"src": [("a", "x"), ("b", "x")]})
    assert len(sink.results) == 2
    assert on_disk(machine)


def test_memory_and_disk_that_are_full_are_told(
    machine: Path, small_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_memory))
    engine, _ = keeping_texts(machine, small_memory)
    rows = [(f"k{number}", "x" * 20_000) for number in range(100)]
    engine.epoch({"src": rows})
    with pytest.raises(LocalStoreError, match="if shared memory is full, use the rocksdb backend"):
        engine.epoch({"src": rows})


def test_stores_of_an_older_version_say_by_their_files_when_they_were_used() -> None:
    mine, old, recent = (filled(copied(job_id=name)) for name in ("a", "b", "c"))
    for stores in (old, recent):
        (stores.path / "owner.json").unlink()
    long_ago = time.time() - UNUSED_S - 60
    for path in (old.path, *old.path.rglob("*")):
        os.utime(path, (long_ago, long_ago))
    sweep_unused(mine)
    assert [each.path.exists() for each in (mine, old, recent)] == [True, False, True]


def test_what_another_user_has_put_there_is_not_looked_at(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = filled()
    assert [each.path for each in all_stores([])] == [stores.path]
    moved = machine / "elsewhere"
    stores.path.parent.rename(moved)
    stores.path.parent.symlink_to(moved)
    assert all_stores([]) == []
    stores.path.parent.unlink()
    moved.rename(stores.path.parent)
    (stores.path.parent / "link").symlink_to(machine)
    assert [each.path for each in all_stores([])] == [stores.path]
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    (machine / "tmp" / "turnback-4711" / "theirs").mkdir(parents=True)
    assert all_stores([]) == []
