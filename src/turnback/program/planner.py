"""Checks a program and cuts it into levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import xxhash

from turnback.core.errors import PlanError, UnsupportedTypeError
from turnback.core.ids import check_uid
from turnback.program.functions import Function, KeyedBatchFunction, declared_states
from turnback.program.graph import (
    PASSED_THROUGH,
    REDUCED,
    KeySpec,
    Node,
    NodeKind,
    StreamGraph,
    has_partitions,
    sources_before,
)
from turnback.program.operator_state import has_operator_state
from turnback.program.partitioning import Partitioning
from turnback.program.plan import (
    Channel,
    Input,
    InputId,
    Level,
    Operator,
    Plan,
    Routing,
    SourcePlan,
)
from turnback.program.pruning import types_read
from turnback.types.typeinfo import RowTypeInfo, TypeInfo


def _assign_uids(nodes: Sequence[Node]) -> tuple[dict[int, str], list[str]]:
    """Give every operator a uid, and warn of generated ones: they depend on the topology."""
    uids: dict[int, str] = {}
    owners: dict[str, Node] = {}
    warnings: list[str] = []
    for node in nodes:
        if node.uid is not None:
            uid = check_uid(node.uid)
        else:
            ancestry = "/".join([node.kind.value, *(uids[i.id] for i in node.inputs)])
            twins = sum(1 for n in nodes if n.id < node.id and _shape(n) == _shape(node))
            uid = f"auto-{xxhash.xxh64_hexdigest(f'{ancestry}#{twins}'.encode())}"
            if _needs_uid(node):
                warnings.append(
                    f"{node.kind.value} {node.name!r} has no uid; its generated one changes when "
                    f"the program does, and its state is then not found. Add .uid(...)."
                )
        if uid in owners:
            raise PlanError(
                f"two operators have the uid {uid!r}: {owners[uid].kind.value} "
                f"{owners[uid].name!r} and {node.kind.value} {node.name!r}; give each its own"
            )
        uids[node.id], owners[uid] = uid, node
    return uids, warnings


def _needs_uid(node: Node) -> bool:
    known = _may_have_state(node) or node.kind in (NodeKind.SOURCE, NodeKind.SINK)
    return known or has_operator_state(node.function)


def _may_have_state(node: Node) -> bool:
    if node.key is None:
        return False
    if node.kind not in (NodeKind.MAP, NodeKind.FLAT_MAP, NodeKind.FILTER):
        return True
    return type(node.function).open is not Function.open or bool(declared_states(node.function))


def _shape(node: Node) -> tuple[NodeKind, tuple[int, ...]]:
    return node.kind, tuple(i.id for i in node.inputs)


def _check_operators(nodes: Sequence[Node], uids: dict[int, str]) -> None:
    """Refuse keys of unsuitable types, and states that are unsuitable, ambiguous or not keyed."""
    for node in nodes:
        who = f"operator {uids[node.id]!r} ({node.name})"
        try:
            for key in node.keys:
                if key is not None:
                    key.codec()
        except PlanError as e:
            raise PlanError(f"{who}: {e}") from None
        _check_columns(node, who)
        _check_operator_state(node, who)
        seen = {REDUCED} if node.kind is NodeKind.REDUCE else set[str]()
        for descriptor in declared_states(node.function).values():
            if node.key is None:
                raise PlanError(
                    f"{who} declares the state {descriptor.name!r}, but its stream has no key; put "
                    f"key_by(...) before it"
                )
            if descriptor.name in seen:
                raise PlanError(f"{who} declares the state {descriptor.name!r} twice; rename one")
            seen.add(descriptor.name)
            if isinstance(node.function, KeyedBatchFunction) and descriptor.kind in ("list", "map"):
                raise PlanError(
                    f"{who} declares the {descriptor.kind} state {descriptor.name!r}, which has no "
                    f"column of values; use a KeyedProcessFunction, or a value state"
                )
            try:
                descriptor.check()
            except UnsupportedTypeError as e:
                raise UnsupportedTypeError(f"{who}: {e}") from None


def _check_columns(node: Node, who: str) -> None:
    """Refuse columns that a function says it reads, and that are not there."""
    columns = node.function.columns if isinstance(node.function, KeyedBatchFunction) else None
    type = node.inputs[0].type if node.inputs else None
    there = type.names if isinstance(type, RowTypeInfo) else ("value",)
    for column in columns or ():
        if column not in there:
            raise PlanError(
                f"{who} says it reads the column {column!r}; there are {list(there)}. Correct "
                f"`columns` of {node.function.__class__.__name__}"
            )


def _check_operator_state(node: Node, who: str) -> None:
    """Refuse a `CheckpointedFunction` where nobody would call it: inside of another function."""
    if has_operator_state(node.function):
        return
    for inner in getattr(node.function, "__dict__", {}).values():
        if has_operator_state(inner):
            raise PlanError(
                f"{who}: {type(inner).__name__} is a CheckpointedFunction, but has no operator "
                f"state here; keep it in a function of map, flat_map, filter or process"
            )


def _check_parallelism(nodes: Sequence[Node], default: int, maximum: int) -> None:
    """Refuse a parallelism above the number of key groups."""
    for node in nodes:
        parallelism = node.parallelism or default
        if parallelism > maximum:
            raise PlanError(
                f"{node.name!r} has parallelism {parallelism}, above the maximum of {maximum}; "
                f"lower it or call set_max_parallelism"
            )


def plan(graph: StreamGraph, parallelism: int, max_parallelism: int) -> Plan:
    """Check a program and cut it into levels. Runs nothing."""
    if not graph.sources():
        raise PlanError("the job has no source; add one with from_dataframe, from_files, ...")
    if not graph.sinks():
        raise PlanError("the job has no sink; add sink_to(...) or print() to a stream")
    nodes = graph.reachable()
    uids, warnings = _assign_uids(nodes)
    _check_operators(nodes, uids)
    _check_parallelism(nodes, parallelism, max_parallelism)
    return _Cut(nodes, uids, parallelism, max_parallelism).plan(tuple(warnings))


class _Edge(NamedTuple):
    """Who reads from whom, at which of its inputs, and how elements without a key are spread."""

    producer: Node
    consumer: Node
    input: int
    partitioning: Partitioning | None = None


class _Shape(NamedTuple):
    """Edges that have all of this in common share a channel."""

    producer: int
    key: KeySpec | None
    parallelism: int
    into: int
    partitioning: Partitioning | None


class _Cut:
    """Cuts the graph. An operator's level is the greatest of its inputs', plus one per exchange."""

    def __init__(
        self, nodes: list[Node], uids: dict[int, str], parallelism: int, max_parallelism: int
    ) -> None:
        self.nodes = [n for n in nodes if n.kind not in PASSED_THROUGH]
        self.uids = uids
        self.default = parallelism
        self.max_parallelism = max_parallelism
        self.level: dict[int, int] = {}
        self.parallelism: dict[int, int | None] = {}
        self.edges: list[_Edge] = []
        self.strategies: dict[int, set[str]] = {}
        """The watermark strategies that the output of each operator goes by."""
        for node in self.nodes:
            self._assign(node)
            inherited = self._inherited(node, range(len(node.inputs))) or {""}
            own = {uids[node.id]}
            self.strategies[node.id] = own if node.kind is NodeKind.TIMESTAMPS else inherited
        self.read: dict[int, TypeInfo] = {}
        """The types of operators whose output lacks columns that nobody needs."""
        for node in self.nodes:
            if node.kind is NodeKind.SOURCE:
                self.read |= types_read(node, self._readers)

    def plan(self, warnings: tuple[str, ...]) -> Plan:
        channels = self._channels()
        native = self._native(channels)
        levels = self._levels(channels)
        if native:
            levels = [replace(level, index=level.index - 1) for level in levels[1:]]
            channels = [
                replace(c, first_level=c.first_level - 1, last_level=c.last_level - 1)
                for c in channels
            ]
        sources = tuple(
            SourcePlan.of(n, self.uids[n.id], self.read[n.id])
            for n in self.nodes
            if n.kind is NodeKind.SOURCE
        )
        of_strategies = {
            self.uids[n.id]: tuple(self.uids[source.id] for source in sources_before(n))
            for n in self.nodes
            if n.kind is NodeKind.TIMESTAMPS
        }
        maximum = self.max_parallelism
        return Plan(
            sources, tuple(levels), tuple(channels), native, maximum, warnings, of_strategies
        )

    def _assign(self, node: Node) -> None:
        """Give a node its level and its parallelism."""
        if node.kind is NodeKind.SOURCE:
            self.level[node.id], self.parallelism[node.id] = 0, None
            return
        edges = [
            _Edge(producer, node, number, None if node.key_of(number) else partitioning)
            for number, read in enumerate(node.inputs)
            for producer, partitioning in _producers(read)
        ]
        level = 0
        for edge in edges:
            level = max(level, self.level[edge.producer.id] + self._exchanges(edge))
        self.edges += edges
        self.level[node.id] = level
        spread = any(edge.partitioning and edge.partitioning.exchanges for edge in edges)
        if node.key is not None or node.parallelism is not None or spread:
            self.parallelism[node.id] = node.parallelism or self.default
        else:
            inherited = [n for e in edges if (n := self.parallelism[e.producer.id]) is not None]
            fallback = self.default if level else None
            self.parallelism[node.id] = max(inherited, default=fallback)

    def _exchanges(self, edge: _Edge) -> bool:
        """Whether elements go to other tasks on their way to an operator."""
        node, before = edge.consumer, self.parallelism[edge.producer.id]
        if node.key_of(edge.input) is not None:
            return True
        needed = (node.parallelism is not None and node.parallelism != before) or (
            # How many tasks read the sources changes from epoch to epoch.
            before is None and has_operator_state(node.function)
        )
        if edge.partitioning is None:
            return needed
        if needed and not edge.partitioning.exchanges:
            raise self._not_forward(edge)
        return edge.partitioning.exchanges

    def _not_forward(self, edge: _Edge) -> PlanError:
        node = edge.consumer
        return PlanError(
            f"operator {self.uids[node.id]!r} ({node.name}) cannot run in the tasks of "
            f"{edge.producer.name!r}, as forward() wants: it has another parallelism, or another "
            f"input that comes later; use rebalance(), or give both one parallelism"
        )

    def _inherited(self, node: Node, inputs: Iterable[int]) -> set[str]:
        """The watermark strategies that some inputs of a node go by."""
        if node.kind is NodeKind.BROADCAST_PROCESS:
            inputs = [number for number in inputs if number == 0]  # it goes by the main stream
        producers = [each for number in inputs for each, _ in _producers(node.inputs[number])]
        return {uid for producer in producers for uid in self.strategies[producer.id]}

    def _channels(self) -> list[Channel]:
        # Edges of one shape share a channel: their rows are sent once, however many read them.
        shapes: dict[_Shape, list[InputId]] = defaultdict(list)
        for producer, consumer, number, partitioning in self.edges:
            into = self.level[consumer.id]
            if self.level[producer.id] < into:
                parallelism = self.parallelism[consumer.id] or self.default
                key = consumer.key_of(number)
                if partitioning is not None and not partitioning.exchanges:
                    raise self._not_forward(_Edge(producer, consumer, number))
                shape = _Shape(producer.id, key, parallelism, into, partitioning)
                shapes[shape].append(InputId(consumer.id, number))
        by_id = {n.id: n for n in self.nodes}
        return [
            Channel(
                i,
                shape.producer,
                tuple(consumers),
                self._type(by_id[shape.producer]),
                shape.key,
                shape.parallelism,
                self.level[shape.producer],
                shape.into,
                self.uids[consumers[0].operator],
                shape.partitioning,
            )
            for i, (shape, consumers) in enumerate(shapes.items())
        ]

    def _readers(self, node: Node) -> list[Node]:
        return [edge.consumer for edge in self.edges if edge.producer is node]

    def _type(self, node: Node) -> TypeInfo:
        return self.read.get(node.id) or _typed(node)

    def _native(self, channels: list[Channel]) -> bool:
        """Whether the first level would only pass rows on, which Spark does by itself."""
        first = [n for n in self.nodes if self.level[n.id] == 0]
        out = [c for c in channels if c.first_level == 0]
        return (
            all(n.kind is NodeKind.SOURCE for n in first)
            and len(out) == len(first)
            and len({c.producer for c in out}) == len(first)
            and all(c.routing(1) is Routing.KEY_COLUMNS for c in out)
        )

    def _levels(self, channels: list[Channel]) -> list[Level]:
        levels = []
        for index in range(max(self.level.values()) + 1):
            members = [n for n in self.nodes if self.level[n.id] == index]
            operators = tuple(self._operator(n, channels) for n in members)
            parallelism = max(op.parallelism for op in operators) if index else None
            outputs = tuple(c.id for c in channels if c.first_level <= index < c.last_level)
            levels.append(Level(index, parallelism, operators, outputs))
        return levels

    def _operator(self, node: Node, channels: list[Channel]) -> Operator:
        here = self.level[node.id]
        consumers = tuple(
            InputId(consumer.id, number)
            for producer, consumer, number, _ in self.edges
            if producer is node
            and self.level[consumer.id] == here
            and consumer.kind is not NodeKind.SIDE_OUTPUT
        )
        sides = tuple(
            (consumer.function.tag_id, consumer.id, _typed(consumer))
            for producer, consumer, *_ in self.edges
            if producer is node and consumer.kind is NodeKind.SIDE_OUTPUT
        )
        inputs = tuple(
            Input(
                self._type(each),
                node.key_of(number),
                tuple(sorted(self._inherited(node, (number,)))),
                has_partitions(each),
            )
            for number, each in enumerate(node.inputs)
        )
        return Operator(
            node.id,
            self.uids[node.id],
            node.name,
            node.kind,
            None if node.kind is NodeKind.SOURCE else node.function,
            self.read.get(node.id, node.type),
            inputs,
            self.parallelism[node.id] or self.default,
            consumers,
            tuple(c.id for c in channels if c.producer == node.id),
            sides,
        )


def _producers(
    read: Node, partitioning: Partitioning | None = None
) -> list[tuple[Node, Partitioning | None]]:
    """The operators behind what a node reads, and how the last one who said so spreads elements."""
    if read.kind not in PASSED_THROUGH:
        return [(read, partitioning)]
    if read.kind is NodeKind.PARTITION and partitioning is None:
        partitioning = read.function
    return [found for each in read.inputs for found in _producers(each, partitioning)]


def _typed(node: Node) -> TypeInfo:
    if node.type is None:
        raise PlanError(f"{node.kind.value} {node.name!r} has no output to read from")
    return node.type
