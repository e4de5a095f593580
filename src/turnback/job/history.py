"""What happened to a job, in files that survive it.

Object stores cannot append, so events are batched: an attempt rewrites its newest file until that
is full, then goes on with the next. When there are too many files they are folded into one.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple, TypeVar

import msgspec

from turnback.core.clock import Clock
from turnback.errors import UNDECODABLE, NotFoundError, StorageError
from turnback.storage.base import Storage


class AttemptStarted(msgspec.Struct, frozen=True, tag="attempt-started"):
    """An attempt began, from a snapshot ("chk-7", the path of a savepoint) or from nothing."""

    snapshot: str | None
    epoch: int | None = None


class CheckpointStats(msgspec.Struct, frozen=True, tag="checkpoint-completed"):
    """The measurements of a checkpoint that is durable and whose sinks have committed.

    Attributes:
        waited_ms: Time from the trigger until writing began.
        manifest_ms: Time to make the manifest durable.
        delta_bytes: Bytes of the files that no earlier checkpoint of the attempt held.
        full_bytes: Bytes of all files it references.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        tasks: Tasks that acknowledged it, which are all.
    """

    number: int
    epoch: int
    trigger: str
    waited_ms: int
    manifest_ms: int
    commit_ms: int
    delta_bytes: int = msgspec.field(name="bytes_written")
    delta_files: int = msgspec.field(name="files_written")
    full_bytes: int
    files: int
    sync_ms: int = 0
    tasks: int = 0

    @property
    def async_ms(self) -> int:
        return self.manifest_ms + self.commit_ms

    @property
    def since_trigger_ms(self) -> int:
        return self.waited_ms + self.async_ms

    @property
    def duration_ms(self) -> int:
        """Time from the first snapshot of a task until it was complete, waiting included."""
        return self.sync_ms + self.since_trigger_ms


class CheckpointFailed(msgspec.Struct, frozen=True, tag="checkpoint-failed"):
    """A checkpoint was discarded, so long after its trigger; its manifest may have been durable."""

    epoch: int
    trigger: str
    reason: str
    timed_out: bool = False
    number: int | None = None
    after_ms: int = 0


class Restarting(msgspec.Struct, frozen=True, tag="restarting"):
    """The attempt failed and the next one follows after a delay."""

    cause: str
    delay_ms: int


class FilesChanged(msgspec.Struct, frozen=True, tag="files-changed"):
    """Files of a source were changed after they were read; some of them by name."""

    source: str
    count: int
    files: tuple[str, ...]


class JobEnded(msgspec.Struct, frozen=True, tag="job-ended"):
    """The job will not go on by itself: it is FINISHED, FAILED or CANCELED."""

    state: str
    cause: str | None = None


Event = AttemptStarted | CheckpointStats | CheckpointFailed | FilesChanged | Restarting | JobEnded


class Record(msgspec.Struct, frozen=True):
    """An event with its place in the history; order follows the numbers, never the clock."""

    attempt: int
    index: int
    at_ms: int
    event: Event


_LOG = logging.getLogger(__name__)
T = TypeVar("T")
DIRECTORY = "history"
FORMAT = 1
_FILE = re.compile(rf"{DIRECTORY}/([0-9]+)-([0-9]+)\.json")
_PER_FILE = 200
_MAX_FILES = 20
_MAX_RECORDS = 2_000
_FLUSH_S = 5.0


class Forgotten(msgspec.Struct, frozen=True):
    """How many checkpoints of an attempt are counted only: those up to an event."""

    completed: int = 0
    failed: int = 0
    last: int = -1

    def plus(self, records: Iterable[Record]) -> Forgotten:
        """Count further checkpoints, which are forgotten now."""
        events = [record for record in records if record.index > self.last]
        failed = sum(isinstance(record.event, CheckpointFailed) for record in events)
        last = max((record.index for record in events), default=self.last)
        return Forgotten(self.completed + len(events) - failed, self.failed + failed, last)


class _File(msgspec.Struct):
    format: int
    records: msgspec.Raw
    forgotten: dict[int, Forgotten] = {}


class RecordedHistory(NamedTuple):
    """What is recorded of a job, oldest first, and what is only counted, by attempt."""

    records: list[Record]
    forgotten: dict[int, Forgotten]


class History:
    """The event log of one attempt. Losing an event never fails the job. Thread-safe."""

    def __init__(self, storage: Storage, attempt: int, clock: Clock) -> None:
        self._storage = storage
        self._attempt = attempt
        self._clock = clock
        # `add` never waits for storage, so it has a lock of its own.
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._added: list[Record] = []
        self._index = 0
        self._file: list[Record] = []
        self._sequence = 0
        self._flushed: float | None = None

    def record(self, event: Event) -> None:
        self.add(event)
        self.flush()

    def add(self, event: Event) -> None:
        """Add an event, to be written by the next flush."""
        with self._adding:
            now = self._clock.now_ms()
            self._added.append(Record(self._attempt, self._index, now, event))
            self._index += 1
            del self._added[:-_MAX_RECORDS]

    def flush_if_due(self) -> None:
        """Write what was added, unless that was done a moment ago."""
        now = self._clock.monotonic()
        if self._flushed is None or now - self._flushed >= _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        with self._writing:
            with self._adding:
                added = self._added
                self._added = []
            if not added:
                return
            self._flushed = self._clock.monotonic()
            self._file = (self._file + added)[-_MAX_RECORDS:]
            try:
                self._write_files()
            except StorageError as error:
                _LOG.warning("cannot write the history, retrying later: %s", error)

    def _write_files(self) -> None:
        while True:
            batch = self._file[:_PER_FILE]
            name = f"{DIRECTORY}/{self._attempt}-{self._sequence}.json"
            self._storage.put(name, _encode(batch))
            if len(batch) < _PER_FILE:
                break
            del self._file[:_PER_FILE]
            self._sequence += 1
        names = _files(self._storage)
        if len(names) > _MAX_FILES:
            self._fold(names[: -_MAX_FILES // 2])

    def _fold(self, old: list[str]) -> None:
        records, forgotten = _merged(self._storage, old)
        surplus = max(len(records) - _MAX_RECORDS, 0)
        # Checkpoints are the most frequent events: old ones are forgotten first, and counted.
        dropped = [r for r in records if _is_routine(r)][:surplus]
        for attempt, some in groupby(dropped, key=lambda record: record.attempt):
            forgotten[attempt] = forgotten.get(attempt, Forgotten()).plus(some)
        remaining = [r for r in records if not _is_forgotten(r, forgotten)]
        # A crash before the deletes leaves some records twice; readers drop the copies.
        self._storage.put(old[-1], _encode(remaining[-_MAX_RECORDS:], forgotten))
        for name in old[:-1]:
            self._storage.delete(name)


def _is_routine(record: Record) -> bool:
    return isinstance(record.event, CheckpointStats | CheckpointFailed)


def _is_forgotten(record: Record, forgotten: Mapping[int, Forgotten]) -> bool:
    counted = forgotten.get(record.attempt)
    return counted is not None and record.index <= counted.last and _is_routine(record)


def read_history(storage: Storage) -> list[Record]:
    """Return everything that is recorded of a job, oldest first."""
    return recorded_history(storage).records


def recorded_history(storage: Storage) -> RecordedHistory:
    """Return what `read_history` does, and how many checkpoints are forgotten."""
    return _merged(storage, _files(storage))


def newest_checkpoint(storage: Storage) -> CheckpointStats | None:
    """Return the newest complete checkpoint that is recorded; reads no more than it must."""
    for name in reversed(_files(storage)):
        for raw in reversed(_load(storage, name, msgspec.Raw)[0]):
            with suppress(*UNDECODABLE):  # an event that only newer versions know
                event = msgspec.json.decode(raw, type=Record).event
                if isinstance(event, CheckpointStats):
                    return event
    return None


def _files(storage: Storage) -> list[str]:
    matches = filter(None, map(_FILE.fullmatch, storage.list(DIRECTORY)))
    return [m[0] for m in sorted(matches, key=lambda m: (int(m[1]), int(m[2])))]


def _load(storage: Storage, name: str, kind: type[T]) -> tuple[list[T], dict[int, Forgotten]]:
    """Read one file; nothing if it is gone by now, damaged, or of a newer version."""
    try:
        file = msgspec.json.decode(storage.get(name), type=_File)
        if file.format > FORMAT:
            return [], {}
        return msgspec.json.decode(file.records, type=list[kind]), file.forgotten  # type: ignore[valid-type]
    except NotFoundError:
        return [], {}
    except UNDECODABLE as error:
        _LOG.warning("skipping %s/%s, which cannot be read: %s", storage.uri, name, error)
        return [], {}


def _merged(storage: Storage, names: list[str]) -> RecordedHistory:
    merged: dict[tuple[int, int], Record] = {}
    forgotten: dict[int, Forgotten] = {}
    for name in names:
        records, counts = _load(storage, name, Record)
        merged.update(((record.attempt, record.index), record) for record in records)
        for attempt, counted in counts.items():
            # A crash may have left an older count, of which the newer one is a part.
            known = forgotten.get(attempt, counted)
            forgotten[attempt] = max(known, counted, key=lambda each: each.last)
    ordered = [merged[key] for key in sorted(merged)]
    return RecordedHistory([r for r in ordered if not _is_forgotten(r, forgotten)], forgotten)


def _encode(records: list[Record], forgotten: dict[int, Forgotten] | None = None) -> bytes:
    raw = msgspec.Raw(msgspec.json.encode(records))
    return msgspec.json.encode(_File(FORMAT, raw, forgotten or {}))
