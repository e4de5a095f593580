"""Checks a program and cuts it into levels."""

from __future__ import annotations

import dis
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import xxhash

from turnback.core.ids import check_uid
from turnback.errors import PlanError, UnsupportedTypeError
from turnback.functions.base import Function, KeyedBatchFunction, declared_states
from turnback.functions.operator_state import has_operator_state
from turnback.functions.partitioning import SINGLE_TASK, KeySpec, Partitioning
from turnback.plan.bad_records import DEAD_LETTERS, MALFORMED, ErrorPolicy
from turnback.plan.graph import (
    PASSED_THROUGH,
    REDUCED,
    Node,
    NodeKind,
    StreamGraph,
    has_partitions,
    inputs_of_time,
    sources_before,
    strategies_before,
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
    has_timers,
    is_time_driven,
)
from turnback.plan.sources import partition_number, unwatched_files_text, whole_source
from turnback.timing.folded_windows import PaneWindows
from turnback.values.typeinfo import RowTypeInfo, TypeInfo

_PASSING_ON = frozenset({NodeKind.FILTER, NodeKind.TIMESTAMPS})
_METHODS = {
    NodeKind.FILTER: "filter",
    NodeKind.MAP: "map",
    NodeKind.FLAT_MAP: "flat_map",
    NodeKind.PROCESS: "process_element",
    NodeKind.KEYED_PROCESS: "process_element",
}
"""By kind of operator, the method that gets its elements; others may keep them."""

ReadersOf = Callable[[Node], list[Node]]


def types_read(source: Node, readers_of: ReadersOf) -> dict[int, TypeInfo]:
    """By id, the type of what is read of a source, and of what operators pass on of it."""
    type = source.type
    assert type is not None
    needed = None
    if isinstance(type, RowTypeInfo) and type.python_class is None and not source.whole:
        needed = _columns_needed(source, readers_of, type.names)
    if needed is None:
        return {source.id: type}
    assert isinstance(type, RowTypeInfo)
    types: dict[int, TypeInfo] = {source.id: _with_columns(type, needed)}
    passing = [source]
    for node in passing:  # which grows
        for each in readers_of(node):
            if each.kind is NodeKind.TIMESTAMPS:
                # Behind it, only what its readers need is left; its own column may be none of that.
                columns = _columns_needed(each, readers_of, type.names)
                types[each.id] = _with_columns(type, columns or needed)
            elif each.kind is NodeKind.FILTER:
                types[each.id] = types[node.id]
            else:
                continue
            passing.append(each)
    return types


def _with_columns(type: RowTypeInfo, needed: Collection[str]) -> RowTypeInfo:
    fields = [each for each in type.fields() if each[0] in needed] or type.fields()[:1]
    names, types = zip(*fields, strict=True)
    return RowTypeInfo(names, types)


def _columns_needed(node: Node, readers_of: ReadersOf, names: Collection[str]) -> set[str] | None:
    """The columns of a source that are read behind an operator; None for all of them."""
    needed = set[str]()
    passing = [node]
    for each in passing:  # which grows
        for reader in readers_of(each):
            columns = _columns_read(reader, names)
            if columns is None:
                return None
            needed |= columns
            passing += [reader] if reader.kind in _PASSING_ON else []
    return needed


def _columns_read(node: Node, names: Collection[str]) -> set[str] | None:
    """The columns of its input that an operator reads; None for all of them."""
    if any(each.kind in PASSED_THROUGH for each in node.inputs):
        return None
    if node.kind is NodeKind.SIDE_OUTPUT and node.inputs[0].kind is NodeKind.SOURCE:
        return set()  # malformed records have no columns
    if node.on_error is ErrorPolicy.DEAD_LETTER:
        return None  # dead letters are whole
    if node.kind is NodeKind.COMBINE:
        key = node.function.key
        aggregates = node.function.aggregates.values()
        read: set[str] | None = {column for each in aggregates for column in each.columns}
    else:
        key = node.key
        read = _read_by_function(node, names)
    of_key = set() if key is None else _read_by_key(key, names)
    return None if read is None or of_key is None else read | of_key


def _read_by_key(key: KeySpec, names: Collection[str]) -> set[str] | None:
    return {*key.columns} if key.function is None else fields_read(key.function, names)


def _read_by_function(node: Node, names: Collection[str]) -> set[str] | None:
    function: Any = node.function
    if isinstance(function, KeyedBatchFunction):
        return None if function.columns is None else {*function.columns}
    if isinstance(function, PaneWindows):
        return _read_by_windows(node, function, names)
    if has_timers(function):
        return None  # elements that wait for a timer are state, and its type is to stay
    if node.kind is NodeKind.TIMESTAMPS:
        assigner = function.assigner
        read_by = getattr(assigner, "extract_timestamp", assigner)
        return {assigner} if isinstance(assigner, str) else fields_read(read_by, names)
    method = _METHODS.get(node.kind)
    return None if method is None else fields_read(getattr(function, method, None), names)


def _read_by_windows(node: Node, function: PaneWindows, names: Collection[str]) -> set[str] | None:
    """What an `AggregateFunction` reads, if windows do nothing else with elements."""
    (read,) = node.inputs
    waits = len(strategies_before(read)) > 1 or has_partitions(read)
    kept = function.plan.late is not None or waits
    aggregate = function.folding.aggregate
    return None if kept or aggregate is None else fields_read(aggregate.add, names)


_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_SEES_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})


def fields_read(function: Any, names: Collection[str]) -> set[str] | None:
    """The fields of its element that a function reads, None for all: it might read any.

    It is known of plain Python functions and methods that use their element in no other way than
    ``element.field``. One that hands its element on, looks into it by position, or prints it, might
    read any field.

    Args:
        function: Takes the element as its first argument, after `self`.
        names: The fields there are.
    """
    position = 0
    if isinstance(function, MethodType):
        function = function.__func__
        position = 1
    if not isinstance(function, FunctionType):
        return None
    found = _attributes_read(function.__code__, position)
    return found if found is not None and found <= set(names) else None


def _attributes_read(code: CodeType, position: int) -> set[str] | None:
    """The attributes of an argument that code reads; None if it does anything else with it."""
    if position >= code.co_argcount or _SEES_LOCALS & {*code.co_names}:
        return None
    argument = code.co_varnames[position]
    if argument in code.co_cellvars:  # an inner function has it
        return None
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    found = set()
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        loaded = _loaded(step)
        if argument not in loaded:
            continue
        alone = loaded.count(argument) == 1 and loaded[-1] == argument
        if not alone or following is None or following.opname not in _ATTRIBUTES:
            return None
        found.add(str(following.argval))
    return found


def _loaded(step: dis.Instruction) -> tuple[Any, ...]:
    """The local variables that an instruction is about; as its last one, the one it loads last."""
    if "FAST" not in step.opname:
        return ()
    if isinstance(step.argval, tuple):  # two at once, since Python 3.13
        loads = step.opname.startswith("LOAD") and "STORE" not in step.opname
        return step.argval if loads else (*step.argval, None)
    return (step.argval,) if step.opname in _LOADS else (step.argval, None)


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
            malformed_from = {source.id: source.malformed_from for source in sources}
            channels = [
                replace(
                    c,
                    first_level=c.first_level - 1,
                    last_level=c.last_level - 1,
                    malformed_from=malformed_from.get(c.producer, ""),
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
            for operator in filter(is_time_driven, level.operators):
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
        if self._key(node) is SINGLE_TASK:
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
            f"{edge.producer.name!r}, as forward() requires: it has a different parallelism, or "
            "another input from a later level; use rebalance(), or give both the same "
            "parallelism"
        )

    def _inherited(self, node: Node, inputs: Iterable[int]) -> set[str]:
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
        side_outputs = tuple(
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
            side_outputs,
            self._source_order(node),
            node.on_error,
        )

    def _key(self, node: Node, input: int = 0) -> KeySpec | None:
        if self.orders.get(node.id) in (ElementOrder.WATERMARKS, ElementOrder.SOURCES):
            return SINGLE_TASK
        return node.key_of(input)

    def _order(self, node: Node) -> ElementOrder:
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
                f"{name} are assigned to the output of {without.kind.value} {called!r}, which "
                f"has no defined order, so {depends}. If that matters, assign them before it"
            )
        elif order is not ElementOrder.WATERMARKS:
            for source in sources_before(strategy):
                if not source.ordered:
                    yield (
                        f"{name}: the order of the rows of source {self.uids[source.id]!r} is "
                        f"unknown, so {depends}. Use from_files or from_source; in a DataFrame "
                        "from Kafka, keep topic, partition and offset, and do not let Spark "
                        "shuffle it"
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
                f"operator {self.uids[node.id]!r} ({node.name}): event time does not advance, so "
                f"event-time timers and windows never fire, because {streams} has no watermarks. "
                "Call assign_timestamps_and_watermarks on it with a strategy that generates "
                "them, and with_idleness if it can be idle; or broadcast it"
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
                    f"{node.kind.value} {node.name!r} has no uid; a generated uid changes with "
                    "the program, and its state is then not found. Add .uid(...)."
                )
        if uid in owners:
            raise PlanError(
                f"two operators have the uid {uid!r}: {owners[uid].kind.value} "
                f"{owners[uid].name!r} and {node.kind.value} {node.name!r}; give each its own uid"
            )
        uids[node.id], owners[uid] = uid, node
    return uids, warnings


def _needs_uid(node: Node) -> bool:
    if node.kind is NodeKind.SINK and getattr(node.function, "keeps_nothing", False):
        return False
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
        _check_error_policy(node, nodes, who)
        seen = {REDUCED} if node.kind is NodeKind.REDUCE else set[str]()
        for descriptor in declared_states(node.function).values():
            if node.key is None:
                raise PlanError(
                    f"{who} declares the state {descriptor.name!r}, but its stream has no key; "
                    "call key_by(...) before it"
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
                f"{who} reads the column {column!r}, which does not exist; the columns are "
                f"{list(there)}. Correct `columns` of {node.function.__class__.__name__}"
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


def _check_error_policy(node: Node, nodes: Sequence[Node], who: str) -> None:
    """Refuse dead letters and malformed records that nobody reads, and those of who has none."""
    tags = [n.function.tag_id for n in nodes if n.kind is NodeKind.SIDE_OUTPUT and node in n.inputs]
    if node.on_error is ErrorPolicy.DEAD_LETTER and DEAD_LETTERS not in tags:
        raise PlanError(
            f'{who} has on_error("dead_letter"), but nothing reads its dead letters; write them '
            'somewhere: dead_letters().sink_to(...), or choose on_error("skip")'
        )
    if DEAD_LETTERS in tags and node.on_error is not ErrorPolicy.DEAD_LETTER:
        raise PlanError(
            f"the dead letters of {who} are read, but it produces none; call "
            'on_error("dead_letter")'
        )
    if node.on_malformed is ErrorPolicy.DEAD_LETTER and MALFORMED not in tags:
        raise PlanError(
            f'{who} has on_malformed="dead_letter", but nothing reads its dead letters; write '
            'them somewhere: dead_letters().sink_to(...), or choose on_malformed="skip"'
        )
    if MALFORMED in tags and node.on_malformed is not ErrorPolicy.DEAD_LETTER:
        raise PlanError(
            f"the dead letters of {who} are read, but it produces none; create the source with "
            'on_malformed="dead_letter"'
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
    return Cut(nodes, uids, parallelism, max_parallelism).plan(tuple(warnings))
