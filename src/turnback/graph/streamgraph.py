from __future__ import annotations

from typing import Any

from turnback.core import TypeInfo
from turnback.graph.key import KeySpec
from turnback.graph.node import Node, NodeKind


class StreamGraph:
    """The program: operators and who reads from whom. Building it runs nothing."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(
        self,
        kind: NodeKind,
        name: str,
        type: TypeInfo | None,
        inputs: tuple[Node, ...] = (),
        *,
        key: KeySpec | None = None,
        function: Any = None,
        uid: str | None = None,
    ) -> Node:
        """Record an operator."""
        node = Node(len(self.nodes), kind, name, type, inputs, key, function, uid)
        self.nodes.append(node)
        return node

    def sources(self) -> list[Node]:
        """All sources, in the order they were added."""
        return [n for n in self.nodes if n.kind is NodeKind.SOURCE]

    def sinks(self) -> list[Node]:
        """All sinks, in the order they were added."""
        return [n for n in self.nodes if n.kind is NodeKind.SINK]

    def reachable(self) -> list[Node]:
        """The operators some sink depends on, in order; the others would run for nothing."""
        wanted: set[int] = set()
        stack = self.sinks()
        while stack:
            node = stack.pop()
            if node.id not in wanted:
                wanted.add(node.id)
                stack.extend(node.inputs)
        return [n for n in self.nodes if n.id in wanted]
