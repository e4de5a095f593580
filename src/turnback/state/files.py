"""State files as manifests refer to them: what counts of them, where they are, when they merge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from turnback.storage.base import Storage
from turnback.storage.open import open_storage


class StateFile(msgspec.Struct, frozen=True):
    """One immutable file of keyed state, as a manifest refers to it.

    Of a file only the rows in its key groups and of its operators count: after a rescale several
    partitions share one file, each with a part of its key groups.

    Attributes:
        path: Where it is, relative to the job's storage; never used twice.
        rows: Number of rows in it; an upper bound where only a part of them counts.
        operators: The uids whose rows count.
        complete: It holds everything up to `last_epoch` and no tombstones.
        inline: The bytes themselves, when they travel in the message.
        lineage: Which attempts wrote it: (line, last epoch written by it), oldest first. A line is
            one attempt of one driver, and of no other: a copied job directory goes on under the
            same numbers. Files of older versions name numbers, which are not read.
    """

    path: str
    length: int
    digest: str
    rows: int
    first_epoch: int
    last_epoch: int
    first_group: int
    last_group: int
    operators: tuple[str, ...]
    complete: bool = False
    inline: bytes | None = None
    lineage: tuple[tuple[str, int], ...] = msgspec.field(name="lines", default=())

    def line_at(self, epoch: int) -> str | None:
        """The line that wrote an epoch; None if the file does not cover it or does not know."""
        if self.first_epoch <= epoch <= self.last_epoch:
            for line, last in self.lineage:
                if epoch <= last:
                    return line
        return None


def in_order(files: Iterable[StateFile]) -> list[StateFile]:
    """The files in the order in which they are applied."""
    return sorted(files, key=lambda f: (f.last_epoch, f.first_epoch))


def merged_lineage(
    files: Iterable[StateFile], *, complete: bool = False
) -> tuple[tuple[str, int], ...]:
    """The lineage of files merged into one.

    Of a complete file only the last epoch counts, because a store that is behind it is rebuilt; so
    its lineage does not grow with every attempt.
    """
    last: dict[str, int] = {}
    for file in files:
        for line, epoch in file.lineage:
            last[line] = max(epoch, last.get(line, epoch))
    ordered = tuple(sorted(last.items(), key=lambda item: item[1]))
    return ordered[-1:] if complete else ordered


Span = tuple[int, int]
"""First and last key group."""


def clip_files(files: Iterable[StateFile], wanted: Mapping[str, Span]) -> tuple[StateFile, ...]:
    """The parts of a snapshot's files that hold some operators' state in some key groups, in order.

    A complete file holds all there is of its operators in its key groups, so older files count only
    outside of those.
    """
    open_spans = {uid: [span] for uid, span in wanted.items()}
    clipped_files: list[StateFile] = []
    for file in reversed(in_order(files)):
        parts: dict[Span, list[str]] = defaultdict(list)
        for uid in file.operators:
            for span in open_spans.get(uid, ()):
                clipped = (max(span[0], file.first_group), min(span[1], file.last_group))
                if clipped[0] <= clipped[1]:
                    parts[clipped].append(uid)
            if file.complete and uid in open_spans:
                covered = (file.first_group, file.last_group)
                open_spans[uid] = [r for s in open_spans[uid] for r in _without(s, covered)]
        clipped_files += [
            replace(file, first_group=first, last_group=last, operators=tuple(uids))
            for (first, last), uids in parts.items()
        ]
    return tuple(in_order(clipped_files))


def _without(span: Span, hole: Span) -> list[Span]:
    pieces = [(span[0], min(span[1], hole[0] - 1)), (max(span[0], hole[1] + 1), span[1])]
    return [p for p in pieces if p[0] <= p[1]]


@dataclass(frozen=True)
class StorageRef:
    """The directory of a job or a savepoint; opened anew in every worker.

    Attributes:
        options: Credentials and endpoints of object stores.
        inline: Whether state travels inside messages (driver memory) instead.
    """

    uri: str
    options: dict[str, str] = field(default_factory=dict)
    inline: bool = False


@lru_cache(maxsize=8)
def _opened(uri: str, options: tuple[tuple[str, str], ...]) -> Storage:
    return open_storage(uri, dict(options))


def storage_of(ref: StorageRef) -> Storage:
    """The storage behind a reference, opened once per process."""
    return _opened(ref.uri, tuple(sorted(ref.options.items())))


def read_state(ref: StorageRef, file: StateFile) -> bytes:
    """The bytes of a state file, wherever they are."""
    return file.inline if file.inline is not None else storage_of(ref).get(file.path)


FAN_IN = 8
FOLD_RATIO = 0.5
SMALLEST = 64 << 10
MOST = 4 * FAN_IN


class Merge(NamedTuple):
    """Neighbouring files to be replaced by one; a `final` merge of all of them is complete."""

    files: tuple[StateFile, ...]
    final: bool


class _Unit(NamedTuple):
    """Files with one last epoch; never separated, so that the order of files stays clear."""

    files: tuple[StateFile, ...]
    size: int
    tier: int


def plan_merges(files: Sequence[StateFile]) -> list[Merge]:
    """Which files of a partition to merge now; usually none.

    Everything is folded into a new base when the changes since have outgrown half of it. Until
    then runs of neighbours of about one size are merged, so that a row is rewritten a number of
    times that is logarithmic in the size of the state.
    """
    ordered = in_order(files)
    bases = 0
    while bases < len(ordered) and ordered[bases].complete:
        bases += 1
    units = [_unit(tuple(g)) for _, g in groupby(ordered[bases:], key=lambda f: f.last_epoch)]
    if len(units) < FAN_IN:
        return []
    base = sum(file.length for file in ordered[:bases])
    if sum(unit.size for unit in units) >= FOLD_RATIO * base:
        return [Merge(tuple(ordered), True)]
    for tier in sorted({unit.tier for unit in units}):
        run = _run(units, tier)
        if run:
            return [Merge(run, False)]
    if len(units) > MOST:
        return [Merge(tuple(ordered[bases:]), False)]
    return []


def _run(units: Sequence[_Unit], tier: int) -> tuple[StateFile, ...]:
    """The first run of enough units, none above the tier, that no single one dominates."""
    for low, members in groupby(units, key=lambda unit: unit.tier <= tier):
        run = list(members)
        if not low or len(run) < FAN_IN:
            continue
        largest = max(unit.size for unit in run)
        if sum(unit.size for unit in run) >= 2 * largest:
            return tuple(file for unit in run for file in unit.files)
    return ()


def _unit(files: tuple[StateFile, ...]) -> _Unit:
    size = sum(file.length for file in files)
    tier = 0
    bound = SMALLEST
    while size > bound:
        tier = tier + 1
        bound = bound * FAN_IN
    return _Unit(files, size, tier)
