"""Several processes on one directory, and processes that are killed."""

import multiprocessing
import os
import signal
import time
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

from turnback.errors import AlreadyExistsError, NotFoundError
from turnback.storage.local import LocalStorage

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")
together: Barrier
SIZE = 300_000


def meet(barrier: Barrier) -> None:
    global together
    together = barrier


def claim_slots(root: str, writer: int, slots: int) -> list[int]:
    storage = LocalStorage(root)
    won = []
    together.wait(60)
    for slot in range(slots):
        try:
            storage.put_if_absent(f"log/{slot}", b"%d" % writer)
            won.append(slot)
        except AlreadyExistsError:
            pass
    return won


@pytest.mark.slow
def test_of_racing_processes_exactly_one_wins_each_slot(tmp_path: Path) -> None:
    slots = 60
    with SPAWN.Pool(3, meet, (SPAWN.Barrier(3),)) as pool:
        jobs = [
            pool.apply_async(claim_slots, (str(tmp_path), writer, slots)) for writer in range(3)
        ]
        won = [job.get(60) for job in jobs]
    assert sorted(slot for mine in won for slot in mine) == list(range(slots))
    storage = LocalStorage(tmp_path)
    for writer, mine in enumerate(won):
        assert all(storage.get(f"log/{slot}") == b"%d" % writer for slot in mine)
    assert len(storage.list()) == len(list((tmp_path / "log").iterdir())) == slots


def replace_for_ever(root: str, letter: str) -> None:
    storage = LocalStorage(root)
    while True:
        storage.put("deep/status", letter.encode() * SIZE)


def put_and_delete(root: str, name: str, rounds: int) -> None:
    storage = LocalStorage(root)
    for number in range(rounds):
        storage.put(f"a/b/{name}", b"%d" % number)
        assert storage.get(f"a/b/{name}") == b"%d" % number
        storage.delete(f"a/b/{name}")


@pytest.mark.slow
def test_readers_see_the_old_or_the_new_bytes(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    writers = [
        SPAWN.Process(target=replace_for_ever, args=(str(tmp_path), letter)) for letter in "ab"
    ]
    for writer in writers:
        writer.start()
    try:
        seen: set[bytes] = set()
        end = time.monotonic() + 20
        while len(seen) < 2 or time.monotonic() < end - 18:
            assert time.monotonic() < end
            try:
                data = storage.get("deep/status")
            except NotFoundError:
                assert not seen
                continue
            assert data in (b"a" * SIZE, b"b" * SIZE)
            seen.add(data[:1])
    finally:
        for writer in writers:
            writer.kill()
            writer.join()


@pytest.mark.slow
def test_writers_survive_deletes_that_remove_empty_directories(tmp_path: Path) -> None:
    workers = [
        SPAWN.Process(target=put_and_delete, args=(str(tmp_path), name, 150)) for name in "xyz"
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def leftovers(root: Path) -> list[Path]:
    return [path for path in root.rglob(".turnback-tmp-*") if path.is_file()]


def die_in(root: str, method: str, call: str, after: bool) -> None:
    """Kill this process before or after a system call of a write."""
    real = getattr(os, call)

    def fatal(*args: object, **kwargs: object) -> None:
        if after:
            real(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    storage = LocalStorage(root)
    storage.put("deep/warm", b"")  # so that the first sync is the one of the file
    setattr(os, call, fatal)
    getattr(storage, method)("deep/file", b"n" * SIZE)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("method", "call", "visible"),
    [
        ("put", "write", (False, False)),
        ("put", "fsync", (False, False)),
        ("put", "rename", (False, True)),
        ("put_if_absent", "write", (False, False)),
        ("put_if_absent", "fsync", (False, False)),
        ("put_if_absent", "link", (False, True)),
        ("put_if_absent", "unlink", (True, True)),
    ],
)
def test_a_killed_writer_leaves_all_or_nothing(
    tmp_path: Path, method: str, call: str, visible: tuple[bool, bool], after: bool
) -> None:
    writer = SPAWN.Process(target=die_in, args=(str(tmp_path), method, call, after))
    writer.start()
    writer.join(60)
    assert writer.exitcode == -signal.SIGKILL
    storage = LocalStorage(tmp_path)
    if visible[after]:
        assert storage.list() == ["deep/file", "deep/warm"]
        assert storage.get("deep/file") == b"n" * SIZE
    else:
        assert storage.list() == ["deep/warm"]
    left = len(leftovers(tmp_path))
    assert len(storage.leftovers(remove=True)) == left
    assert leftovers(tmp_path) == []
    storage.put("deep/file", b"next")
    assert storage.get("deep/file") == b"next"


def hang_in_sync(root: str, hanging: Event) -> None:
    storage = LocalStorage(root)
    storage.put("deep/warm", b"")

    def hang(file: int) -> None:
        hanging.set()
        time.sleep(600)

    os.fsync = hang  # type: ignore[assignment]
    storage.put("deep/file", b"n")


def test_the_temporary_file_of_a_live_writer_is_kept(tmp_path: Path) -> None:
    hanging = SPAWN.Event()
    writer = SPAWN.Process(target=hang_in_sync, args=(str(tmp_path), hanging))
    writer.start()
    storage = LocalStorage(tmp_path)
    try:
        assert hanging.wait(60)
        (tmp_path / "deep/.turnback-tmp-dead").write_bytes(b"half a file")
        assert len(leftovers(tmp_path)) == 2
        assert storage.leftovers() == {"deep/.turnback-tmp-dead": 11}
        assert len(leftovers(tmp_path)) == 2
        assert len(storage.leftovers(remove=True)) == 1
        assert storage.leftovers() == {}
        assert len(leftovers(tmp_path)) == 1
    finally:
        writer.kill()
        writer.join()
    assert len(storage.leftovers(remove=True)) == 1
    assert leftovers(tmp_path) == []


def test_a_temporary_file_taken_away_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a clean-up does that hits the instant between creating the file and locking it."""
    real = os.fsync
    taken: list[Path] = []

    def take_away(file: int) -> None:
        for path in leftovers(tmp_path)[: 1 - len(taken)]:
            path.unlink()
            taken.append(path)
        real(file)

    monkeypatch.setattr(os, "fsync", take_away)
    storage = LocalStorage(tmp_path)
    storage.put_if_absent("a", b"1")
    assert len(taken) == 1
    assert storage.get("a") == b"1"
