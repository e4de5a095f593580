"""What the checkpoints of a run have promised, as somebody sees who watches the storage.

Which rows a sink must have follows from it: each checkpoint that became durable has promised a part
of the input to the sinks that its program had, and the job goes on from one of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from simulation.engine import SOURCE, Record
from simulation.world import SimStorage
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest, decode
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestState
from turnback.job.requests import Requests
from turnback.snapshot.find import ResumePoint
from turnback.snapshot.metadata import SavepointMetadata

Row = tuple[str, int]
_RESULT = re.compile(r"ops/([^/.]+)\.result\.json")
_SLOT = re.compile(r"checkpoints/chk-([0-9]+)\.json")


decoded = lru_cache(maxsize=1024)(decode)
"""What a slot of a log holds; slots are read again and again, and nobody changes what they hold."""


def kind_of(uid: str) -> str:
    """The kind of a sink, and its target, whatever it is called: renamed it is ``files.1``."""
    return uid.partition(".")[0]


def offset_of(snapshot: Manifest | SavepointMetadata) -> int:
    position = snapshot.sources.get(SOURCE)  # there is none before the first epoch
    return int(position.offset or 0) if position is not None else 0


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


def _drop(newest: Promise, transactions: Mapping[str, Collection[bytes]]) -> None:
    """Note that some of what a checkpoint promises is left out.

    With its own output it promises what was still open of checkpoints before it.
    """
    for promise in newest.line():
        for uid, some in transactions.items():
            if set(some) & set(promise.manifest.transactions.get(uid, ())):
                promise.left_out.add(kind_of(uid))


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
        self.wrong: list[str] = []
        """What was seen that must never be."""
        self._saved: dict[str, Promise] = {}
        """By directory, what a savepoint was made from."""

    def watch(self, root: str, storage: SimStorage) -> None:
        """Note what is written into the log of a job, and how requests to it end."""
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
        open = CheckpointLog(storage.inner).uncommitted(newest.manifest)
        lost = open.keys() - uids
        if allowed:
            _drop(newest, {uid: open[uid] for uid in lost})
        return lost

    def drop_newest(self, root: str, storage: SimStorage) -> None:
        """Note that what the newest checkpoint promises may have been aborted by hand."""
        newest = CheckpointLog(storage.inner).latest()
        if newest is not None:
            _drop(self._known[root][newest.number], newest.transactions)

    def end(self, root: str, point: ResumePoint) -> Promise:
        """What a job has ended with: a checkpoint, or the savepoint that it was started from."""
        if point.manifest is not None:
            return self._known[root][point.manifest.number]
        assert point.snapshot is not None
        return self._saved[point.snapshot]

    def least(self, end: Promise, kind: str) -> Counter[Row]:
        """The rows that a sink must have when the job has ended with this."""
        line = list(end.line())
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

    def save(self, path: str, metadata: SavepointMetadata) -> Promise | None:
        """Note from what a savepoint was made; None if that was never seen."""
        made_from = (metadata.checkpoint, metadata.attempt, metadata.epoch, offset_of(metadata))
        for promise in reversed(self._all):
            manifest = promise.manifest
            if made_from == (manifest.number, manifest.attempt, manifest.epoch, promise.upto):
                return self._saved.setdefault(path, promise)
        return None

    def counts_upto(self, offset: int) -> dict[str, int]:
        """The counts after a part of the input."""
        return dict(self.rows[:offset])

    def _parent(self, root: str, storage: SimStorage, manifest: Manifest) -> Promise | None:
        """The checkpoint that another one goes on from, perhaps by way of a savepoint."""
        if manifest.parent is not None:
            return self._known[root][manifest.parent]
        started = JobDirectory(storage.inner, "job").attempt(manifest.attempt)
        if started is None:
            return None
        if started.checkpoint is not None:  # from before a fresh start
            return self._known[root][started.checkpoint]
        return None if started.snapshot is None else self._saved[started.snapshot]

    def _check_result(self, storage: SimStorage, id: str) -> None:
        """Hold the result of a request against what there is in this moment."""
        requests = Requests(storage.inner)
        request = requests.get(id)
        result = requests.result(id)
        assert request is not None and result is not None
        if result.error is not None and "is not in memory" in result.error:
            self.wrong.append(f"files of a checkpoint were gone: {result.error}")
        ends = request.kind is not RequestKind.SAVEPOINT
        if ends and result.state is RequestState.COMPLETED and result.checkpoint is not None:
            newest = CheckpointLog(storage.inner).latest()
            if newest is None or newest.number != result.checkpoint:
                self.wrong.append(f"{newest} came after the end with chk-{result.checkpoint}")

    def _note(self, root: str, storage: SimStorage, path: str, data: bytes) -> None:
        if match := _RESULT.fullmatch(path):
            self._check_result(storage, match[1])
        if not _SLOT.fullmatch(path):
            return
        slot = decoded(data, path)
        # A late write may land in the slot of a checkpoint that was dropped; nobody goes by it.
        if isinstance(slot, Manifest) and slot.number == CheckpointLog(storage.inner).numbers()[-1]:
            known = self._known.setdefault(root, {})
            parent = self._parent(root, storage, slot)
            kinds = frozenset(kind_of(op.uid) for op in slot.operators if op.kind == "sink")
            known[slot.number] = Promise(slot, parent, kinds)
            self._all.append(known[slot.number])
