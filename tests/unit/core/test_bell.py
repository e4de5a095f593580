from __future__ import annotations

import threading
import time
from pathlib import Path

from turnback.spark.idle import Bell

FOR_EVER = 60.0
OPEN = Path("/proc/self/fd")


def waited(bell: Bell, seconds: float) -> bool:
    """Whether the whole time has passed."""
    start = time.monotonic()
    bell.wait(seconds)
    return time.monotonic() - start >= seconds


def test_it_wakes_who_waits_and_who_waits_next() -> None:
    bell = Bell()
    thread = threading.Thread(target=bell.wait, args=(FOR_EVER,))
    thread.start()
    bell.ring()
    thread.join(FOR_EVER)
    assert not thread.is_alive()
    for _ in range(100_000):  # more than a pipe holds
        bell.ring()
    while not waited(bell, 0.01):
        pass
    bell.ring()
    assert not waited(bell, FOR_EVER)
    assert waited(bell, 0.01)
    bell.close()
    bell.close()
    bell.ring()


def test_it_hears_files(tmp_path: Path) -> None:
    bell = Bell()
    assert bell.hears_files
    bell.listen_to([tmp_path, tmp_path / "missing"])
    bell.listen_to([tmp_path])
    assert waited(bell, 0.01)
    (tmp_path / "a").touch()
    assert not waited(bell, FOR_EVER)
    (tmp_path / "a").rename(tmp_path / "b")
    assert not waited(bell, FOR_EVER)
    (tmp_path / "b").unlink()
    assert not waited(bell, FOR_EVER)
    assert waited(bell, 0.01)
    bell.close()


def test_nothing_is_left_open() -> None:
    before = len([*OPEN.iterdir()])
    for _ in range(10):
        Bell().close()
    assert len([*OPEN.iterdir()]) == before
