"""What differs between two snapshots, compared in this process, a page at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from turnback.errors import ConfigurationError, IncompatibleStateError
from turnback.snapshot.metadata import StateId
from turnback.snapshot.snapshot import Snapshot, spans
from turnback.state.schema import OPERATOR_KINDS
from turnback.views import local_sql
from turnback.views.browse import SCAN_S, RowPosition, StateRows, check_limit
from turnback.views.model import DiffPage, DiffRow, StateDiffRow
from turnback.views.snapshots import reading

if TYPE_CHECKING:  # needs Arrow
    from turnback.api.savepoint import StateDiff
    from turnback.snapshot.diff import EntryChange, StatePair

SPAN_ROWS = 100_000
SPAN_BYTES = 32 << 20
"""About as much of both snapshots is compared at once, but never less than a key group."""


def states(before: Snapshot, after: Snapshot) -> list[StateDiffRow]:
    """Return which states there are to compare; `presence` is both, before or after."""
    from turnback.snapshot.evolution import ttl_change

    old, new = ({state.id: state.schema for state in side.states} for side in (before, after))
    presence = {id: "before" if id in old else "after" for id in old.keys() ^ new.keys()}
    notes = {id: ttl_change(old[id].ttl, new[id].ttl) for id in old.keys() & new.keys()}
    return [
        StateDiffRow(
            uid=uid,
            name=name,
            presence=presence.get((uid, name), "both"),
            note=notes.get((uid, name)) or None,
        )
        for uid, name in sorted(old.keys() | new.keys())
    ]


def page(
    before: Snapshot,
    after: Snapshot,
    uid: str,
    name: str,
    *,
    after_cursor: str | None = None,
    limit: int = 50,
) -> DiffPage:
    """Compare a state in two snapshots, key group by key group, as `snapshot.diff` does.

    The numbers of all pages add up to those of the whole state. A page may have fewer rows than
    `limit` and still not be the last one: only `next` tells. Raises `IncompatibleStateError` if
    types or key groups differ.
    """
    from turnback.snapshot.diff import state_pair

    check_limit(limit)
    start = RowPosition.of(after_cursor)
    pair = state_pair(before, after, uid, name)
    _check_comparable(pair)
    with reading(before, after):
        changes, unchanged, following = _compare(pair, start, limit)
    counts = Counter(change.change.value for change in changes)
    side = after if (uid, name) in after.state_ids else before
    return DiffPage(
        uid=uid,
        name=name,
        added=counts["added"],
        removed=counts["removed"],
        changed=counts["changed"],
        same=unchanged,
        rows=_rows(changes, StateRows(side, uid, name)),
        next=following.cursor() if following is not None else None,
    )


# -- whole snapshots


def fits_here(before: Snapshot, after: Snapshot, id: StateId | None = None) -> bool:
    """Whether two snapshots, or one state of both, are small enough to be compared here."""
    sides = [
        side.rows(state)
        for side in (before, after)
        for state in side.states
        if id is None or state.id == id
    ]
    return local_sql.fits_here(*sides)


def summary(before: Snapshot, after: Snapshot) -> list[StateDiff]:
    """Count what differs in every state, as `SavepointDiff.summary` does."""
    from turnback.api.savepoint import StateDiff
    from turnback.snapshot.diff import Change, state_ids, state_pair

    counted = []
    with reading(before, after):
        for id in state_ids(before, after):
            pair = state_pair(before, after, *id)
            counts = Counter[Change]()
            for changes, same in _all_changes(pair):
                counts.update(change.change for change in changes)
                counts[Change.UNCHANGED] += same
            counted.append(StateDiff.of(id, pair, counts))
    return counted


def differences(
    before: Snapshot, after: Snapshot, uid: str, name: str, most: int
) -> tuple[list[str], list[list[Any]]]:
    """Columns and first rows of what differs in a state, as `SavepointDiff.state` gives them."""
    from turnback.snapshot.diff import ChangeDecoder, state_pair, typed_changes

    pair = state_pair(before, after, uid, name)
    _check_types(pair)
    changed: list[EntryChange] = []
    with reading(before, after):
        for changes, _ in _all_changes(pair):
            changed += changes[: most - len(changed)]
            if len(changed) >= most:
                break
    old, new = typed_changes(changed, pair.schema)
    kinds = [change.change.value for change in changed]
    names = ChangeDecoder(pair.schema).schema.names
    columns = [local_sql.collected(old[name]) for name in names[:-3]]
    columns += [kinds, local_sql.collected(old["value"]), local_sql.collected(new["value"])]
    return names, [list(row) for row in zip(*columns, strict=True)]


def _all_changes(pair: StatePair) -> Iterator[tuple[list[EntryChange], int]]:
    """Compare everything; in parts where equal keys are in the same ones."""
    from turnback.snapshot.diff import changes

    if pair.problem is not None:
        return
    together = _why_apart(pair) is None and pair.schema.kind not in OPERATOR_KINDS
    groups = max(pair.old_groups, pair.new_groups)
    rows = sum(file.rows for file in pair.old.held_by() + pair.new.held_by())
    for span in spans(groups, -(-rows // SPAN_ROWS) if together else 1):
        yield changes(pair, *span)


# -- a page


def _check_types(pair: StatePair) -> None:
    if pair.problem is not None:
        raise IncompatibleStateError(
            f"{pair.schema.title} cannot be compared: {pair.problem}. View it in each of the two "
            "snapshots instead"
        )


def _why_apart(pair: StatePair) -> str | None:
    """Why equal keys are in different key groups of the two; None if they are not."""
    if not pair.is_in_both:
        return None
    if pair.old_groups != pair.new_groups:
        return f"one snapshot has {pair.old_groups} key groups, the other {pair.new_groups}"
    if pair.old.schema.key.columns != pair.new.schema.key.columns:
        return "the stream was keyed by columns in one snapshot and by a function in the other"
    return None


def _check_comparable(pair: StatePair) -> None:
    _check_types(pair)
    problem = _why_apart(pair)
    if problem is not None:
        raise IncompatibleStateError(
            f"{pair.schema.title} cannot be compared here: {problem}, so equal keys are in "
            "different key groups. Use `turnback diff`, which matches them"
        )


def _compare(
    pair: StatePair, start: RowPosition, limit: int
) -> tuple[list[EntryChange], int, RowPosition | None]:
    """Return what differs from a position on, how many rows do not, and where to go on."""
    from turnback.snapshot.diff import changes

    deadline = time.monotonic() + SCAN_S
    # Always the same ranges of key groups, so that a cursor means the same on every page.
    files = pair.old.held_by() + pair.new.held_by()
    rows = sum(f.rows for f in files)
    size = sum(f.length for f in files)
    parts = max(-(-rows // SPAN_ROWS), -(-size // SPAN_BYTES))
    if pair.schema.kind in OPERATOR_KINDS:
        parts = 1  # in which group a subtask has its state depends on how many there are
    ranges = spans(max(pair.old_groups, pair.new_groups), parts)
    if start.block not in (first for first, _ in ranges):
        raise ConfigurationError(
            f"invalid cursor {start.cursor()!r}: pass `next` of the previous page, with the same "
            "two snapshots"
        )
    page: list[EntryChange] = []
    unchanged = 0
    for span in (span for span in ranges if span[0] >= start.block):
        is_first = span[0] == start.block
        if not is_first and (len(page) >= limit or time.monotonic() >= deadline):
            return page, unchanged, RowPosition(span[0], 0)
        different, same = changes(pair, *span)
        skipped = start.row if is_first else 0
        taken = different[skipped:][: limit - len(page)]
        page += taken
        if skipped + len(taken) < len(different):
            return page, unchanged, RowPosition(span[0], skipped + len(taken))
        unchanged += same
    return page, unchanged, None


def _rows(changes: list[EntryChange], state: StateRows) -> tuple[DiffRow, ...]:
    from turnback.snapshot.diff import typed_changes

    schema = state.schema.without_ttl()
    typed = typed_changes(changes, schema)
    before, after = map(state.formatted, typed)
    names = typed[0].schema.names[2:-1]
    return tuple(
        DiffRow(
            change=change.change.value,
            key=was[0],
            sub=_sub(names, was),
            before=was[-1],
            after=now[-1],
        )
        for change, was, now in zip(changes, before, after, strict=True)
    )


def _sub(names: list[str], row: tuple[Any, ...]) -> Any:
    """What tells the rows of a key apart: nothing, a value, or the fields that tell a window."""
    values = row[1:-1]
    return dict(zip(names, values, strict=True)) if len(names) > 1 else next(iter(values), None)
