from __future__ import annotations

import threading
import time
from pathlib import Path

from turnback.spark.idle import WakeSignal

FOR_EVER = 60.0
OPEN = Path("/proc/self/fd")


def waited(wake_signal: WakeSignal, seconds: float) -> bool:
    """Whether the whole time has passed."""
    start = time.monotonic()
    wake_signal.wait(seconds)
    return time.monotonic() - start >= seconds


def test_it_wakes_who_waits_and_who_waits_next() -> None:
    wake_signal = WakeSignal()
    thread = threading.Thread(target=wake_signal.wait, args=(FOR_EVER,))
    thread.start()
    wake_signal.notify()
    thread.join(FOR_EVER)
    assert not thread.is_alive()
    for _ in range(100_000):  # more than a pipe holds
        wake_signal.notify()
    while not waited(wake_signal, 0.01):
        pass
    wake_signal.notify()
    assert not waited(wake_signal, FOR_EVER)
    assert waited(wake_signal, 0.01)
    wake_signal.close()
    wake_signal.close()
    wake_signal.notify()


def test_it_hears_files(tmp_path: Path) -> None:
    wake_signal = WakeSignal()
    assert wake_signal.hears_files
    wake_signal.listen_to([tmp_path, tmp_path / "missing"])
    wake_signal.listen_to([tmp_path])
    assert waited(wake_signal, 0.01)
    (tmp_path / "a").touch()
    assert not waited(wake_signal, FOR_EVER)
    (tmp_path / "a").rename(tmp_path / "b")
    assert not waited(wake_signal, FOR_EVER)
    (tmp_path / "b").unlink()
    assert not waited(wake_signal, FOR_EVER)
    assert waited(wake_signal, 0.01)
    wake_signal.close()


def test_nothing_is_left_open() -> None:
    before = len([*OPEN.iterdir()])
    for _ in range(10):
        WakeSignal().close()
    assert len([*OPEN.iterdir()]) == before
