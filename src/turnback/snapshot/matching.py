"""Which state of a snapshot goes to which state of a program.

Names in `renames` and in what may be dropped are ``"uid"`` for an operator with all it has, or
``"uid/state"`` for one state. Uids and state names may hold slashes themselves: a text is read in
every way that names something that exists, and refused when there are several; the pair
``("uid", "state")`` can be read in one way only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import msgspec

from turnback.errors import ConfigurationError
from turnback.functions.base import Function, declared_states, user_function
from turnback.functions.broadcast import BroadcastOperator
from turnback.functions.descriptors import StateDescriptor, ValueStateDescriptor
from turnback.functions.operator_state import BroadcastStateDescriptor, CheckpointedFunction
from turnback.plan.graph import REDUCED, NodeKind
from turnback.plan.plan import (
    AHEAD,
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    Operator,
    Plan,
    Rank,
    ahead_rank,
    ranks,
    timed_states,
)
from turnback.snapshot.metadata import SavedState, StateId
from turnback.snapshot.snapshot import Snapshot
from turnback.state.schema import OPERATOR_KINDS, KeySchema
from turnback.state.subtasks import SUBTASK_KEY
from turnback.timing.joins import WindowJoinOperator
from turnback.timing.window_operator import (
    ALARMS,
    ELEMENTS,
    PLACES,
    TRIGGERS,
    WINDOWS,
    WindowOperator,
)
from turnback.timing.window_state import WINDOW_STATE

Name = str | StateId
Renames = Mapping[Name, Name]
"""Old names, in the snapshot, to new ones, in the program."""
Allowed = bool | Collection[Name]
"""What of a snapshot may be dropped: all, nothing, or what is named, by its names there."""
OF_WINDOWS = (
    ELEMENTS, PLACES, TRIGGERS, ALARMS, WINDOW_STATE, EVENT_TIMERS, PROCESSING_TIMERS,
)  # fmt: skip
"""States of an operator that mean nothing without its windows."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a program can take over from a snapshot; sets hold the uids of operators.

    Attributes:
        states: Names of the states of each operator that may have any, as far as known.
        open: Those that may request more states when they are opened.
        others: All that are neither sources nor may have state.
        sinks: The sinks among those.
        streams: How many streams each source reads, as far as known.
        ranks: Of operators that process elements in the order of time, what may have to wait.
    """

    states: Mapping[str, frozenset[str]]
    open: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()
    streams: Mapping[str, int] = field(default_factory=dict)
    ranks: Mapping[str, tuple[Rank, ...]] = field(default_factory=dict)

    def uids(self) -> frozenset[str]:
        return self.sources | self.others | frozenset(self.states)

    def knows(self, id: StateId) -> bool:
        return id[1] in self.states.get(id[0], ())

    def may_have(self, id: StateId) -> bool:
        """Whether it has a state, or may request it when it is opened."""
        return self.knows(id) or id[0] in self.open


class WaitingElements(NamedTuple):
    """A stored state with elements that wait for slower streams.

    The strategy they go by is the one in the program; None if each has its own with it.
    """

    state: SavedState
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class StateMapping:
    """Which part of a snapshot goes to which part of a program.

    Attributes:
        states: The stored state that each state of the program starts from; others start empty.
        undecided: Those of them that operators may or may not request when they are opened.
        unclaimed: Stored states that nothing takes and that may not be dropped.
        dropped: Stored states that nothing takes and that may be dropped.
        anew: States of the program that start empty although they are stored, because their
            definition has changed and what is stored may be dropped.
        operators: The operator of the snapshot that each operator of the program was, by uid.
        sources: The source of the snapshot whose position each source of the program goes on from.
        lost_sources: Sources of the snapshot that the program does not have.
        changed_sources: Sources of the program whose position cannot be used, because they read
            another number of streams than in the snapshot; with that number then and now.
        rewound_sources: Likewise, but they may start from their beginning.
        sinks: The sink of the program that commits the promised output of each sink of the
            snapshot.
        unclaimed_sinks: Sinks of the snapshot whose promised output nothing can commit.
        dropped_sinks: Likewise, but it may be dropped.
        waiting: Elements that wait in one state of the program, if they are stored in several, or
            under strategies that are called otherwise now.
        stranded: Stored states with elements that wait, which the program cannot process. They were
            read from their sources already, so they must not be dropped together with others.
    """

    states: Mapping[StateId, SavedState]
    undecided: frozenset[StateId]
    unclaimed: tuple[SavedState, ...]
    dropped: tuple[SavedState, ...]
    anew: frozenset[StateId]
    operators: Mapping[str, str]
    sources: Mapping[str, str]
    lost_sources: tuple[str, ...]
    changed_sources: Mapping[str, tuple[int, int]]
    rewound_sources: tuple[str, ...]
    sinks: Mapping[str, str]
    unclaimed_sinks: tuple[str, ...]
    dropped_sinks: tuple[str, ...]
    waiting: Mapping[StateId, tuple[WaitingElements, ...]] = field(default_factory=dict)
    stranded: tuple[SavedState, ...] = ()


def match_program(
    snapshot: Snapshot,
    program: Program,
    renames: Renames | None = None,
    allow: Allowed = False,
    redefined: Collection[StateId] = (),
) -> StateMapping:
    """Match the states, sources and sinks of a snapshot with those of a program, by uid and name.

    A renamed operator takes all its states along, except those renamed by themselves. States of the
    program that are `redefined` start anew if what is stored may be dropped. Raises
    `ConfigurationError` if `renames` or `allow` name something that does not exist or can be read
    in several ways, or two stored states would become one.
    """
    renamed = _Renamed.read(snapshot, program, renames or {})
    droppable = _Droppable.read(snapshot, allow)
    states: dict[StateId, list[SavedState]] = defaultdict(list)
    left: list[SavedState] = []
    waiting, stranded = _match_waiting(snapshot, program, renamed, droppable)
    for id, elements in waiting.items():
        states[id] = [elements[0].state]
    matched = [*stranded, *(each.state for some in waiting.values() for each in some)]
    targets = {state.id: renamed.state(state.id) for state in snapshot.states}
    anew = {new for old, new in targets.items() if new in redefined and droppable.covers(old)}
    anew |= {(uid, each) for uid, name in anew if name == WINDOWS for each in OF_WINDOWS}
    for state in snapshot.states:
        target = targets[state.id]
        if state in matched:
            continue
        if program.may_have(target) and target not in anew:
            states[target].append(_without_idle_definition(state))
        else:
            left.append(state)
    started_anew = [state for state in left if targets[state.id] in anew]
    sources: dict[str, list[str]] = defaultdict(list)
    for uid in snapshot.streams:
        sources[renamed.uid(uid)].append(uid)
    for id, several in states.items():
        _check_one(f"state {id[1]!r} of operator {id[0]!r}", [s.id for s in several])
    for uid, uids in sources.items():
        _check_one(f"source {uid!r}", uids)
    counts = {
        uid: (snapshot.streams[uids[0]], program.streams[uid])
        for uid, uids in sources.items()
        if uid in program.streams
    }
    changed = {uid: count for uid, count in counts.items() if count[0] != count[1]}
    rewound = {uid for uid in changed if droppable.covers(sources[uid][0])}
    sinks = {uid: renamed.uid(uid) for uid in snapshot.promising_sinks}
    unmatched = [uid for uid, now in sinks.items() if now not in program.sinks]
    return StateMapping(
        states={id: several[0] for id, several in states.items()},
        undecided=frozenset(id for id in states if not program.knows(id)),
        unclaimed=tuple(s for s in left if not (droppable.covers(s.id) or s in started_anew)),
        dropped=tuple(s for s in left if droppable.covers(s.id) or s in started_anew),
        anew=frozenset(targets[state.id] for state in started_anew),
        operators={
            renamed.uid(u): u for u in sorted(snapshot.uids()) if renamed.uid(u) in program.uids()
        },
        sources={uid: uids[0] for uid, uids in sources.items() if uid in program.sources},
        lost_sources=tuple(
            u for uid, uids in sources.items() if uid not in program.sources for u in uids
        ),
        changed_sources={uid: count for uid, count in changed.items() if uid not in rewound},
        rewound_sources=tuple(sorted(rewound)),
        sinks={uid: now for uid, now in sinks.items() if uid not in unmatched},
        unclaimed_sinks=tuple(uid for uid in unmatched if not droppable.covers(uid)),
        dropped_sinks=tuple(uid for uid in unmatched if droppable.covers(uid)),
        waiting=waiting,
        stranded=tuple(stranded),
    )


def _without_idle_definition(state: SavedState) -> SavedState:
    """The same state; one that holds nothing can become that of any definition."""
    if state.rows != 0:
        return state
    schema = msgspec.structs.replace(state.schema, definition=None, accumulators=None)
    return msgspec.structs.replace(state, schema=schema)


def _match_waiting(
    snapshot: Snapshot, program: Program, renamed: _Renamed, droppable: _Droppable
) -> tuple[dict[StateId, tuple[WaitingElements, ...]], list[SavedState]]:
    """What has to be converted of elements that wait, and what nothing can process.

    They belong to an input and a strategy. Older versions knew them by their position among these,
    which says nothing any more once there are others.
    """
    found: dict[StateId, tuple[WaitingElements, ...]] = {}
    stranded: list[SavedState] = []
    old = [state for state in snapshot.states if ahead_rank(state.schema.name) is not None]
    for state in snapshot.states:
        uid = renamed.uid(state.schema.uid)
        rank = ahead_rank(state.schema.name)
        if rank is None and state.schema.name not in AHEAD:
            continue
        if uid not in program.states or state.id in droppable.names:
            continue  # what goes with its operator, or by its name, goes knowingly
        if rank is None:
            if not program.knows((uid, state.schema.name)):
                stranded.append(state)
            elif any(renamed.uid(op.uid) != op.uid for op in snapshot.operators):
                found[uid, state.schema.name] = (WaitingElements(state),)
            continue
        numbers = [ahead_rank(each.schema.name) or 0 for each in old if each.id[0] == state.id[0]]
        known = renamed.ranks(program.ranks.get(uid, ()), snapshot)
        if len(known) != max(numbers) + 1:
            stranded.append(state)
            continue
        target = (uid, AHEAD[known[rank].input])
        found[target] = (*found.get(target, ()), WaitingElements(state, known[rank].strategy))
    return found, stranded


def known_names(snapshot: Snapshot, names: Iterable[Name]) -> list[Name]:
    """Of some names, those of operators or states that are in a snapshot."""
    known = _names_of(snapshot)
    return [name for name in names if known.readings(name)]


def written_name(name: Name) -> str:
    """A name as it is written in a program: a pair where a text could be misread."""
    if isinstance(name, str):
        return repr(name)
    return repr(name) if any("/" in part for part in name) else repr("/".join(name))


@dataclass(frozen=True, slots=True)
class _Renamed:
    """What operators and states of a snapshot are called in the program."""

    operators: Mapping[str, str]
    states: Mapping[StateId, StateId]

    @classmethod
    def read(cls, snapshot: Snapshot, program: Program, renames: Renames) -> _Renamed:
        operators: dict[str, str] = {}
        states: dict[StateId, StateId] = {}
        before = _names_of(snapshot)
        now = _names_in(program)
        for given, target in renames.items():
            old = before.read(given, "renames")
            new = now.read(target, f"renames[{given!r}]", type(old))
            if old in operators or old in states:
                raise ConfigurationError(f"renames contains {written_name(old)} twice; remove one")
            if isinstance(old, str) and isinstance(new, str):
                operators[old] = new
            elif isinstance(old, tuple) and isinstance(new, tuple):
                states[old] = new
        return cls(operators, states)

    def uid(self, uid: str) -> str:
        return self.operators.get(uid, uid)

    def ranks(self, now: Iterable[Rank], snapshot: Snapshot) -> list[Rank]:
        """The ranks of an operator in the order that they had in a snapshot of an older version.

        None of those whose strategies it did not have.
        """
        before = {self.uid(op.uid): op.uid for op in snapshot.operators}
        known = [rank for rank in now if rank.strategy in before]
        return sorted(known, key=lambda rank: (rank.input, before[rank.strategy]))

    def state(self, id: StateId) -> StateId:
        return self.states.get(id) or (self.uid(id[0]), id[1])


@dataclass(frozen=True, slots=True)
class _Droppable:
    """What of a snapshot may be dropped: everything, or operators and states by name."""

    everything: bool
    names: frozenset[Name] = frozenset()

    @classmethod
    def read(cls, snapshot: Snapshot, allow: Allowed) -> _Droppable:
        if isinstance(allow, bool):
            return cls(allow)
        owners = {uid for uid, _ in snapshot.state_ids}
        owners |= {*snapshot.streams, *snapshot.promising_sinks}
        names = replace(_names_of(snapshot), uids=owners)
        given = [allow] if isinstance(allow, str) else allow
        return cls(False, frozenset(names.read(n, "allow_non_restored_state") for n in given))

    def covers(self, name: Name) -> bool:
        of_operator = isinstance(name, tuple) and name[0] in self.names
        return self.everything or name in self.names or of_operator


@dataclass(frozen=True, slots=True)
class _Names:
    """Reads what a user has called an operator or a state."""

    whose: str
    uids: Collection[str]
    ids: Collection[StateId]
    has: Callable[[StateId], bool]

    def read(self, given: Any, option: str, sort: type = object) -> Name:
        """The one operator (`str`) or state (`tuple`) that is meant."""
        readings = [name for name in self.readings(given) if isinstance(name, sort)]
        if len(readings) == 1:
            return readings[0]
        if readings:
            ways = " or ".join(map(repr, readings))
            raise ConfigurationError(
                f"{option}: {given!r} can mean {ways}; write states as pairs, ('uid', 'state')"
            )
        known = [*self.uids] if sort is not tuple else []
        known += ["/".join(id) for id in self.ids] if sort is not str else []
        text = given if isinstance(given, str) else "/".join(map(str, given))
        near = get_close_matches(text, known, 1, 0.5)
        has = ", ".join(map(repr, sorted(known))) or "none"
        hint = f"did you mean {near[0]!r}?" if near else f"available: {has}"
        what = "operator" if sort is str else "state" if sort is tuple else "operator or state"
        raise ConfigurationError(f"{option}: {self.whose} has no {what} {given!r}; {hint}")

    def readings(self, given: Any) -> list[Name]:
        if isinstance(given, str):
            cuts = [i for i, char in enumerate(given) if char == "/"]
            pairs = [(given[:i], given[i + 1 :]) for i in cuts]
            whole: list[Name] = [given] if given in self.uids else []
            return whole + [id for id in pairs if self.has(id)]
        if isinstance(given, tuple | list) and [type(part) for part in given] == [str, str]:
            return [id for id in [(given[0], given[1])] if self.has(id)]
        raise ConfigurationError(
            f"expected 'uid', 'uid/state' or ('uid', 'state') as the name of state, got {given!r}"
        )


def _names_of(snapshot: Snapshot) -> _Names:
    ids = snapshot.state_ids
    return _Names(snapshot.name, snapshot.uids(), ids, ids.__contains__)


def _names_in(program: Program) -> _Names:
    ids = [(uid, name) for uid, names in program.states.items() for name in names]
    return _Names("the program", program.uids(), ids, program.may_have)


def _check_one(what: str, names: Sequence[Name]) -> None:
    if len(names) > 1:
        raise ConfigurationError(
            f"{what} would start from {' and '.join(map(written_name, names))}, but it can only "
            "take over one of them: remove a rename, or give the other one its own state"
        )


def program_of(plan: Plan, streams: Mapping[str, int] | None = None) -> Program:
    """What a program can take over, as far as it is known without running it."""
    stateful = [op for op in plan.operators() if op.is_stateful]
    states = {op.uid: frozenset(known_states(op)) for op in stateful}
    sources = frozenset(source.uid for source in plan.sources)
    return Program(
        states=states,
        open=frozenset(op.uid for op in stateful if _may_request_in_open(op)),
        sources=sources,
        others=frozenset(op.uid for op in plan.operators()) - sources - frozenset(states),
        sinks=frozenset(op.uid for op in plan.operators() if op.kind is NodeKind.SINK),
        streams=dict(streams or {}),
        ranks={op.uid: ranks(op) for op in stateful if AHEAD[0] in states[op.uid]},
    )


def known_states(operator: Operator) -> dict[str, StateDescriptor]:
    """The states an operator is known to have without being opened, by name."""
    states = {d.name: d for d in declared_states(operator.function).values()}
    if operator.kind is NodeKind.REDUCE:
        states[REDUCED] = ValueStateDescriptor(REDUCED, operator.type)
    if isinstance(operator.function, BroadcastOperator):
        descriptors = map(BroadcastStateDescriptor.of, operator.function.descriptors)
        states |= {descriptor.name: descriptor for descriptor in descriptors}
    if isinstance(operator.function, WindowOperator | WindowJoinOperator):
        states[WINDOWS] = operator.function.stored_windows()
    return states | timed_states(operator)


def key_schema(operator: Operator, descriptor: StateDescriptor) -> KeySchema:
    """How an operator's rows of a state are keyed."""
    if operator.key is None or descriptor.kind in OPERATOR_KINDS:
        return SUBTASK_KEY
    return KeySchema.of(operator.key.codec())


def _may_request_in_open(operator: Operator) -> bool:
    """Whether a function may request state when it is opened: if it overrides what is called."""
    function = user_function(operator.function)
    if isinstance(function, CheckpointedFunction):
        return True
    if not isinstance(function, Function):
        return False
    return getattr(function.open, "__func__", None) is not Function.open
