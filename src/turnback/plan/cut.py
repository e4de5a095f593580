"""Cuts a checked program into levels: what runs between two shuffles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from turnback.core.errors import PlanError
from turnback.functions.base import KeyedBatchFunction
from turnback.functions.key_spec import IN_ONE_PLACE, KeySpec
from turnback.functions.operator_state import has_operator_state
from turnback.functions.partitioning import Partitioning
from turnback.plan.graph import (
    PASSED_THROUGH,
    Node,
    NodeKind,
    has_partitions,
    inputs_of_time,
    sources_before,
)
from turnback.plan.plan import (
    Channel,
    Input,
    InputId,
    Level,
    Operator,
    Plan,
    Routing,
    SourceOrder,
    SourcePlan,
)
from turnback.plan.pruning import types_read
from turnback.plan.sources import partition_number, unwatched_files_text, whole_source
from turnback.plan.timers import goes_by_time
from turnback.values.typeinfo import TypeInfo


class ElementOrder(Enum):
    """How a watermark strategy knows in which order elements come."""

    READ = "read"
    """It looks at them where they are read."""
    WATERMARKS = "watermarks"
    """They have gone through a shuffle, and have watermarks already, in whose order they come."""
    SOURCES = "sources"
    """They have gone through a shuffle, and carry their places in the sources."""
    NONE = "none"
    """Not at all: it takes the watermark of the epoch's beginning."""


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


class Cut:
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
        self.bounds: dict[str, int | None] = {"": None}
        """How late elements may be, by strategy."""
        self.orders: dict[int, ElementOrder] = {}
        """Of strategies: how they know in which order elements come."""
        for node in self.nodes:
            self._assign(node)
            inherited = self._inherited(node, range(len(node.inputs))) or {""}
            self.strategies[node.id] = inherited
            if node.kind is NodeKind.TIMESTAMPS:
                self.strategies[node.id] = {uids[node.id]}
                self.bounds[uids[node.id]] = node.function.bound_ms
        self.read: dict[int, TypeInfo] = {}
        """The types of operators whose output lacks columns that nobody needs."""
        for node in self.nodes:
            if node.kind is NodeKind.SOURCE:
                self.read |= types_read(node, self._readers)

    def plan(self, warnings: tuple[str, ...]) -> Plan:
        channels = self._channels()
        native = self._native(channels)
        levels = self._levels(channels)
        sources = tuple(
            SourcePlan.of(n, self.uids[n.id], self.read[n.id])
            for n in self.nodes
            if n.kind is NodeKind.SOURCE
        )
        if native:
            levels = [replace(level, index=level.index - 1) for level in levels[1:]]
            sorted_out = {source.id: source.sorted_out for source in sources}
            channels = [
                replace(
                    c,
                    first_level=c.first_level - 1,
                    last_level=c.last_level - 1,
                    sorted_out=sorted_out.get(c.producer, ""),
                )
                for c in channels
            ]
        by_id = {n.id: n for n in self.nodes}
        of_strategies = {
            self.uids[id]: tuple(self.uids[source.id] for source in sources_before(by_id[id]))
            if order in (ElementOrder.READ, ElementOrder.SOURCES)
            else ()
            for id, order in self.orders.items()
        }
        warnings += tuple(
            unwatched_files_text(self.uids[node.id], node.unwatched)
            for node in self.nodes
            if node.unwatched
        )
        for id in self.orders:
            warnings += tuple(self._warnings_of_order(by_id[id]))
        for level in levels:
            for operator in filter(goes_by_time, level.operators):
                warnings += tuple(self._warnings_of_no_time(by_id[operator.id]))
        maximum = self.max_parallelism
        return Plan(
            sources, tuple(levels), tuple(channels), native, maximum, warnings, of_strategies
        )

    def _assign(self, node: Node) -> None:
        """Give a node its level and its parallelism."""
        if node.kind is NodeKind.SOURCE:
            self.level[node.id], self.parallelism[node.id] = 0, None
            return
        if node.kind is NodeKind.TIMESTAMPS:
            self.orders[node.id] = self._order(node)
        edges = [
            _Edge(producer, node, number, None if self._key(node, number) else partitioning)
            for number, read in enumerate(node.inputs)
            for producer, partitioning in _producers(read)
        ]
        level = 0
        for edge in edges:
            level = max(level, self.level[edge.producer.id] + self._exchanges(edge))
        self.edges += edges
        self.level[node.id] = level
        if self._key(node) is IN_ONE_PLACE:
            self.parallelism[node.id] = 1
            return
        spread = any(edge.partitioning and edge.partitioning.exchanges for edge in edges)
        if node.key is not None or _chosen(node) is not None or spread:
            self.parallelism[node.id] = _chosen(node) or self.default
        else:
            inherited = [n for e in edges if (n := self.parallelism[e.producer.id]) is not None]
            fallback = self.default if level else None
            self.parallelism[node.id] = max(inherited, default=fallback)

    def _exchanges(self, edge: _Edge) -> bool:
        """Whether elements go to other tasks on their way to an operator."""
        node = edge.consumer
        before = self.parallelism[edge.producer.id]
        if self._key(node, edge.input) is not None:
            return True
        needed = (_chosen(node) is not None and _chosen(node) != before) or (
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
        known = range(len(inputs_of_time(node)))
        read = [node.inputs[number] for number in inputs if number in known]
        producers = [producer for each in read for producer, _ in _producers(each)]
        return {uid for producer in producers for uid in self.strategies[producer.id]}

    def _channels(self) -> list[Channel]:
        # Edges of one shape share a channel: their rows are sent once, however many read them.
        shapes: dict[_Shape, list[InputId]] = defaultdict(list)
        for producer, consumer, number, partitioning in self.edges:
            into = self.level[consumer.id]
            if self.level[producer.id] < into:
                parallelism = self.parallelism[consumer.id] or self.default
                key = self._key(consumer, number)
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
            and not self.orders  # for which Python notes where elements come from
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
                self._key(node, number),
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
            self._source_order(node),
            node.on_error,
        )

    def _key(self, node: Node, input: int = 0) -> KeySpec | None:
        """How an input of a node is keyed."""
        if self.orders.get(node.id) in (ElementOrder.WATERMARKS, ElementOrder.SOURCES):
            return IN_ONE_PLACE
        return node.key_of(input)

    def _order(self, node: Node) -> ElementOrder:
        """How a strategy knows in which order elements come."""
        edges = [found for read in node.inputs for found in _producers(read)]
        if not any(self.level[each.id] or (how and how.exchanges) for each, how in edges):
            return ElementOrder.READ
        if _without_order(node) is not None:
            return ElementOrder.NONE
        bounds = [self.bounds[uid] for uid in self._inherited(node, range(len(node.inputs)))]
        return ElementOrder.SOURCES if None in bounds else ElementOrder.WATERMARKS

    def _warnings_of_order(self, strategy: Node) -> Iterator[str]:
        """Tell if nobody knows in which order elements come."""
        order = self.orders[strategy.id]
        name = f"timestamps {self.uids[strategy.id]!r}"
        depends = "which elements are late depends on where epochs end"
        without = _without_order(strategy)
        if order is ElementOrder.NONE and without is not None:
            called = without.uid or without.name
            yield (
                f"{name} are assigned to what {without.kind.value} {called!r} gives; that "
                f"has no order, so {depends}. Assign them before it, if that matters"
            )
        elif order is not ElementOrder.WATERMARKS:
            for source in sources_before(strategy):
                if not source.ordered:
                    yield (
                        f"{name}: it is not known in which order the rows of source "
                        f"{self.uids[source.id]!r} come, so {depends}. Use from_files or "
                        "from_source; if it is a DataFrame of Kafka, keep topic, partition and "
                        "offset; and do not let Spark shuffle it"
                    )

    def _warnings_of_no_time(self, node: Node) -> Iterator[str]:
        """Tell if event time stands still for an operator although some of its streams have one."""
        reads = self._inherited(node, range(len(node.inputs)))
        if all(self.bounds[uid] is None for uid in reads):
            return  # it goes by the clock, or the user wants it so
        for uid in sorted(uid for uid in reads if self.bounds[uid] is None):
            sources = [self.uids[n.id] for n in _before(node) if n.kind is NodeKind.SOURCE]
            streams = repr(uid) if uid else ", ".join(map(repr, sorted(sources)))
            yield (
                f"operator {self.uids[node.id]!r} ({node.name}): event time stands still there, no "
                f"timer and no window by event time ever fires, because {streams} has no "
                "watermarks. Call assign_timestamps_and_watermarks on it with a strategy that has "
                "some, and with_idleness if it can fall silent; or broadcast it"
            )

    def _source_order(self, node: Node) -> SourceOrder:
        if node.kind is not NodeKind.SOURCE or not self.orders:
            return SourceOrder()
        of_strategies = [n for n in self.nodes if self.orders.get(n.id) is ElementOrder.SOURCES]
        placed = any(node in _before(strategy) for strategy in of_strategies)
        # Elements that wait keep it, so it must not depend on which other sources there are.
        return SourceOrder(partition_number(whole_source(self.uids[node.id])), placed)


def _chosen(node: Node) -> int | None:
    """The parallelism that the user wants; timestamps are given where elements are."""
    return None if node.kind is NodeKind.TIMESTAMPS else node.parallelism


def _before(strategy: Node) -> list[Node]:
    """What elements have gone through since they had other timestamps, or none at all."""
    found = dict[int, Node]()
    stack = [strategy]
    while stack:
        for each in inputs_of_time(stack.pop()):
            if each.id not in found and each.kind is not NodeKind.TIMESTAMPS:
                found[each.id] = each
                stack.append(each)
    return list(found.values())


def _without_order(strategy: Node) -> Node | None:
    """What elements have gone through that leaves no order: of batches, and of copies for all."""
    for node in _before(strategy):
        copies = isinstance(node.function, Partitioning) and node.function.copies
        in_batches = isinstance(node.function, KeyedBatchFunction)
        if copies or in_batches or node.kind is NodeKind.MAP_BATCHES:
            return node
    return None


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
