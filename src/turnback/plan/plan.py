"""The plan: a checked program, cut into levels. All of it is frozen and picklable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from turnback.functions.base import TimerFunction
from turnback.functions.descriptors import TimeOrderedStateDescriptor
from turnback.functions.event_time import WatermarkStrategy
from turnback.functions.operator_state import has_operator_state
from turnback.functions.partitioning import KeySpec, Partitioning, Spread
from turnback.plan.bad_records import ErrorPolicy, with_malformed
from turnback.plan.graph import Node, NodeKind, SourceCheck
from turnback.plan.sources import WHOLE, OpenLagReader, WatchedFiles
from turnback.timing.folded_windows import PaneFunction
from turnback.timing.joins import WindowJoinOperator
from turnback.timing.window_operator import TIMER_NAMES, WindowOperator, for_any_window
from turnback.values.typeinfo import ListTypeInfo, RowTypeInfo, TypeInfo, Types


class Routing(Enum):
    """How the rows of a channel find their partition at the next level."""

    KEY_COLUMNS = "key columns"  # Spark hashes the columns
    KEY_FUNCTION = "key function"  # the upstream task computes the key and hashes it
    REBALANCE = "rebalance"  # round robin
    BROADCAST = "broadcast"  # to every partition
    CUSTOM = "custom"  # the upstream task asks the user's partitioner
    TRANSIT = "transit"  # any partition: the channel goes on to a later level


_ROUTINGS = {Spread.BROADCAST: Routing.BROADCAST, Spread.CUSTOM: Routing.CUSTOM}


class InputId(NamedTuple):
    """One of the inputs of an operator."""

    operator: int
    number: int = 0


@dataclass(frozen=True)
class Input:
    """What an operator reads at one of its inputs.

    Attributes:
        strategies: Uids of the watermark strategies that it comes from; empty text for elements
            without one.
        partitioned: Whether it comes from partitions with watermarks of their own.
    """

    type: TypeInfo
    key: KeySpec | None = None
    strategies: tuple[str, ...] = ()
    partitioned: bool = False


@dataclass(frozen=True)
class Channel:
    """A stream that crosses one or more shuffles between its producer and its consumers.

    Attributes:
        producer: Node id of the operator it comes from.
        partitioning: How it is spread without a key, if the user has said so.
        parallelism: Number of partitions it is spread over at its last hop.
        first_level: Level whose output it is part of; -1 when Spark itself feeds it from a source.
        reader: Uid of the operator that reads it, the first of them if there are several.
        malformed_from: Uid of the source whose malformed records come with it; its reader sets them
            aside. Empty text if none do.
    """

    id: int
    producer: int
    consumers: tuple[InputId, ...]
    type: TypeInfo
    key: KeySpec | None
    parallelism: int
    first_level: int
    last_level: int
    reader: str = ""
    partitioning: Partitioning | None = None
    malformed_from: str = ""

    @property
    def row_type(self) -> TypeInfo:
        return with_malformed(self.type) if self.malformed_from else self.type

    def routing(self, into_level: int) -> Routing:
        if into_level < self.last_level:
            return Routing.TRANSIT
        if self.key is None:
            spread = self.partitioning.spread if self.partitioning else Spread.REBALANCE
            return _ROUTINGS.get(spread, Routing.REBALANCE)
        return Routing.KEY_COLUMNS if self.key.function is None else Routing.KEY_FUNCTION


@dataclass(frozen=True)
class SourceOrder:
    """What tasks note of the order of a source whose rows they read.

    Attributes:
        partition: The number of the partition that all of it is, if it has none.
        placed: Whether elements carry their place in it although they have no timestamps: those
            are assigned behind a shuffle.
    """

    partition: int = WHOLE
    placed: bool = False


@dataclass(frozen=True)
class Operator:
    """One operator inside a level.

    Attributes:
        inputs: What it reads: nothing, if it is a source, else one stream or two.
        consumers: Inputs of operators of the same level that read its output.
        channels: Channels that carry its output on to later levels.
        side_outputs: Its side outputs: their names, the operators that stand for them, their types.
        source_order: Of a source, what tasks note of its order.
    """

    id: int
    uid: str
    name: str
    kind: NodeKind
    function: Any
    type: TypeInfo | None
    inputs: tuple[Input, ...]
    parallelism: int
    consumers: tuple[InputId, ...]
    channels: tuple[int, ...]
    side_outputs: tuple[tuple[str, int, TypeInfo], ...] = ()
    source_order: SourceOrder = SourceOrder()
    on_error: ErrorPolicy = ErrorPolicy.FAIL

    @property
    def input_type(self) -> TypeInfo | None:
        """Type of what it reads, at its first input; None for a source."""
        return self.inputs[0].type if self.inputs else None

    @property
    def key(self) -> KeySpec | None:
        """How it is keyed, if it is; the key of a second input has the same types."""
        return self.inputs[0].key if self.inputs else None

    @property
    def strategies(self) -> tuple[str, ...]:
        """The watermark strategies that all its inputs come from."""
        return tuple(sorted({uid for each in self.inputs for uid in each.strategies}))

    @property
    def has_operator_state(self) -> bool:
        """Whether its subtasks have state, beside that of its keys if it has any."""
        return has_operator_state(self.function)

    @property
    def is_stateful(self) -> bool:
        return self.key is not None or self.has_operator_state


@dataclass(frozen=True)
class Level:
    """Everything between two shuffles; one Spark stage.

    Attributes:
        parallelism: Number of tasks; None for a first level, which has as many as the sources.
        operators: In the order data flows through them.
    """

    index: int
    parallelism: int | None
    operators: tuple[Operator, ...]
    outputs: tuple[int, ...]

    @property
    def stateful(self) -> tuple[Operator, ...]:
        """The operators that may have state, per key or of their subtasks."""
        return tuple(op for op in self.operators if op.is_stateful)


@dataclass(frozen=True)
class SourcePlan:
    """A source; `dataframe` never leaves the driver.

    Attributes:
        read: Type of what is read of them: without columns that no operator needs.
        partitioned: Whether its partitions have watermarks of their own.
        check: Asked before the job starts, on the driver; see `Node`.
        lag: Asked while the job runs, on the driver; None if it cannot be told.
        files: What is looked at while the job runs, on the driver, in case it is changed.
        on_malformed: What becomes of records that do not fit its schema; None if it parses none.
    """

    id: int
    uid: str
    name: str
    type: TypeInfo
    read: TypeInfo
    dataframe: Any
    partitioned: bool = False
    check: SourceCheck | None = None
    lag: OpenLagReader | None = None
    files: WatchedFiles | None = None
    on_malformed: ErrorPolicy | None = None

    @property
    def malformed_from(self) -> str:
        """Its uid, if its malformed records are sorted out."""
        return "" if self.on_malformed in (None, ErrorPolicy.FAIL) else self.uid

    @classmethod
    def of(cls, node: Node, uid: str, read: TypeInfo) -> SourcePlan:
        assert node.type is not None, "sources have elements"
        return cls(
            id=node.id,
            uid=uid,
            name=node.name,
            type=node.type,
            read=read,
            dataframe=node.function,
            partitioned=node.partitioned,
            check=node.check,
            lag=node.lag,
            files=node.files,
            on_malformed=node.on_malformed,
        )


@dataclass(frozen=True)
class Plan:
    """A whole program, ready to run.

    Attributes:
        sources: In the order in which Spark sees them.
        levels: Levels that run in Python. Level 0 reads the sources in their own tasks unless
            `native`.
        native: Whether Spark alone feeds the first shuffle, with no Python before it.
        strategy_sources: Uids of the sources that each watermark strategy tells apart, by its uid.
    """

    sources: tuple[SourcePlan, ...]
    levels: tuple[Level, ...]
    channels: tuple[Channel, ...]
    native: bool
    max_parallelism: int
    warnings: tuple[str, ...]
    strategy_sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def uids(self) -> dict[str, tuple[str, NodeKind, int]]:
        """Name, kind and parallelism of all sources and operators, by uid."""
        sources = {s.uid: (s.name, NodeKind.SOURCE, 1) for s in self.sources}
        return sources | {op.uid: (op.name, op.kind, op.parallelism) for op in self.operators()}

    @cached_property
    def strategies(self) -> dict[str, WatermarkStrategy]:
        """The watermark strategies, by uid."""
        return {op.uid: op.function for op in self.operators() if op.kind is NodeKind.TIMESTAMPS}

    def operators(self) -> tuple[Operator, ...]:
        return tuple(op for level in self.levels for op in level.operators)


EVENT_TIMERS = "timers.event"
PROCESSING_TIMERS = "timers.processing"
AHEAD = ("ahead.input1", "ahead.input2")
"""Elements of each input that wait for a slower stream or partition."""
_AHEAD_BY_RANK = re.compile(r"timers\.ahead([1-9][0-9]*)?")
"""What these were called by older versions: one state for each rank, known by its position."""
_STRATEGY = Types.STRING()


class Rank(NamedTuple):
    """The elements of one input that go by one watermark strategy."""

    input: int
    strategy: str


def ranks(operator: Operator) -> tuple[Rank, ...]:
    """In which order elements come that have the same watermark: by input, then by strategy.

    It has to be some order that does not depend on when they arrive.
    """
    # The second input of a broadcast waits for nothing.
    inputs = operator.inputs[: 1 if operator.kind is NodeKind.BROADCAST_PROCESS else None]
    return tuple(Rank(number, uid) for number, each in enumerate(inputs) for uid in each.strategies)


def ahead_rank(state: str) -> int | None:
    """The number of the rank that a state of an older version has waiting elements of."""
    match = _AHEAD_BY_RANK.fullmatch(state)
    return int(match[1] or 1) - 1 if match else None


def has_to_wait(operator: Operator, rank: int) -> bool:
    """Whether elements of a rank may be ahead of others that belong before them."""
    # Of elements with one watermark those of later ranks come last, so they can have to wait
    # even for a stream of the same strategy.
    several = rank > 0 or len(operator.strategies) > 1
    partitioned = operator.inputs[ranks(operator)[rank].input].partitioned
    return "" not in operator.strategies and (several or partitioned)


def has_timers(function: Any) -> bool:
    """Whether a function has an `on_timer` of its own."""
    timed = isinstance(function, TimerFunction)
    return timed and type(function).on_timer is not TimerFunction.on_timer


def is_time_driven(operator: Operator) -> bool:
    """Whether something may happen when time passes, without an element."""
    timed = has_timers(operator.function) or isinstance(operator.function, PaneFunction)
    return timed or is_behind_shuffle(operator)


def is_behind_shuffle(operator: Operator) -> bool:
    """Whether it gives timestamps to elements that may have to wait for others before."""
    return operator.kind is NodeKind.TIMESTAMPS and operator.key is not None


def _timers(function: Any, name: str) -> TimeOrderedStateDescriptor:
    if isinstance(function, WindowOperator | WindowJoinOperator):
        return TimeOrderedStateDescriptor(name, TIMER_NAMES, migrate=for_any_window)
    return TimeOrderedStateDescriptor(name, Types.BOOLEAN())


def timed_states(operator: Operator) -> dict[str, TimeOrderedStateDescriptor]:
    """The states that an operator has for what waits for its time, by name."""
    function = operator.function
    if isinstance(function, PaneFunction):
        states = [function.state()]
    elif is_behind_shuffle(operator):
        states = []
    elif has_timers(function):
        states = [_timers(function, EVENT_TIMERS), _timers(function, PROCESSING_TIMERS)]
    else:
        return {}
    in_order = not isinstance(function, PaneFunction) or function.in_order
    if in_order and any(operator.strategies):
        # Also where nothing has to wait: with an earlier version of the program it may have.
        for number in sorted({rank.input for rank in ranks(operator)}):
            parts = Types.LONG(), operator.inputs[number].type, Types.LIST(Types.LONG()), _STRATEGY
            waiting = RowTypeInfo(("time", "element", "place", "strategy"), parts)
            states.append(TimeOrderedStateDescriptor(AHEAD[number], ListTypeInfo(waiting)))
    return {state.name: state for state in states}
