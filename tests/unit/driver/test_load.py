"""How busy tasks are and how unevenly work is divided, from the acknowledgements of epochs."""

from __future__ import annotations

import pytest

from manual_clock import ManualClock
from turnback.driver.metrics import LoadMeter
from turnback.state.files import StateFile
from turnback.worker.message import TaskAck, TaskName, TaskSet
from turnback.worker.program import StateFileIndex
from unit.worker.test_meter import program


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def meter(clock):
    return LoadMeter(program(native=True), clock)  # p0 and s0, with two tasks each


def acks(*tasks: tuple[int, float], uid: str = "p0") -> list[TaskAck]:
    """One for each task that has read so many elements and worked for so many seconds."""
    return [
        TaskAck(
            0,
            TaskName(number, number),
            TaskSet.of(()),
            records={uid: (read, read)},
            busy={uid: busy},
        )
        for number, (read, busy) in enumerate(tasks)
    ]


def epoch(meter, clock, *tasks: tuple[int, float], seconds: float = 1.0, idle: float = 0.0):
    clock.advance(round((idle + seconds) * 1000))
    meter.count(acks(*tasks), seconds, StateFileIndex([]))


def test_nothing_is_known_before_the_first_epoch_has_ended(meter, clock):
    clock.advance(5_000)
    assert (meter.busy(), meter.operators()) == (None, {})


def test_busy_is_the_share_of_time_in_which_a_task_worked(meter, clock):
    for _ in range(20):
        epoch(meter, clock, (10, 0.2), (30, 0.8), seconds=1, idle=1)
    load = meter.operators()["p0"]
    assert (load.tasks, load.busy, load.busiest) == (2, 0.2565, 0.4103)  # of 39 seconds
    assert meter.busy() == pytest.approx(20 / 39, abs=0.001)
    assert [(t.task, t.records_in, t.per_s) for t in load.by_task] == [
        (0, 200, 5.13),
        (1, 600, 15.38),
    ]


def test_skew_says_which_task_has_how_many_times_the_mean(meter, clock):
    epoch(meter, clock, (100, 0.1), (900, 0.1))
    load = meter.operators()["p0"]
    assert (load.skew, load.skewed) == (1.8, 1)
    clock.advance(200_000)
    epoch(meter, clock, (500, 0.1), (500, 0.1))  # what was long ago does not count
    assert meter.operators()["p0"].skew == 1.0


def test_chance_is_no_skew(meter, clock):
    epoch(meter, clock, (1, 0.0), (18, 0.0))
    assert meter.operators()["p0"].skew is None
    epoch(meter, clock, (0, 0.0), (1, 0.0))
    assert meter.operators()["p0"].skew == 1.9


def test_tasks_without_work_count_too(meter, clock):
    """Sinks say nothing of tasks that have nothing to write."""
    clock.advance(1_000)
    meter.count(acks((100, 0.5), uid="s0"), 1.0, StateFileIndex([]))
    load = meter.operators()["s0"]
    assert (load.tasks, load.skew, load.busy, load.busiest) == (2, 2.0, 0.25, 0.5)


def test_an_operator_in_the_tasks_of_its_source_has_as_many_as_there_were(clock):
    meter = LoadMeter(program(native=False), clock)
    clock.advance(1_000)
    meter.count(acks(*[(10, 0.1)] * 5, uid="map"), 1.0, StateFileIndex([]))
    assert meter.operators()["map"].tasks == 5


def test_a_job_that_rests_is_not_busy_and_one_in_a_long_epoch_is(meter, clock):
    epoch(meter, clock, (10, 90.0), (10, 80.0), seconds=100)
    assert (meter.busy(), meter.operators()["p0"].busiest) == (1.0, 0.9)
    clock.advance(100_000)
    assert meter.busy(epoch_s=100) == 1.0  # the next epoch began at once, and has not ended
    assert (meter.busy(), meter.operators()["p0"].busiest) == (0.5, 0.45)  # nothing came
    clock.advance(9_800_000)
    assert meter.busy() == 0.01


def test_many_tasks_are_summed_up_and_the_busiest_told(meter, clock):
    tasks = [(10, number / 1000) for number in range(200)]
    epoch(meter, clock, *tasks)
    load = meter.operators()["p0"]
    assert (load.tasks, load.busiest) == (200, 0.199)
    assert [each.task for each in load.by_task] == [*range(168, 200)]


def test_work_of_more_than_all_the_time_is_all_the_time(meter, clock):
    """Clocks of workers and driver differ a little."""
    epoch(meter, clock, (10, 1.2), (10, 0.1))
    assert meter.operators()["p0"].busiest == 1.0


def test_state_is_told_by_task(meter, clock):
    file_index = StateFileIndex([])
    both = ("p0", "p1")
    file_index.confirm(0, 0, StateFile("a", 100, "", 1, 1, 1, 0, 63, both))
    file_index.confirm(0, 1, StateFile("b", 30, "", 1, 1, 1, 64, 127, ("p0",)))
    clock.advance(1_000)
    meter.count(acks((1, 0.0), (1, 0.0)), 1.0, file_index)
    assert [each.state_bytes for each in meter.operators()["p0"].by_task] == [50, 30]
    file_index.confirm(0, 1, StateFile("c", 70, "", 1, 2, 2, 64, 127, ("p0",)))
    clock.advance(2_000)
    meter.count(acks((1, 0.0), (1, 0.0)), 1.0, file_index)
    assert [each.state_bytes for each in meter.operators()["p0"].by_task] == [50, 100]
