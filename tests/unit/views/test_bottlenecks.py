"""Which operator holds a job back, and which of them a source."""

from __future__ import annotations

from turnback.job.status import OperatorLoad
from turnback.views.job import bottleneck, with_bottlenecks
from turnback.views.model import OperatorNode


def node(uid: str, busiest: float | None, *inputs: str) -> OperatorNode:
    load = None
    if busiest is not None:
        load = OperatorLoad(tasks=2, busy=busiest / 2, busiest=busiest)
    return OperatorNode(
        uid=uid, name=uid, kind="map", parallelism=2, level=0, inputs=inputs, load=load
    )


def test_a_source_is_held_back_by_the_busiest_of_those_that_read_from_it():
    nodes = [
        node("clicks", None),
        node("users", 0.2),
        node("clean", 0.3, "clicks"),
        node("count", 0.6, "clean"),
        node("join", 0.9, "users"),
        node("out", 0.1, "count", "join"),
    ]
    found = {each.uid: each.bottleneck for each in with_bottlenecks(nodes)}
    assert found == {
        "clicks": "count", "users": "join", "clean": None, "count": None, "join": None, "out": None
    }  # fmt: skip
    assert bottleneck(nodes) == "join"


def test_a_job_that_rests_is_held_back_by_nobody():
    nodes = [node("clicks", None), node("count", 0.04, "clicks", "gone")]
    assert bottleneck(nodes) is None
    assert with_bottlenecks(nodes)[0].bottleneck is None
    assert bottleneck([]) is None
