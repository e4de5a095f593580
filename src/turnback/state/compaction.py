from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from turnback.state.delta import BuiltDelta
from turnback.state.files import StateFile, in_order, joined_lineage
from turnback.state.merging import merge

FAN_IN = 8
FOLD_RATIO = 0.5
SMALLEST = 64 << 10
MOST = 4 * FAN_IN


class Merge(NamedTuple):
    """Files to be replaced by one.

    Attributes:
        files: Neighbours, in order.
        final: They are all there is of the partition's past, so the result is complete.
    """

    files: tuple[StateFile, ...]
    final: bool

    def run(self, read: Callable[[StateFile], bytes]) -> BuiltDelta:
        """Merge the files; see `merge`."""
        return merge(self.files, read, final=self.final)

    def file(self, path: str, built: BuiltDelta, *, inline: bool = False) -> StateFile:
        """What a manifest says of the file that takes their place."""
        return msgspec.structs.replace(
            built.file(path, self.files[-1].last_epoch, inline=inline),
            first_epoch=min(file.first_epoch for file in self.files),
            complete=self.final,
            lineage=joined_lineage(self.files, complete=self.final),
        )


class _Unit(NamedTuple):
    """Files with one last epoch; never torn apart, so that the order of files stays clear."""

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
    tier, bound = 0, SMALLEST
    while size > bound:
        tier, bound = tier + 1, bound * FAN_IN
    return _Unit(files, size, tier)
