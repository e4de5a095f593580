"""Whether Spark has run a task more than once is told by those that counted, and by Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from turnback.plan.graph import NodeKind
from turnback.spark.engine import TaskReruns
from turnback.worker.message import TaskAck, TaskName, TaskSet

PLAN = SimpleNamespace(
    levels=[
        SimpleNamespace(index=0, operators=[SimpleNamespace(kind=NodeKind.PROCESS)]),
        SimpleNamespace(index=1, operators=[SimpleNamespace(kind=NodeKind.SINK)]),
    ]
)


def spark(speculation="false", **stages):
    found = {int(name.removeprefix("stage_")): state for name, state in stages.items()}
    tracker = SimpleNamespace(getStageInfo=found.get)
    conf = SimpleNamespace(get=lambda key, default: speculation)
    return SimpleNamespace(statusTracker=lambda: tracker, getConf=lambda: conf)


def stage(attempt=0, failed=0):
    return SimpleNamespace(currentAttemptId=attempt, numFailedTasks=failed)


def acks(*names: tuple[int, TaskName]) -> list[TaskAck]:
    return [TaskAck(level, name, TaskSet.of(())) for level, name in names]


@pytest.mark.parametrize(
    ("tries", "context", "expected"),
    [
        (0, spark(stage_8=stage()), False),
        (0, spark(), False),  # Spark has forgotten the stage
        (1, spark(stage_8=stage()), True),
        (0, spark(stage_8=stage(attempt=1)), True),
        (0, spark(stage_8=stage(failed=1)), True),
        (0, spark("true", stage_8=stage()), True),
    ],
    ids=["once", "forgotten", "task again", "stage again", "one failed", "speculation"],
)
def test_a_task_that_writes_to_a_sink(tries, context, expected):
    found = acks((0, TaskName(0, 11, 7)), (1, TaskName(0, 12, 8, tries)))
    assert TaskReruns(context, PLAN).happened(found) is expected


def test_tasks_without_sinks_do_not_matter():
    context = spark(stage_7=stage(1, 1), stage_8=stage())
    found = acks((0, TaskName(0, 11, 7, 3)), (1, TaskName(0, 12, 8)))
    assert not TaskReruns(context, PLAN).happened(found)
    without = SimpleNamespace(levels=PLAN.levels[:1])
    assert not TaskReruns(spark("true"), without).happened(found)
