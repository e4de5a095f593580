from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turnback.spark import idle as idle_module
from turnback.spark import idle as module
from turnback.spark.idle import IdleQuery, Watch, _directory

_DEADLINE_S = 30


class FakeLock:
    """Notes who holds it; the query of these tests does not need it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def lock(self) -> None:
        self._lock.acquire()

    def unlock(self) -> None:
        self._lock.release()

    def is_held(self) -> bool:
        return self._lock.locked()


class FakeRelation:
    def __init__(self, name: str, node: str = "StreamingRelation") -> None:
        self._name = name
        self._node = node

    def nodeName(self) -> str:
        return self._node

    def sourceName(self) -> str:
        return self._name


@pytest.fixture(autouse=True)
def soon_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to wait for half a second before a query is kept waiting."""
    monkeypatch.setattr(module, "QUIET_S", 0.05)
    monkeypatch.setattr(module, "ASK_S", 0.2)


@pytest.fixture
def never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries get their lock back for nothing but a reason."""
    monkeypatch.setattr(module, "ASK_S", 10 * _DEADLINE_S)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _rest(*directories: Path) -> None:
    """Make directories look as if nothing had happened in them for long."""
    for directory in directories:
        os.utime(directory, (1_000_000, 1_000_000))


def test_a_directory_in_which_nothing_happens_has_not_changed(tmp_path: Path) -> None:
    _rest(tmp_path)
    watch = Watch([tmp_path])
    assert not watch.has_changed()
    assert not watch.has_changed()


def test_a_new_file_is_noticed_once_it_is_old_enough_to_be_sure(tmp_path: Path) -> None:
    _rest(tmp_path)
    watch = Watch([tmp_path])
    (tmp_path / "new").touch()
    assert watch.has_changed()
    assert watch.has_changed()  # another file could have come since, within the same tick
    _rest(tmp_path)
    assert watch.has_changed()
    assert not watch.has_changed()


def test_files_in_directories_that_come_later_are_noticed(tmp_path: Path) -> None:
    _rest(tmp_path)
    watch = Watch([tmp_path])
    below = tmp_path / "day=1"
    below.mkdir()
    _rest(tmp_path, below)
    os.utime(tmp_path, (2_000_000, 2_000_000))
    assert watch.has_changed()
    assert not watch.has_changed()
    (below / "new").touch()
    assert watch.has_changed()


@pytest.mark.usefixtures("never_asks", "told")
def test_a_query_waits_until_a_file_arrives_in_a_directory_that_came_later(tmp_path: Path) -> None:
    _rest(tmp_path)
    lock = FakeLock()
    with IdleQuery(lock, [tmp_path]).watching():
        _wait_until(lock.is_held)
        below = tmp_path / "day=1"
        below.mkdir()
        _wait_until(lambda: not lock.is_held())
        _rest(tmp_path, below)
        _wait_until(lock.is_held)
        (below / "new").touch()
        _wait_until(lambda: not lock.is_held())


def test_a_directory_that_is_gone_counts_as_changed(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    _rest(files)
    watch = Watch([files])
    files.rmdir()
    assert watch.has_changed()
    assert watch.has_changed()


@pytest.fixture(params=["told by the kernel", "looking"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells what happens in directories, or it does not."""
    if request.param == "looking":
        monkeypatch.setattr(idle_module, "_open_inotify", lambda: None)
    else:
        monkeypatch.setattr(module, "LOOK_S", 10 * _DEADLINE_S)


@pytest.mark.usefixtures("never_asks", "told")
def test_a_query_waits_until_a_file_arrives(tmp_path: Path) -> None:
    _rest(tmp_path)
    lock = FakeLock()
    idle = IdleQuery(lock, [tmp_path])
    with idle.watching():
        _wait_until(lock.is_held)
        (tmp_path / "new").touch()
        _wait_until(lambda: not lock.is_held())
        _rest(tmp_path)
        _wait_until(lock.is_held)
    assert not lock.is_held()


@pytest.mark.usefixtures("never_asks")
def test_a_query_that_has_an_epoch_is_not_kept_waiting(tmp_path: Path) -> None:
    _rest(tmp_path)
    lock = FakeLock()
    idle = IdleQuery(lock, [tmp_path])
    with idle.watching():
        _wait_until(lock.is_held)
        with idle.epoch():
            _wait_until(lambda: not lock.is_held())
            time.sleep(0.2)  # longer than it takes to become quiet
            assert not lock.is_held()
        _wait_until(lock.is_held)


def test_a_query_may_ask_now_and_then_even_if_nothing_is_noticed(tmp_path: Path) -> None:
    _rest(tmp_path)
    lock = FakeLock()
    with IdleQuery(lock, [tmp_path]).watching():
        _wait_until(lock.is_held)
        _wait_until(lambda: not lock.is_held())
        _wait_until(lock.is_held)


def test_only_local_directories_are_watched(tmp_path: Path) -> None:
    assert _directory(FakeRelation(f"FileSource[{tmp_path}]")) == tmp_path
    assert _directory(FakeRelation(f"FileSource[{tmp_path.as_uri()}]")) == tmp_path


@pytest.mark.parametrize(
    "relation",
    [
        FakeRelation("FileSource[s3a://bucket/files]"),
        FakeRelation("FileSource[/tmp/*]"),
        FakeRelation("FileSource[/does/not/exist]"),
        FakeRelation("kafka"),
        FakeRelation("FileSource[/tmp]", node="StreamingRelationV2"),
    ],
)
def test_other_sources_are_not_watched(relation: FakeRelation) -> None:
    assert _directory(relation) is None
