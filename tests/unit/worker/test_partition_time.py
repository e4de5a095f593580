"""Watermarks of a source with partitions: the slowest of them counts."""

from types import SimpleNamespace

import numpy as np
import pytest

from manual_clock import ManualClock
from turnback.program.time import MIN_TIME, WatermarkStrategy
from turnback.spark.event_time import EventTime
from turnback.spark.sources import partition_hashes, spark_hash
from turnback.worker.time import PARTITION, EpochTime, Segment, Stamps, TaskTime, advance

FAST, SLOW, SILENT = 1, 2, 3
ALL = ((FAST, SLOW, SILENT),)


def heard(partition: int, greatest: int) -> Segment:
    return Segment(partition, "time", (0, 0), greatest, partition)


def after(time: EpochTime, *segments: Segment) -> int:
    return advance(time, segments)[0]["time"]


def test_the_slowest_partition_counts():
    time = EpochTime(partitioned=((FAST, SLOW),))
    assert after(time, heard(FAST, 900), heard(SLOW, 100)) == 100


def test_a_partition_that_nothing_was_heard_of_is_waited_for():
    assert after(EpochTime(partitioned=ALL), heard(FAST, 900), heard(SLOW, 100)) == MIN_TIME


def test_a_partition_that_is_new_does_not_turn_time_back():
    known = {"time": {FAST: 900, SLOW: 500}}
    time = EpochTime(greatest={"time": 500}, partitions=known, partitioned=ALL)
    greatest, partitions = advance(time, [heard(SILENT, 10), heard(SLOW, 800)])
    assert greatest == {"time": 500}
    assert partitions == {"time": {FAST: 900, SLOW: 800, SILENT: 500}}


def test_sources_of_other_partitions_are_not_waited_for():
    assert after(EpochTime(partitioned=((FAST,), (SLOW,))), heard(FAST, 900)) == 900


def test_files_beside_partitions_go_by_their_order_as_ever():
    time = EpochTime()
    assert after(time, Segment(1, "time", (0, 0), 100), Segment(2, "time", (1, 0), 50)) == 100


# -- in a task


def stamps_of(time: TaskTime, partition: int, times: list[int]) -> Stamps:
    time.enter(partition, PARTITION)
    return time.stamp("time", np.array(times, np.int64))


def marks(epoch: EpochTime, read: dict[int, list[int]]) -> dict[int, list[int]]:
    """The watermark at each element, when all of an epoch are read by one task."""
    time = TaskTime({"time": 0})
    time.begin(epoch, 1, 0, 0, ordered=True)
    stamps = {partition: stamps_of(time, partition, times) for partition, times in read.items()}
    time.learn(time.own_segments())
    return {partition: time.marks(each).tolist() for partition, each in stamps.items()}


def test_with_one_partition_every_element_moves_time():
    assert marks(EpochTime(partitioned=((FAST,),)), {FAST: [10, 30, 20]}) == {
        FAST: [MIN_TIME, 9, 29]
    }


def test_an_element_is_not_ahead_of_what_other_partitions_had_before():
    known = {"time": {FAST: 50, SLOW: 40}}
    epoch = EpochTime(greatest={"time": 40}, partitions=known, partitioned=((FAST, SLOW),))
    found = marks(epoch, {FAST: [100, 200], SLOW: [45, 70, 60]})
    # The fast one waits for the slow one; that may come as far as the fast one was.
    assert found == {FAST: [39, 39], SLOW: [39, 44, 49]}


def test_no_watermark_at_an_element_is_beyond_that_of_the_epoch():
    known = {"time": {FAST: 50, SLOW: 40}}
    epoch = EpochTime(greatest={"time": 40}, partitions=known, partitioned=((FAST, SLOW),))
    read = {FAST: [100], SLOW: [60, 41]}
    end = after(epoch, heard(FAST, 100), heard(SLOW, 60)) - 1
    assert all(mark <= end for each in marks(epoch, read).values() for mark in each)


# -- on the driver


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def event_time(clock: ManualClock, idle_ms: int | None = None, restored=None) -> EventTime:
    strategy = WatermarkStrategy(0, "at", idle_ms)
    plan = SimpleNamespace(strategies={"time": strategy}, operators=lambda: ())
    return EventTime(plan, clock, restored)


def test_the_driver_goes_by_the_slowest_partition_too(clock):
    time = event_time(clock)
    time.begin({}, ((FAST, SLOW),), ended=False)
    time.advance([heard(FAST, 900)], None)
    assert time.watermarks() == {}
    time.begin({}, None, ended=False)
    time.advance([heard(SLOW, 100)], None)
    assert time.watermarks() == {"time": 99}


def test_after_a_restore_all_partitions_begin_at_the_watermark(clock):
    time = event_time(clock, restored={"time": 99})
    time.begin({}, ((FAST, SLOW),), ended=False)
    time.advance([heard(FAST, 900)], None)
    assert time.watermarks() == {"time": 99}


def test_an_idle_partition_is_not_waited_for_until_it_is_back(clock):
    time = event_time(clock, idle_ms=1000)
    time.begin({}, ((FAST, SLOW),), ended=False)
    time.advance([heard(FAST, 900), heard(SLOW, 100)], None)
    clock.advance(900)
    time.begin({}, None, ended=False)
    time.advance([heard(FAST, 1900)], None)
    assert time.watermarks() == {"time": 99}
    clock.advance(600)
    assert time.due_in_s() == 0
    assert time.begin({}, None, ended=False).greatest == {"time": 1900}
    assert time.due_in_s() > 0
    time.advance([heard(SLOW, 200), heard(FAST, 2900)], None)
    assert time.watermarks() == {"time": 1899}


def test_if_all_partitions_are_idle_time_stands_still(clock):
    time = event_time(clock, idle_ms=1000)
    time.begin({}, ((FAST, SLOW),), ended=False)
    time.advance([heard(FAST, 900), heard(SLOW, 100)], None)
    clock.advance(5000)
    assert time.due_in_s() > 0
    assert time.begin({}, None, ended=False).greatest == {"time": 100}


def test_partitions_are_known_by_what_spark_makes_of_them():
    assert partition_hashes('{"likes":{"1":5}}') == (spark_hash("likes 1"),)
    assert partition_hashes('{"logOffset":3}') == partition_hashes(None) == ()
