"""What a start from a snapshot would lose, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

import msgspec

from turnback.checkpoint.manifest import SourcePosition
from turnback.core.units import format_size
from turnback.errors import ConfigurationError, IncompatibleStateError, TurnbackError
from turnback.functions.base import user_function
from turnback.functions.descriptors import StateDescriptor
from turnback.plan.plan import Plan, SourcePlan
from turnback.plan.sources import ChecksIdentity
from turnback.snapshot.evolution import (
    Incompatible,
    Migration,
    descriptor_ttl,
    evolve_state,
    is_redefined,
    ttl_change,
)
from turnback.snapshot.matching import (
    Allowed,
    Program,
    Renames,
    StateMapping,
    key_schema,
    known_states,
    match_program,
    program_of,
    written_name,
)
from turnback.snapshot.metadata import SavedState, StateId
from turnback.snapshot.snapshot import Snapshot
from turnback.state.schema import OPERATOR_KINDS, KeySchema


def refuse_data_loss(snapshot: Snapshot, mapping: StateMapping) -> None:
    """Refuse a start that would lose state, a position or promised output unasked."""
    problems = [
        *_unclaimed_problem(snapshot, mapping),
        *(_stranded_problem(snapshot, s) for s in mapping.stranded if _has_rows(snapshot, s)),
        *(_changed_source_problem(snapshot, mapping, uid) for uid in mapping.changed_sources),
        *(_unclaimed_sink_problem(snapshot, uid) for uid in mapping.unclaimed_sinks),
    ]
    if problems:
        raise IncompatibleStateError("\n".join(problems))


def _changed_source_problem(snapshot: Snapshot, mapping: StateMapping, uid: str) -> str:
    """Why a source that reads another number of streams cannot go on, and what to do."""
    was = mapping.sources[uid]
    before, now = mapping.changed_sources[uid]
    return (
        f"source {uid!r} reads {now} streams, but {before} in {snapshot.name} of job "
        f"{snapshot.job!r}: its position does not apply to all of them. Read added streams with "
        f"a new source that has its own uid, and let {uid!r} read the same streams as before; or "
        "explicitly start it at its initial position with "
        f"allow_non_restored_state=[{written_name(was)}]"
    )


def _unclaimed_sink_problem(snapshot: Snapshot, uid: str) -> str:
    """Why promised output of a sink that is gone cannot be committed, and what to do."""
    name = written_name(uid)
    return (
        f"{snapshot.name} of job {snapshot.job!r} has in-doubt output of "
        f"{snapshot.describe(uid)}, which is not committed yet, and the program has no such "
        f"sink. Give the sink this uid again; or map it to its new uid with renames={{{name}: "
        f"...}}; or commit the output first with `turnback transactions commit {snapshot.job}`; "
        f"or explicitly drop it with allow_non_restored_state=[{name}]"
    )


def _unclaimed_problem(snapshot: Snapshot, mapping: StateMapping) -> Iterator[str]:
    if not mapping.unclaimed:
        return
    lines = [
        f"  state {s.schema.name!r} of {snapshot.describe(s.schema.uid)}"
        + (f": {_size(s)}" if _size(s) else "")
        for s in mapping.unclaimed
    ]
    names = _drop_names(snapshot, mapping)
    yield (
        f"{snapshot.name} of job {snapshot.job!r} has state that no operator of the program "
        "claims:\n"
        + "\n".join(lines)
        + "\nGive its operators these uids and states again; or map them to their new names with "
        f"renames={{{names[0]}: ...}}; or explicitly drop all unclaimed state with "
        "allow_non_restored_state=True, or only this state with "
        f"allow_non_restored_state=[{', '.join(names)}]"
    )


def _stranded_problem(snapshot: Snapshot, state: SavedState) -> str:
    """Why elements that wait cannot be processed, and what to do."""
    return (
        f"{snapshot.name} of job {snapshot.job!r} has elements in the state "
        f"{state.schema.name!r} of {snapshot.describe(state.schema.uid)} that wait for a slower "
        "stream, but the program cannot assign them to a stream, or does not process them. They "
        "have already been read from their source. Start the program with the streams that the "
        "operator had, let it take a checkpoint with this version of Turnback, and then change "
        "it; or end the job with turnback stop --drain; or explicitly drop the elements with "
        f"allow_non_restored_state=[{written_name(state.id)}]"
    )


def _has_rows(snapshot: Snapshot, state: SavedState) -> bool:
    """Whether a state has any rows; those of a checkpoint have to be read for that."""
    if state.rows is not None:
        return state.rows > 0
    return any(len(rows) for rows in snapshot.rows(state).rows(0, snapshot.max_parallelism - 1))


def _drop_names(snapshot: Snapshot, mapping: StateMapping) -> list[str]:
    """The shortest names, as they are written in a program, of all that is unclaimed."""
    unclaimed = [s.id for s in mapping.unclaimed]
    claimed = {s.id[0] for s in snapshot.states if s.id not in unclaimed}
    return list(dict.fromkeys(written_name(id if id[0] in claimed else id[0]) for id in unclaimed))


def _size(state: SavedState) -> str:
    """Rows and bytes of a state for people, as far as they are known without reading it."""
    parts = [] if state.rows is None else [f"{state.rows:,} rows"]
    if state.size:
        parts.append(f"{state.size} bytes" if state.size < 1024 else format_size(state.size))
    return ", ".join(parts)


class Verdict(Enum):
    """What would become of a part of a snapshot or of a program."""

    RESTORED = "restored"
    MIGRATED = "migrated"
    NEW = "new"
    UNCLAIMED = "unclaimed"
    INCOMPATIBLE = "incompatible"
    UNKNOWN = "unknown"
    INFO = "info"


class Subject(Enum):
    """What a row of a report is about."""

    STATE = "state"
    SOURCE = "source"
    SINK = "sink"
    OPERATOR = "operator"
    KEY_GROUPS = "key groups"


class CheckRow(msgspec.Struct, frozen=True, rename={"subject": "what"}):
    """One line of a report; it is `blocking` if the job would refuse to start because of it.

    The uid is that of the snapshot where something is unclaimed, else of the program.
    """

    subject: Subject
    uid: str
    state: str
    verdict: Verdict
    reason: str = ""
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What would happen if a program were started from a snapshot of a job.

    The rows are states in the order of the program, then those nothing claims, then all else.
    """

    snapshot: str
    job: str
    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is known that would keep the job from starting."""
        return not any(row.blocking for row in self.rows)

    def of(self, verdict: Verdict) -> tuple[CheckRow, ...]:
        return tuple(row for row in self.rows if row.verdict is verdict)

    def render(self) -> str:
        head = ("VERDICT", "WHAT", "UID", "STATE", "REASON")
        lines = [head] + [
            (row.verdict.value, row.subject.value, row.uid, row.state, row.reason)
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in lines) for i in range(4)]
        table = [
            "  ".join([*(c.ljust(w) for c, w in zip(line[:4], widths, strict=True)), line[4]])
            for line in lines
        ]
        counts = [(len(self.of(v)), v.value) for v in Verdict if v is not Verdict.INFO]
        summary = ", ".join(f"{count} {verdict}" for count, verdict in counts if count)
        title = f"{self.snapshot} of job {self.job!r}"
        ending = f"{'ok' if self.ok else 'not ok'}: {summary or 'nothing to restore'}"
        return "\n".join([title, "", *(line.rstrip() for line in table), "", ending])

    def to_dict(self) -> dict[str, Any]:
        return {
            "snapshot": self.snapshot,
            "job": self.job,
            "ok": self.ok,
            "rows": [msgspec.to_builtins(r) | {"state": r.state or None} for r in self.rows],
        }


def check(
    plan: Plan,
    snapshot: Snapshot,
    renames: Renames | None = None,
    allow: Allowed = False,
    streams: Mapping[str, int] | None = None,
) -> CheckReport:
    """Tell what would happen if a program were started from a snapshot.

    Runs and reads nothing, but asks sources such as Kafka whether they still have what comes next.
    """
    program = program_of(plan, streams)
    mapping = match_program(snapshot, program, renames, allow)
    redefined = _redefined(plan, mapping)
    if redefined:
        mapping = match_program(snapshot, program, renames, allow, redefined)
    rows = [
        *_states(plan, mapping),
        *_unknown(plan, mapping),
        *_unclaimed(program, snapshot, mapping),
        *_stranded(snapshot, mapping),
        *_sources(plan, snapshot, mapping),
        *_sinks(snapshot, mapping),
        *_key_groups(plan, snapshot),
        *_parallelism(plan, snapshot, mapping),
    ]
    return CheckReport(snapshot.name, snapshot.job, tuple(rows))


def _redefined(plan: Plan, mapping: StateMapping) -> set[StateId]:
    """The states of a program that stand for something else than what is stored."""
    found = set()
    for op in plan.operators():
        for name, descriptor in known_states(op).items() if op.is_stateful else ():
            stored = mapping.states.get((op.uid, name))
            if stored is not None and is_redefined(stored.schema, descriptor):
                found.add((op.uid, name))
    return found


def _states(plan: Plan, mapping: StateMapping) -> Iterator[CheckRow]:
    for op in plan.operators():
        for name, descriptor in known_states(op).items() if op.is_stateful else ():
            stored = mapping.states.get((op.uid, name))
            if (op.uid, name) in mapping.anew:
                reason = "starts empty, because its definition has changed"
                yield CheckRow(Subject.STATE, op.uid, name, Verdict.NEW, reason)
            elif stored is None:
                yield CheckRow(Subject.STATE, op.uid, name, Verdict.NEW, "starts empty")
            else:
                yield _known(op.uid, stored, descriptor, key_schema(op, descriptor))


def _known(uid: str, stored: SavedState, descriptor: StateDescriptor, key: KeySchema) -> CheckRow:
    outcome = evolve_state(stored.schema, descriptor, key)
    id = (uid, descriptor.name)
    if isinstance(outcome, Incompatible):
        reason = outcome.reason
        verdict = Verdict.INCOMPATIBLE
    elif isinstance(outcome, Migration):
        reason = outcome.why
        verdict = Verdict.MIGRATED
    else:
        change = ttl_change(stored.schema.ttl, descriptor_ttl(descriptor))
        reason = "; ".join(part for part in (change, _size(stored)) if part)
        verdict = Verdict.RESTORED
    reason = "; ".join(part for part in (_renamed(stored, id), reason) if part)
    return CheckRow(Subject.STATE, *id, verdict, reason, isinstance(outcome, Incompatible))


def _renamed(stored: SavedState, id: StateId) -> str:
    return "" if stored.id == id else f"from {written_name(stored.id)}"


def _unknown(plan: Plan, mapping: StateMapping) -> Iterator[CheckRow]:
    operators = {op.uid: op for op in plan.operators()}
    for id in sorted(mapping.undecided):
        operator = operators[id[0]]
        if mapping.states[id].schema.kind in OPERATOR_KINDS:
            advice = "may request it in initialize_state(), which is known only at run time"
        else:
            advice = (
                "may request it in open(), which is known only at run time; declare it as a "
                "class attribute to know beforehand"
            )
        advice = f"{type(user_function(operator.function)).__name__} {advice}"
        reason = "; ".join(p for p in (_renamed(mapping.states[id], id), advice) if p)
        yield CheckRow(Subject.STATE, *id, Verdict.UNKNOWN, reason)


def _unclaimed(program: Program, snapshot: Snapshot, mapping: StateMapping) -> Iterator[CheckRow]:
    for stored in snapshot.states:
        if stored in mapping.dropped:
            reason = "dropped, as allowed"
        elif stored in mapping.unclaimed:
            reason = (
                f"{_why_unclaimed(stored, program, mapping)}; rename it, or allow "
                f"{written_name(stored.id)} to be dropped"
            )
        else:
            continue
        if _size(stored):
            reason += f" ({_size(stored)})"
        blocking = stored in mapping.unclaimed
        yield CheckRow(Subject.STATE, *stored.id, Verdict.UNCLAIMED, reason, blocking)


def _stranded(snapshot: Snapshot, mapping: StateMapping) -> Iterator[CheckRow]:
    for stored in mapping.stranded:
        if stored.rows != 0:
            # How many wait in a checkpoint is known only when it is read.
            blocking = stored.rows is not None
            verdict = Verdict.UNCLAIMED if blocking else Verdict.UNKNOWN
            reason = _stranded_problem(snapshot, stored)
            yield CheckRow(Subject.STATE, *stored.id, verdict, reason, blocking)


def _why_unclaimed(stored: SavedState, program: Program, mapping: StateMapping) -> str:
    """Why nothing claims a state, and what it may be called now."""
    uid, name = stored.id
    now = next((new for new, old in mapping.operators.items() if old == uid), None)
    if now is None:
        what = "no operator has this uid"
        names = list(program.states)
    elif now not in program.states:
        what = f"operator {now!r} has neither a key nor operator state"
        names = []
    else:
        what = f"operator {now!r} has no such state"
        names = sorted(program.states[now])
    near = get_close_matches(uid if now is None else name, names, 1, 0.5)
    return f"{what} (renamed to {near[0]!r}?)" if near else what


def check_position(source: SourcePlan, name: str, position: SourcePosition | None) -> list[str]:
    """Refuse a position that a source cannot go on from; gives what people should know of it."""
    if source.check is None:
        return []
    notes = source.check(name, position.offset if position is not None else None)
    if position is not None and position.identity and isinstance(source.check, ChecksIdentity):
        source.check.check_identity(name, position.identity)
    return list(notes or ())


def _sources(plan: Plan, snapshot: Snapshot, mapping: StateMapping) -> Iterator[CheckRow]:
    for source in plan.sources:
        uid = source.uid
        old = mapping.sources.get(uid)
        verdict = Verdict.RESTORED
        reason = "" if old == uid else f"from {old!r}"
        if old is None:
            verdict = Verdict.NEW
            reason = "starts at its initial position"
        elif uid in mapping.changed_sources:
            verdict = Verdict.INCOMPATIBLE
            reason = _changed_source_problem(snapshot, mapping, uid)
        elif uid in mapping.rewound_sources:
            verdict = Verdict.NEW
            reason = (
                "reads a different number of streams, so it starts at its initial position, "
                "as allowed"
            )
        if verdict is Verdict.RESTORED and source.check is not None and old is not None:
            try:
                notes = check_position(source, f"source {uid!r}", snapshot.sources[old])
                reason = "; ".join([reason, *notes] if reason else notes)
            except ConfigurationError as error:
                verdict = Verdict.INCOMPATIBLE
                reason = str(error)
            except TurnbackError as error:  # it may be there when the job starts
                verdict = Verdict.UNKNOWN
                reason = str(error)
        blocking = verdict is Verdict.INCOMPATIBLE
        yield CheckRow(Subject.SOURCE, uid, "", verdict, reason, blocking)
    for uid in mapping.lost_sources:
        reason = (
            "no source has this uid, so its position is dropped; if it is still read under "
            "another uid, rename it"
        )
        yield CheckRow(Subject.SOURCE, uid, "", Verdict.UNCLAIMED, reason)


def _sinks(snapshot: Snapshot, mapping: StateMapping) -> Iterator[CheckRow]:
    for uid in mapping.unclaimed_sinks:
        reason = _unclaimed_sink_problem(snapshot, uid)
        yield CheckRow(Subject.SINK, uid, "", Verdict.UNCLAIMED, reason, True)
    for uid in mapping.dropped_sinks:
        reason = "in-doubt output is dropped, as allowed"
        yield CheckRow(Subject.SINK, uid, "", Verdict.UNCLAIMED, reason)


def _key_groups(plan: Plan, snapshot: Snapshot) -> Iterator[CheckRow]:
    was = snapshot.max_parallelism
    now = plan.max_parallelism
    if was != now:
        reason = (
            f"the snapshot has {was} key groups, but the program has {now}; call "
            f"set_max_parallelism({was}), or rewrite the savepoint offline for {now}"
        )
        yield CheckRow(Subject.KEY_GROUPS, "", "", Verdict.INCOMPATIBLE, reason, True)


def _parallelism(plan: Plan, snapshot: Snapshot, mapping: StateMapping) -> Iterator[CheckRow]:
    before = {op.uid: op.parallelism for op in snapshot.operators}
    for op in plan.operators():
        was = before.get(mapping.operators.get(op.uid, ""))
        if op.is_stateful and was is not None and was != op.parallelism:
            reason = f"parallelism changes from {was} to {op.parallelism}"
            yield CheckRow(Subject.OPERATOR, op.uid, "", Verdict.INFO, reason)
