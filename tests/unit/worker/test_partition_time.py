"""Watermarks of a source with partitions: each has its own, and the slowest counts."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

from manual_clock import ManualClock
from turnback.checkpoint.source_offsets import open_partitions
from turnback.driver.event_time import EventTime
from turnback.functions.event_time import MAX_TIME, MIN_TIME, WatermarkStrategy
from turnback.plan.sources import partition_number, whole_source
from turnback.worker.event_time import PARTITION, EpochTime, Segment, Stamps, TaskTime, advance

FAST, SLOW, SILENT = 1, 2, 3


def heard(partition: int, greatest: int, place: int = 0) -> Segment:
    return Segment(partition, "time", (0, partition, place), greatest, partition)


def after(time: EpochTime, *segments: Segment) -> int:
    return advance(time, segments)[0]["time"]


def waiting_for(*partitions: int, **greatest: int) -> EpochTime:
    return EpochTime(partitions={"time": dict.fromkeys(partitions, MIN_TIME)}, greatest=greatest)


def test_the_slowest_partition_counts():
    assert after(waiting_for(FAST, SLOW), heard(FAST, 900), heard(SLOW, 100)) == 100


def test_a_partition_that_nothing_was_heard_of_is_waited_for():
    time = waiting_for(FAST, SLOW, SILENT)
    assert after(time, heard(FAST, 900), heard(SLOW, 100)) == MIN_TIME


def test_a_partition_that_is_new_does_not_turn_time_back():
    known = {"time": {FAST: 900, SLOW: 500, SILENT: MIN_TIME}}
    time = EpochTime(greatest={"time": 500}, partitions=known)
    greatest, partitions = advance(time, [heard(SILENT, 10), heard(SLOW, 800)])
    assert greatest == {"time": 500}
    assert partitions == {"time": {FAST: 900, SLOW: 800, SILENT: 10}}


def test_an_idle_partition_is_not_waited_for():
    time = EpochTime(partitions={"time": {FAST: 100, SLOW: 50}}, idle_partitions={"time": (SLOW,)})
    assert after(time, heard(FAST, 900)) == 900
    assert after(time, heard(FAST, 900), heard(SLOW, 60)) == 60


def test_files_go_by_their_order_as_ever():
    first, second = Segment(1, "time", (0, 0), 100), Segment(2, "time", (0, 1), 50)
    assert after(EpochTime(), first, second) == 100


# -- in a task


def stamps_of(time: TaskTime, partition: int, times: list[int], offset: int = 0) -> Stamps:
    time.enter(partition, PARTITION - offset)
    return time.stamp("time", np.array(times, np.int64))


def marks(epoch: EpochTime, read: dict[int, list[int]]) -> dict[int, list[int]]:
    """The watermark at each element, when all of an epoch are read by one task."""
    time = TaskTime({"time": 0})
    time.begin(epoch, 1, 0, 0, ordered=True)
    stamps = {partition: stamps_of(time, partition, times) for partition, times in read.items()}
    time.learn(time.own_segments())
    return {partition: time.marks(each).tolist() for partition, each in stamps.items()}


def test_with_one_partition_every_element_moves_time():
    assert marks(waiting_for(FAST), {FAST: [10, 30, 20]}) == {FAST: [MIN_TIME, 9, 29]}


def test_the_watermark_at_an_element_is_that_of_its_own_partition():
    known = {"time": {FAST: 50, SLOW: 40}}
    epoch = EpochTime(greatest={"time": 40}, partitions=known)
    found = marks(epoch, {FAST: [100, 200], SLOW: [45, 70, 60]})
    assert found == {FAST: [49, 99], SLOW: [39, 44, 69]}


def test_a_partition_that_comes_late_does_not_turn_time_back():
    epoch = EpochTime(greatest={"time": 500}, partitions={"time": {FAST: 500, SLOW: MIN_TIME}})
    assert marks(epoch, {SLOW: [45, 70]}) == {SLOW: [499, 499]}


def test_ranges_of_a_partition_that_several_tasks_read_are_in_its_order():
    """Spark's connector divides a partition if `minPartitions` wants more tasks."""
    tasks, segments, stamps = [], [], {}
    for task, offset, times in [(0, 7, [60, 55]), (1, 5, [10, 90])]:
        time = TaskTime({"time": 0})
        time.begin(waiting_for(FAST), 1, 0, task, ordered=True)
        stamps[offset] = stamps_of(time, FAST, times, offset)
        tasks.append(time)
        segments += time.own_segments()
    time = tasks[0]
    time.learn(segments)
    assert time.marks(stamps[5]).tolist() == [MIN_TIME, 9]
    assert time.marks(stamps[7]).tolist() == [89, 89]


def test_batches_of_a_range_are_one_part():
    time = TaskTime({"time": 0})
    time.begin(waiting_for(FAST), 1, 0, 0, ordered=True)
    stamps_of(time, FAST, [10, 20], 5)
    second = stamps_of(time, FAST, [15], 7)
    (segment,) = time.own_segments()
    assert (segment.partition, segment.greatest) == (FAST, 20)
    assert (second.row.tolist(), second.mark.tolist()) == ([2], [20])


# -- on the driver


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


LIKES = {"likes": ("likes-0", "likes-1")}
LIKES_0, LIKES_1 = map(partition_number, LIKES["likes"])


def event_time(clock, idle_ms=None, restored=None, bound=0, others=()) -> EventTime:
    sources = [SimpleNamespace(uid="likes", partitioned=True)]
    sources += [SimpleNamespace(uid=uid, partitioned=False) for uid in others]
    plan = SimpleNamespace(
        strategies={"time": WatermarkStrategy(bound, "at", idle_ms)},
        operators=lambda: (),
        sources=sources,
        strategy_sources={"time": tuple(source.uid for source in sources)},
    )
    return EventTime(plan, clock, restored)


def test_the_driver_goes_by_the_slowest_partition_too(clock):
    time = event_time(clock)
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900)], None)
    assert time.watermarks() == {"time#likes-0": 899}
    time.begin({}, None, ended=False)
    time.advance([heard(LIKES_1, 100)], None)
    assert time.watermarks() == {"time": 99, "time#likes-0": 899, "time#likes-1": 99}


def test_a_source_is_as_far_as_its_own_slowest_partition(clock):
    time = event_time(clock, others=["files"])
    files = partition_number(whole_source("files"))
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900), heard(LIKES_1, 500)], None)
    assert time.of_operators() == {"likes": 499}  # nothing has come from the other source yet
    time.begin({}, None, ended=False)
    time.advance([heard(files, 100)], None)
    assert time.of_operators() == {"time": 99, "likes": 499, "files": 99}
    time.begin({}, None, ended=True)
    time.advance([], None)
    assert time.of_operators() == dict.fromkeys(["time", "likes", "files"], MAX_TIME)


def test_a_source_does_not_wait_for_its_idle_partitions(clock):
    time = event_time(clock, idle_ms=1_000)
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900), heard(LIKES_1, 500)], None)
    clock.advance(2_000)
    time.begin({}, None, ended=False)
    time.advance([heard(LIKES_0, 950)], None)
    assert time.of_operators() == {"time": 499, "likes": 499}
    time.begin({}, None, ended=False)
    time.advance([heard(LIKES_0, 970)], None)
    assert time.of_operators() == {"time": 969, "likes": 969}


def test_after_a_restore_each_partition_goes_on_where_it_was(clock):
    before = event_time(clock)
    before.begin({}, LIKES, ended=False)
    before.advance([heard(LIKES_0, 900), heard(LIKES_1, 100)], None)
    time = event_time(clock, restored=before.watermarks())
    assert time.watermarks() == before.watermarks()
    epoch = time.begin({}, LIKES, ended=False)
    assert epoch.partitions == {"time": {LIKES_0: 900, LIKES_1: 100}}
    time.advance([heard(LIKES_1, 1000)], None)
    assert time.watermarks()["time"] == 899


def test_another_bound_after_a_restore_moves_no_watermark(clock):
    restored = {"time": 99, "time#likes-0": 899, "time#likes-1": 99}
    assert event_time(clock, restored=restored, bound=50).watermarks() == restored


def test_a_partition_that_was_added_is_waited_for_and_one_that_is_gone_is_not(clock):
    time = event_time(clock)
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900), heard(LIKES_1, 100)], None)
    time.begin({}, {"likes": ("likes-0", "other-0")}, ended=False)
    time.advance([heard(LIKES_0, 1000)], None)
    assert time.watermarks() == {"time": 99, "time#likes-0": 999}
    time.begin({}, None, ended=False)
    time.advance([heard(partition_number("other-0"), 500)], None)
    assert time.watermarks()["time"] == 499


def test_a_source_without_partitions_is_waited_for_like_one(clock):
    time = event_time(clock, others=("files",))
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900), heard(LIKES_1, 800)], None)
    assert "time" not in time.watermarks()
    time.begin({}, LIKES, ended=False)
    time.advance([heard(partition_number("source:files"), 300)], None)
    assert time.watermarks()["time"] == 299
    again = event_time(clock, others=("files",), restored=time.watermarks())
    assert again.watermarks() == time.watermarks()


def test_an_idle_partition_is_not_waited_for_until_it_is_back(clock):
    time = event_time(clock, idle_ms=1000)
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900), heard(LIKES_1, 100)], None)
    clock.advance(900)
    time.begin({}, None, ended=False)
    time.advance([heard(LIKES_0, 1900)], None)
    assert time.watermarks()["time"] == 99
    clock.advance(600)
    assert time.due_in_s() == 0
    time.begin({}, None, ended=False)
    assert time.due_in_s() > 0
    time.advance([], None)
    assert time.watermarks()["time"] == 1899
    time.begin({}, None, ended=False)
    time.advance([heard(LIKES_1, 200), heard(LIKES_0, 2900)], None)
    assert time.watermarks()["time"] == 1899


def test_if_all_partitions_are_idle_time_stands_still(clock):
    time = event_time(clock, idle_ms=1000)
    time.begin({}, LIKES, ended=False)
    time.advance([heard(LIKES_0, 900), heard(LIKES_1, 100)], None)
    clock.advance(5000)
    assert time.due_in_s() > 0
    time.begin({}, None, ended=False)
    time.advance([], None)
    assert time.watermarks()["time"] == 99


def test_one_is_told_why_time_stands_still(clock, caplog):
    time = event_time(clock)
    with caplog.at_level(logging.WARNING):
        for number in range(100):
            time.begin({}, LIKES, ended=False)
            time.advance([heard(LIKES_0, number)], None)
            clock.advance(1000)
    assert [record.getMessage() for record in caplog.records] == [
        "event time does not advance in 'time': no data yet from likes-1. To stop waiting for "
        "partitions without data, use WatermarkStrategy.with_idleness"
    ]


def test_partitions_have_the_names_that_kafka_gives_them():
    assert open_partitions('{"likes":{"1":5}}') == ("likes-1",)
    assert open_partitions('{"logOffset":3}') == open_partitions(None) == ()
