"""What every operator of a program can be given."""

from __future__ import annotations

from typing import Self

from turnback.core.errors import PlanError
from turnback.core.ids import check_uid
from turnback.plan.graph import Node, NodeKind, StreamGraph


class Named:
    """What every operator can be given: a uid, a name, a parallelism."""

    def __init__(self, graph: StreamGraph, node: Node) -> None:
        self._graph = graph
        self._node = node

    def uid(self, uid: str) -> Self:
        """Set the operator's identity: by it its state is found again, whatever else changes."""
        self._node.uid = check_uid(uid)
        return self

    def name(self, name: str) -> Self:
        """Set what people see."""
        if not isinstance(name, str) or not name:
            raise PlanError(f"a name must be a non-empty string, got {name!r}")
        self._node.name = name
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of instances of this operator."""
        if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
            raise PlanError(f"parallelism must be a whole number above 0, got {parallelism!r}")
        if self._node.kind is NodeKind.SOURCE:
            raise PlanError("the parallelism of a source is Spark's; set it on what follows")
        self._node.parallelism = parallelism
        return self


class DataStreamSink(Named):
    """The end of a stream."""
