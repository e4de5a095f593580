"""Streams that fall silent and come back: what is given at which watermark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import CollectSink, Duration, KeyedProcessFunction, Types, WatermarkStrategy

EVENT = "of string, at bigint"
SILENT_MS = 2_000


class Told(KeyedProcessFunction):
    """Tells every element and timer, and how far event time has come there."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield f"{value.of}{value.at}", ctx.timer_service().current_watermark()
        ctx.timer_service().register_event_time_timer(value.at + 5)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "timer", timestamp


def begun(tmp_path: Path) -> tuple[LocalEngine, CollectSink]:
    """A job with two streams, both at 10, of which the second may fall silent."""
    env = environment(2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    silent = strategy.with_idleness(Duration.of_millis(1_000))
    x = source(env, "x", EVENT).assign_timestamps_and_watermarks(strategy).uid("time-x")
    y = source(env, "y", EVENT).assign_timestamps_and_watermarks(silent).uid("time-y")
    together = x.union(y).key_by(lambda row: 0, key_type=Types.INT())
    told = collected(together.process(Told(), "what string, at bigint").uid("told"), "out")
    engine = LocalEngine(env.plan(), tmp_path)
    engine.epoch({"x": [("x", 10)], "y": [("y", 10)]})
    return engine, told


AHEAD = [("x", 20), ("x", 40), ("x", 100), ("x", 120)]


@pytest.mark.parametrize("cut", range(len(AHEAD) + 1))
def test_elements_that_have_waited_for_a_silent_stream_move_event_time_one_by_one(
    tmp_path: Path, cut: int
) -> None:
    engine, told = begun(tmp_path)
    engine.epoch({"x": AHEAD[:cut]})
    engine.clock.advance(SILENT_MS)
    engine.epoch({"x": AHEAD[cut:]})
    assert told.results[2:] == [
        ("x20", 9), ("timer", 15), ("x40", 19), ("timer", 25), ("x100", 39), ("timer", 45),
        ("x120", 99), ("timer", 105),
    ]  # fmt: skip
    assert engine.time.watermarks()["told"] == 119


@pytest.mark.parametrize("together", [True, False])
def test_a_stream_that_is_back_is_waited_for_from_its_first_element(
    tmp_path: Path, together: bool
) -> None:
    engine, told = begun(tmp_path)
    engine.clock.advance(SILENT_MS)
    if together:
        engine.epoch({"x": [("x", 20), ("x", 200)], "y": [("y", 25)]})
    else:
        engine.epoch({"y": [("y", 25)]})
        engine.epoch({"x": [("x", 20), ("x", 200)]})
    assert engine.time.watermarks()["told"] == 24
    assert engine.time.due_in_s() > 0
    engine.epoch({"y": [("y", 30)]})
    assert told.results[2:] == [
        ("x20", 9), ("y25", 9), ("timer", 15), ("x200", 19), ("y30", 24), ("timer", 25),
    ]  # fmt: skip
