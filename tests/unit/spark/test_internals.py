"""What is read out of Spark's plans, on plans made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnback.spark.internals import NEWEST, OLDEST, source_directories, streaming_nodes


class Option:
    """As Scala's."""

    def __init__(self, value: str | None) -> None:
        self._value = value

    def isDefined(self) -> bool:
        return self._value is not None

    def get(self) -> str | None:
        return self._value


@dataclass(eq=False)
class Node:
    """A node of a plan, as py4j shows it."""

    name: str
    inputs: list[Node] = field(default_factory=list)
    streaming: bool = True

    def nodeName(self) -> str:
        return self.name

    def isStreaming(self) -> bool:
        return self.streaming

    def equals(self, other: Node) -> bool:
        return self is other

    def children(self) -> Any:
        return SimpleNamespace(size=lambda: len(self.inputs), apply=lambda i: self.inputs[i])


class Stream(Node):
    """A stream of Spark 4.2 or newer, which can have a name."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__("StreamingRelation")
        self._name = name

    def sourceIdentifyingName(self) -> Any:
        return SimpleNamespace(nameOpt=lambda: Option(self._name))


def nodes_of(plan: Node) -> Any:
    execution = SimpleNamespace(analyzed=lambda: plan)
    frame: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))
    return streaming_nodes(frame)


def test_streams_come_in_the_order_of_the_plan() -> None:
    a, b, c = (Node("StreamingRelation") for _ in range(3))
    static = Node("LogicalRelation", streaming=False)
    plan = Node("Union", [Node("Project", [a]), Node("Join", [b, static]), c])
    assert nodes_of(plan) == ([a, b, c], [])


@pytest.mark.parametrize("name", ["Aggregate", "Deduplicate", "Distinct", "GlobalLimit"])
def test_state_of_sparks_own_is_found(name: str) -> None:
    stream = Node("StreamingRelation")
    assert nodes_of(Node("Project", [Node(name, [stream])]))[1] == [name]
    static = Node(name, [Node("LogicalRelation", streaming=False)], streaming=False)
    assert nodes_of(Node("Join", [stream, static]))[1] == []


def test_only_a_join_of_two_streams_keeps_state() -> None:
    plan = Node("Join", [Node("StreamingRelation"), Node("StreamingRelation")])
    assert nodes_of(plan)[1] == ["Join"]


def test_streams_without_a_name_are_numbered() -> None:
    old, new = Node("StreamingRelation"), Stream()
    assert source_directories([old, new]) == ["0", "1"]


def test_a_named_stream_takes_no_number() -> None:
    assert source_directories([Stream(), Stream("clicks"), Stream()]) == ["0", "clicks", "1"]


def test_a_stream_that_is_there_twice_has_one_directory() -> None:
    a, b = Stream(), Stream()
    assert source_directories([a, a, b, a]) == ["0", "0", "1", "0"]


def test_the_versions_are_those_of_the_package() -> None:
    project = Path(__file__).parents[3].joinpath("pyproject.toml").read_text()
    after = (NEWEST[0], NEWEST[1] + 1)
    assert f'"pyspark>={OLDEST[0]}.{OLDEST[1]},<{after[0]}.{after[1]}"' in project
