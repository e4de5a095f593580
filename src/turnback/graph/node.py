from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from turnback.core import TypeInfo
from turnback.graph.key import KeySpec


class NodeKind(Enum):
    """What an operator does with its elements."""

    SOURCE = "source"
    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    MAP_BATCHES = "map_batches"
    PROCESS = "process"
    KEYED_PROCESS = "keyed_process"
    REDUCE = "reduce"
    UNION = "union"
    SINK = "sink"


KEYED_KINDS = frozenset({NodeKind.KEYED_PROCESS, NodeKind.REDUCE})

REDUCED = "reduced"
"""Name of the state of a reduce."""


@dataclass(eq=False)
class Node:
    """One operator as the user wrote it.

    Attributes:
        id: Position in the graph; inputs always have smaller ids.
        kind: What it does.
        name: What people call it.
        type: Type of its elements; None for a sink.
        inputs: The operators it reads from.
        key: How its input is keyed; None when it is not.
        function: The user's function, the sink, or the streaming DataFrame of a source.
        uid: Identity across versions of the program; None until given or generated.
        parallelism: Number of instances; None for the job's default.
    """

    id: int
    kind: NodeKind
    name: str
    type: TypeInfo | None
    inputs: tuple[Node, ...] = ()
    key: KeySpec | None = None
    function: Any = None
    uid: str | None = None
    parallelism: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
