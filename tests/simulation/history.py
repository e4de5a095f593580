"""What the checkpoints of a run have promised, as somebody sees who watches the storage.

Which rows a sink must have follows from it: each checkpoint that became durable has promised a part
of the input to the sinks that its program had, and the job goes on from one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulation.engine import SOURCE, Record
from simulation.world import SimStorage
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest, decode
from turnback.job.directory import JobDirectory

Row = tuple[str, int]
_SLOT = re.compile(r"checkpoints/chk-([0-9]+)\.json")


def kind_of(uid: str) -> str:
    """The kind of a sink, and its target, whatever it is called: renamed it is ``files.1``."""
    return uid.partition(".")[0]


def offset_of(manifest: Manifest) -> int:
    return int(manifest.sources[SOURCE].offset or 0)


@dataclass
class Promise:
    """A checkpoint that has become durable.

    Attributes:
        parent: The checkpoint it goes on from.
        sinks: The kinds of sinks that its program had.
        left_out: Those whose output the operator has allowed to leave out.
        again: How often a backup has forgotten that they had committed it, by kind.
    """

    manifest: Manifest
    parent: Promise | None
    sinks: frozenset[str]
    left_out: set[str] = field(default_factory=set)
    again: Counter[str] = field(default_factory=Counter)

    @property
    def first(self) -> int:
        return offset_of(self.parent.manifest) if self.parent is not None else 0

    @property
    def upto(self) -> int:
        return offset_of(self.manifest)

    def line(self) -> Iterator[Promise]:
        """This one, and all that it goes on from."""
        promise: Promise | None = self
        while promise is not None:
            yield promise
            promise = promise.parent


class History:
    """All checkpoints of a run, in whichever job directory."""

    def __init__(self, records: list[Record]) -> None:
        counts: Counter[str] = Counter()
        self.rows: list[Row] = []
        for key, _ in records:
            counts[key] += 1
            self.rows.append((key, counts[key]))
        self.counts = dict(counts)
        self._all: list[Promise] = []
        self._known: dict[str, dict[int, Promise]] = {}

    def watch(self, root: str, storage: SimStorage) -> None:
        """Note what is written into the log of a job."""
        storage.on_new = lambda path, data: self._note(root, storage, path, data)

    def copy(self, root: str, to: str) -> None:
        """A job directory was copied, its log included."""
        self._known[to] = dict(self._known.get(root, {}))

    def restore(self, root: str, storage: SimStorage) -> None:
        """A job directory was restored: it may commit again what it does not know to be done.

        A target that has output of attempts nobody knows any more forgets how far it was.
        """
        log = CheckpointLog(storage.inner)
        newest = log.latest()
        for promise in self._known[root][newest.number].line() if newest is not None else ():
            promise.again.update(map(kind_of, log.uncommitted(promise.manifest)))

    def leave_out(
        self, root: str, storage: SimStorage, attempt: int, uids: set[str], allowed: bool
    ) -> set[str]:
        """Note that an attempt goes on with only these sinks; returns others that lose output."""
        started = JobDirectory(storage.inner, "job").attempt(attempt)
        known = self._known.get(root, {})
        if started is None or started.checkpoint not in known:
            return set()
        newest = known[started.checkpoint]
        # With its own output it promises what was still open of checkpoints before it.
        open = CheckpointLog(storage.inner).uncommitted(newest.manifest)
        lost = open.keys() - uids
        for promise in newest.line() if allowed else ():
            for uid in lost:
                if set(open[uid]) & set(promise.manifest.transactions.get(uid, ())):
                    promise.left_out.add(kind_of(uid))
        return lost

    def least(self, root: str, number: int, kind: str) -> Counter[Row]:
        """The rows that a sink must have when the job has ended with a checkpoint."""
        line = list(self._known[root][number].line())
        assert line[0].upto == len(self.rows), "the job has not come to its end"
        promises = (p for p in line if kind in p.sinks and kind not in p.left_out)
        return Counter(row for p in promises for row in self.rows[p.first : p.upto])

    def most(self, kind: str) -> Counter[Row]:
        """The rows that it may have: as often as a checkpoint has promised them."""
        rows: Counter[Row] = Counter()
        for promise in self._all:
            times = 1 + promise.again[kind] if kind in promise.sinks else 0
            rows.update(self.rows[promise.first : promise.upto] * times)
        return rows

    def has_left_out(self) -> bool:
        return any(promise.left_out for promise in self._all)

    def _note(self, root: str, storage: SimStorage, path: str, data: bytes) -> None:
        match = _SLOT.fullmatch(path)
        if match is None:
            return
        slot = decode(data, path)
        # A late write may land in the slot of a checkpoint that was dropped; nobody goes by it.
        if isinstance(slot, Manifest) and slot.number == CheckpointLog(storage.inner).numbers()[-1]:
            known = self._known.setdefault(root, {})
            parent = None if slot.parent is None else known[slot.parent]
            kinds = frozenset(kind_of(op.uid) for op in slot.operators if op.kind == "sink")
            known[slot.number] = Promise(slot, parent, kinds)
            self._all.append(known[slot.number])
