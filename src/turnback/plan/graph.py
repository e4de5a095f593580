"""The program as it was written: operators, and who reads from whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from turnback.functions.partitioning import KeySpec
from turnback.plan.bad_records import ErrorPolicy
from turnback.plan.sources import OpenLagReader, WatchedFiles
from turnback.values.typeinfo import TypeInfo

SourceCheck = Callable[[str, str | None], Sequence[str] | None]
"""Refuses a source that cannot be read; takes what messages call it, and the offset it goes on
from, None if it begins. Returns what people should know of how it goes on."""


class NodeKind(Enum):
    """What an operator does with its elements."""

    SOURCE = "source"
    MAP = "map"
    FLAT_MAP = "flat_map"
    FILTER = "filter"
    MAP_BATCHES = "map_batches"
    COMBINE = "combine"
    TIMESTAMPS = "timestamps"
    ASYNC_WAIT = "async_wait"
    PROCESS = "process"
    KEYED_PROCESS = "keyed_process"
    REDUCE = "reduce"
    CO_MAP = "co_map"
    CO_FLAT_MAP = "co_flat_map"
    CO_PROCESS = "co_process"
    BROADCAST_PROCESS = "broadcast_process"
    NUMBER = "number"
    UNION = "union"
    PARTITION = "partition"
    SIDE_OUTPUT = "side output"
    SINK = "sink"


SIDE_OUTPUT_KINDS = frozenset(
    {
        NodeKind.PROCESS,
        NodeKind.KEYED_PROCESS,
        NodeKind.CO_PROCESS,
        NodeKind.BROADCAST_PROCESS,
    }
)
"""Operators whose functions can send elements to side outputs."""

TOLERANT_KINDS = frozenset(
    {
        NodeKind.MAP,
        NodeKind.FLAT_MAP,
        NodeKind.FILTER,
        NodeKind.PROCESS,
        NodeKind.KEYED_PROCESS,
        NodeKind.CO_MAP,
        NodeKind.CO_FLAT_MAP,
        NodeKind.CO_PROCESS,
    }
)
"""Operators that call a function for one element after the other, and can go on without one."""

PASSED_THROUGH = frozenset({NodeKind.UNION, NodeKind.PARTITION})
"""What is no work: who reads them reads what they read."""

REDUCED = "reduced"
"""Name of the state of a reduce."""


@dataclass(eq=False)
class Node:
    """One operator as the user wrote it.

    Attributes:
        id: Position in the graph; inputs always have smaller ids.
        type: Type of its elements; None for a sink.
        inputs: What it reads: one, or two of different types; a union any number of one type.
        keys: How each of its inputs is keyed; empty when none is.
        function: The user's function, the sink, or the streaming DataFrame of a source.
        uid: Identity across versions of the program; None until given or generated.
        parallelism: Number of instances; None for the job's default.
        bounded: Whether it is a source that ends by nature.
        whole: Whether it is a source of which all columns are read, whoever needs them.
        partitioned: Whether it is a source whose partitions have watermarks of their own.
        ordered: Whether it is known in which order the elements of a source come.
        check: Of a source: what tells before the job starts whether it can be read.
        lag: Of a source: what tells while the job runs how far it is behind.
        files: Of a source: those that are looked at while the job runs, in case they are changed.
        unwatched: Of a source: where its files are, if the user is to know that nobody looks.
        on_error: What becomes of elements at which the function fails.
        on_malformed: Of a source that parses text: what becomes of records that do not fit its
            schema; None if it parses none.
    """

    id: int
    kind: NodeKind
    name: str
    type: TypeInfo | None
    inputs: tuple[Node, ...] = ()
    keys: tuple[KeySpec | None, ...] = ()
    function: Any = None
    uid: str | None = None
    parallelism: int | None = None
    bounded: bool = False
    whole: bool = False
    partitioned: bool = False
    ordered: bool = True
    check: SourceCheck | None = None
    lag: OpenLagReader | None = None
    files: WatchedFiles | None = None
    unwatched: str = ""
    on_error: ErrorPolicy = ErrorPolicy.FAIL
    on_malformed: ErrorPolicy | None = None

    @property
    def key(self) -> KeySpec | None:
        """How it is keyed: its first input is."""
        return self.keys[0] if self.keys else None

    def key_of(self, input: int) -> KeySpec | None:
        return self.keys[input] if self.keys else None


class StreamGraph:
    """The program: operators and who reads from whom. Building it runs nothing.

    Attributes:
        environment: The `StreamExecutionEnvironment` it is written in; None if it has none.
    """

    def __init__(self, environment: Any = None) -> None:
        self.nodes: list[Node] = []
        self.environment = environment

    def add(
        self,
        kind: NodeKind,
        name: str,
        type: TypeInfo | None,
        inputs: tuple[Node, ...] = (),
        *,
        key: KeySpec | None = None,
        keys: tuple[KeySpec | None, ...] = (),
        function: Any = None,
        uid: str | None = None,
    ) -> Node:
        """Add an operator; `key` is that of the only input, `keys` those of several."""
        for each in inputs:
            self._take_in(each)
        keys = (key,) if key is not None else keys
        node = Node(len(self.nodes), kind, name, type, inputs, keys, function, uid)
        self.nodes.append(node)
        return node

    def clear(self) -> None:
        """Begin the next program; operators of this one that it reads from are part of it too."""
        self.nodes = []

    def _take_in(self, node: Node) -> None:
        if any(each is node for each in self.nodes):
            return
        for each in node.inputs:
            self._take_in(each)
        node.id = len(self.nodes)
        self.nodes.append(node)

    def sources(self) -> list[Node]:
        return [n for n in self.nodes if n.kind is NodeKind.SOURCE]

    def sinks(self) -> list[Node]:
        return [n for n in self.nodes if n.kind is NodeKind.SINK]

    def ends(self) -> bool:
        """Whether the program's input ends by nature: that of all its sources does."""
        return all(n.bounded for n in self.reachable() if n.kind is NodeKind.SOURCE)

    def reachable(self) -> list[Node]:
        """The operators some sink depends on, in order; the others would run for nothing."""
        needed: set[int] = set()
        stack = self.sinks()
        while stack:
            node = stack.pop()
            if node.id not in needed:
                needed.add(node.id)
                stack.extend(node.inputs)
        return [n for n in self.nodes if n.id in needed]


def inputs_of_time(node: Node) -> tuple[Node, ...]:
    """The inputs whose watermarks an operator goes by: of a broadcast, that of the main stream."""
    return node.inputs[:1] if node.kind is NodeKind.BROADCAST_PROCESS else node.inputs


def sources_before(node: Node) -> list[Node]:
    """All sources that the elements of an operator come from."""
    found = []
    seen = {node.id}
    stack = [node]
    while stack:
        each = stack.pop()
        if each.kind is NodeKind.SOURCE:
            found.append(each)
        new = {before.id: before for before in inputs_of_time(each) if before.id not in seen}
        seen.update(new)
        stack.extend(new.values())
    return found


def has_partitions(node: Node) -> bool:
    """Whether a strategy that elements go by has several sources, or one with partitions."""
    sources = [sources_before(each) for each in strategies_before(node) if each is not None]
    return any(len(some) > 1 or some[0].partitioned for some in sources)


def strategies_before(node: Node) -> list[Node | None]:
    """The watermark strategies that an operator's output goes by; None for a lack of one."""
    found: list[Node | None] = []
    seen = {node.id}
    stack = [node]
    while stack:
        each = stack.pop()
        if each.kind is NodeKind.TIMESTAMPS:
            found.append(each)
            continue
        if not each.inputs and None not in found:
            found.append(None)
        new = {before.id: before for before in inputs_of_time(each) if before.id not in seen}
        seen.update(new)
        stack.extend(new.values())
    return found
