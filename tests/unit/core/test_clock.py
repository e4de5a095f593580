import time

import pytest

from manual_clock import ManualClock
from turnback.core.units import Clock, SystemClock


def test_the_system_clock_tells_the_time() -> None:
    clock: Clock = SystemClock()
    before = clock.monotonic()
    assert abs(clock.now_ms() - time.time() * 1000) < 5_000
    clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.01
    clock.sleep(-1)


def test_the_manual_clock_moves_when_told() -> None:
    clock = ManualClock(now_ms=1_000)
    other: Clock = clock
    assert (other.now_ms(), other.monotonic()) == (1_000, 0)
    clock.advance(250)
    assert (other.now_ms(), other.monotonic()) == (1_250, 0.25)
    other.sleep(1.5)
    assert (other.now_ms(), other.monotonic()) == (2_750, 1.75)


def test_the_wall_clock_may_jump_back_and_monotonic_time_does_not() -> None:
    clock = ManualClock(now_ms=10_000)
    clock.set_now_ms(500)
    assert (clock.now_ms(), clock.monotonic()) == (500, 0)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)
