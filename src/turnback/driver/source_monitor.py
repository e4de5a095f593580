"""What is asked of the systems that sources read from, and told to them, beside the epochs."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from stat import S_ISREG
from statistics import linear_regression
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec.structs import replace

from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.core.clock import Clock
from turnback.errors import TurnbackError
from turnback.job.catalog import Replays, SavepointCatalog, SavepointReplay
from turnback.job.directory import JobDirectory
from turnback.job.status import Lag
from turnback.plan.bad_records import plain_path
from turnback.plan.plan import Plan, SourcePlan
from turnback.plan.sources import (
    CommitsPositions,
    KnowsReplayLimits,
    LagReader,
    OpenLagReader,
    ReadsIdentity,
    ReplayLimit,
    SourceLag,
    WatchedFiles,
)
from turnback.snapshot.directory import SavepointDirectory
from turnback.storage.base import Storage
from turnback.storage.envelope import check

_TREND_S = 60.0
_SHORTEST_TREND_S = 10.0
_ENDLESS_S = 30 * 86_400.0
_PARTS = 20


class LagTrend:
    """How a lag has changed in the last minute."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def add(self, at: float, records: int | None) -> float | None:
        """Add a lag; return by how many records it grows in a second, None if it is too early."""
        if records is None:
            self._points.clear()
            return None
        self._points.append((at, records))
        while at - self._points[0][0] > _TREND_S:
            self._points.popleft()
        if at - self._points[0][0] < _SHORTEST_TREND_S:
            return None
        return linear_regression(*zip(*self._points, strict=True)).slope


class SteadyGrowth:
    """Whether a lag has grown all the time for so long, seen through what single epochs do to it.

    The time is cut into thirds: in each of the last two, the lag was never as low as in the third
    before it on average. A lag that only goes up and down, has grown once, or shrinks does not
    grow steadily.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._grain = seconds / (3 * _PARTS)
        self._parts: deque[tuple[float, list[float]]] = deque()
        """When a part of the time began; lowest lag, sum and number of its lags."""

    def add(self, at: float, lag: float | None) -> bool:
        """Add a lag; return whether it has grown for the whole time."""
        if lag is None:
            self._parts.clear()
            return False
        if not self._parts or at - self._parts[-1][0] >= self._grain:
            self._parts.append((at, [lag, lag, 1]))
        else:
            numbers = self._parts[-1][1]
            numbers[:] = [min(numbers[0], lag), numbers[1] + lag, numbers[2] + 1]
        start = at - self._seconds
        while len(self._parts) > 1 and self._parts[1][0] <= start:
            self._parts.popleft()
        if self._parts[0][0] > start:
            return False  # it is too early to tell
        thirds: list[list[list[float]]] = [[], [], []]
        for began, numbers in self._parts:
            thirds[min(2, max(0, int(3 * (began - start) / self._seconds)))].append(numbers)
        return all(
            before and after and min(n[0] for n in after) > _mean(before)
            for before, after in pairwise(thirds)
        )


def _mean(parts: list[list[float]]) -> float:
    return sum(part[1] for part in parts) / sum(part[2] for part in parts)


def catch_up_s(records: int | None, change_per_s: float | None) -> float | None:
    """After how long a lag is gone if it goes on to change like this; None if that is never."""
    if records == 0:
        return 0.0
    if records is None or change_per_s is None or change_per_s >= 0:
        return None
    seconds = records / -change_per_s
    return seconds if seconds < _ENDLESS_S else None


def total_lag(lags: Mapping[str, Lag]) -> int | None:
    """Records that all sources together have not processed; None if one of them cannot tell."""
    records = [lag.records for lag in lags.values()]
    known = [number for number in records if number is not None]
    return sum(known) if known and len(known) == len(records) else None


_NEWEST = 100
"""Older savepoints are not looked at."""


class ReplayLimits:
    """Asks for every source where savepoints would go on, and records what becomes of that.

    Thread-safe: each source is asked in a thread of its own.
    """

    def __init__(self, directory: JobDirectory, options: Mapping[str, str], clock: Clock) -> None:
        self._directory = directory
        self._options = dict(options)
        self._clock = clock
        self._catalog = SavepointCatalog(directory.storage)
        self._offsets: dict[str, dict[str, str]] = {}
        self._limits: dict[str, dict[str, ReplayLimit]] = {}
        self._lock = threading.Lock()

    def offsets(self, uid: str) -> dict[str, str]:
        """Where a source would go on from each savepoint, by the savepoint's id."""
        with self._lock:
            for entry in self._catalog.list()[-_NEWEST:]:
                if entry.id not in self._offsets:
                    self._offsets[entry.id] = self._read(entry.path)
            found = {id_: offsets.get(uid) for id_, offsets in self._offsets.items()}
        return {id_: offset for id_, offset in found.items() if offset is not None}

    def record(self, uid: str, limits: Mapping[str, ReplayLimit]) -> None:
        """Record what was found out of a source, by the savepoint's id, with that of others."""
        with self._lock:
            self._limits[uid] = dict(limits)
            by_savepoint: defaultdict[str, list[ReplayLimit]] = defaultdict(list)
            for of_source in self._limits.values():
                for id_, limit in of_source.items():
                    by_savepoint[id_].append(limit)
            now = self._clock.now_ms()
            found = {
                id_: SavepointReplay(
                    gone=any(limit.gone for limit in of_sources),
                    until_ms=min((x.until_ms for x in of_sources if x.until_ms), default=None),
                    as_of_ms=now,
                )
                for id_, of_sources in by_savepoint.items()
            }
            self._directory.record_replays(Replays(found))

    def _read(self, path: str) -> dict[str, str]:
        try:
            sources = SavepointDirectory.locate(path, self._options).load().sources
        except TurnbackError:
            return {}  # it was deleted, or is damaged: there is nothing to replay from
        return {uid: p.offset for uid, p in sources.items() if p.offset is not None}


_LOG = logging.getLogger(__name__)
_PAUSE_S = 5.0
_REST = 50
"""It rests so many times as long as a look has taken, so millions of files cost next to nothing."""
_AT_ONCE = 50_000


class FileState(NamedTuple):
    """A file as it is now."""

    path: str
    changed_ms: int
    """When it was last changed, in milliseconds since 1970."""
    size: int


class _Entry(msgspec.Struct):
    """An entry of the list of files seen; of files read by older versions, no size is known."""

    path: str
    timestamp: int
    size: int | None = None


class _Part(NamedTuple):
    hashes: pa.Array
    times: pa.Array
    sizes: pa.Array


class SeenFiles:
    """When files were changed that have been read, and their sizes: 24 bytes for each."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: dict[str, _Part] = {}

    def update(self, log: Sequence[LogFile]) -> None:
        """Take over the list of a position, which is kept in parts; known ones are not read."""
        self._parts = {part.path: self._parts.get(part.path) or self._read(part) for part in log}

    def changed(self, files: Sequence[FileState]) -> list[FileState]:
        """Those of some files that were read and have been changed since.

        Copies may keep the time of what they are copies of (`cp -p`, `rsync -a`), and some file
        systems know whole seconds only, so another size is a change as well.
        """
        hashes = pa.array([_hash(file.path) for file in files], pa.uint64())
        times = pa.array([file.changed_ms for file in files], pa.int64())
        sizes = pa.array([file.size for file in files], pa.int64())
        found: list[FileState] = []
        for part in self._parts.values():
            places = pc.index_in(hashes, value_set=part.hashes)
            newer = _differ_in_time(times, part.times.take(places))
            # What is not known, of files that were not read too, is no difference.
            resized = pc.fill_null(pc.not_equal(sizes, part.sizes.take(places)), False)
            changed = pc.or_(newer, resized)
            found += [files[place] for place in pc.indices_nonzero(changed).to_pylist()]
        return found

    def _read(self, part: LogFile) -> _Part:
        data = self._storage.get(part.path)
        check(data, part.length, part.digest, part.path)
        entries = [msgspec.json.decode(line, type=_Entry) for line in data.split(b"\n") if line]
        return _Part(
            pa.array([_hash(plain_path(entry.path)) for entry in entries], pa.uint64()),
            pa.array([entry.timestamp for entry in entries], pa.int64()),
            pa.array([entry.size for entry in entries], pa.int64()),
        )


def _differ_in_time(now: pa.Array, then: pa.Array) -> pa.Array:
    # Some file systems, and Java on them, know whole seconds only.
    whole = pc.equal(pc.multiply(pc.divide(then, 1000), 1000), then)
    comparable = pc.if_else(whole, pc.multiply(pc.divide(now, 1000), 1000), now)
    return pc.fill_null(pc.not_equal(comparable, then), False)


def _hash(path: str) -> int:
    return xxhash.xxh3_64_intdigest(path.encode("utf-8", "surrogateescape"))


class FilesWatch:
    """Over the files of one source; tells which were changed after they were read, each once.

    `log` gives the list of files seen as of now; None while the job does not run.
    """

    def __init__(
        self,
        watched: WatchedFiles,
        seen: SeenFiles,
        log: Callable[[], Sequence[LogFile] | None],
        on_changed: Callable[[list[str]], None],
    ) -> None:
        self._watched = watched
        self._seen = seen
        self._log = log
        self._on_changed = on_changed
        self._told: set[str] = set()
        self._is_failing = False

    def run(self, done: threading.Event) -> None:
        """Look again and again until the job is done."""
        pause = min(0.2, _PAUSE_S)
        while not done.wait(pause):
            log = self._log()
            if log:
                began = time.monotonic()
                self._try(log)
                pause = max(_PAUSE_S, _REST * (time.monotonic() - began))

    def look(self, log: Sequence[LogFile]) -> None:
        """Look once, and tell what has not been told yet."""
        self._seen.update(log)
        files = _files(self._watched.path)
        new: list[str] = []
        while some := list(islice(files, _AT_ONCE)):
            changed = self._seen.changed(some)
            new += [file.path for file in changed if file.path not in self._told]
        if new:
            self._told.update(new)
            self._on_changed(sorted(new))

    def _try(self, log: Sequence[LogFile]) -> None:
        try:
            self.look(log)
            self._is_failing = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            if not self._is_failing:
                where = self._watched.path
                _LOG.warning("cannot check files in %s for changes: %s", where, error)
            self._is_failing = True


def _files(path: str) -> Iterator[FileState]:
    """The file of a path, or all files below it, except hidden ones."""
    status = Path(path).stat()
    if S_ISREG(status.st_mode):
        yield _state(path, status)
        return
    waiting = [path]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name[0] in "._":
                    continue
                try:
                    if entry.is_dir():
                        waiting.append(entry.path)
                    else:
                        yield _state(entry.path, entry.stat())
                except FileNotFoundError:
                    continue  # moved away a moment ago


def _state(path: str, status: os.stat_result) -> FileState:
    return FileState(path, status.st_mtime_ns // 1_000_000, status.st_size)


_SHORT_S = 0.2
_FRESH_S = 30.0
"""Longer than a reader takes to answer; what is older is not shown as if it held still."""
_LAST_COMMIT_S = 5.0
_REPLAYS_S = 60.0

Positions = Mapping[str, SourcePosition]


class SourceIdentities:
    """Which streams each source reads, as text, by uid; see `SourcePosition`. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def restore(self, positions: Positions) -> None:
        """Take over what a snapshot says of sources of which nothing newer is known."""
        for uid, position in positions.items():
            if position.identity is not None:
                self._known.setdefault(uid, position.identity)

    def get(self, uid: str) -> str | None:
        return self._known.get(uid)

    def set(self, uid: str, identity: str) -> None:
        self._known[uid] = identity

    def stamp(self, positions: Positions) -> Positions:
        """The positions with what is known of their streams."""
        known = dict(self._known)
        return {
            uid: replace(position, identity=known.get(uid, position.identity))
            for uid, position in positions.items()
        }


class JobPositions(Protocol):
    """Where the sources of a running job are."""

    def confirmed(self) -> Positions | None:
        """After the newest confirmed epoch; None while no attempt runs."""

    def checkpointed(self) -> Positions | None:
        """In the newest complete checkpoint; None before there is one."""


class SourceMonitor:
    """Knows how far each source is behind, and tells its system how far it has come.

    It also looks after files that were read already. Every source that can be asked has a thread of
    its own, so that a system that does not answer holds up nothing else. Nothing here fails the
    job; whoever is told of changed files may.
    """

    def __init__(
        self,
        plan: Plan,
        positions: JobPositions,
        identities: SourceIdentities,
        replays: ReplayLimits,
        clock: Clock,
        growing_ms: int | None = None,
        storage: Storage | None = None,
        on_changed_files: Callable[[SourcePlan, list[str]], None] | None = None,
    ) -> None:
        """`growing_ms`: for how long a lag has to grow to be worth telling; None for any time.

        `storage` is that of the job, with the lists of files that sources have read, and
        `on_changed_files` is told which of those were changed since.
        """
        self._files: dict[str, FilesWatch] = {}
        if storage is not None and on_changed_files is not None:
            for source in plan.sources:
                if source.files is not None:
                    log = partial(_files_seen, positions, source.uid)
                    on_changed = partial(on_changed_files, source)
                    watch = FilesWatch(source.files, SeenFiles(storage), log, on_changed)
                    self._files[source.uid] = watch
        self._sources = {
            source.uid: _Watch(
                source.uid, source.lag, positions, identities, replays, clock, growing_ms
            )
            for source in plan.sources
            if source.lag is not None
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        done = threading.Event()
        threads = {
            uid: threading.Thread(
                target=source.run, args=(done,), name=f"turnback-source-{uid}", daemon=True
            )
            for uid, source in self._sources.items()
        }
        for uid, watch in self._files.items():
            name = f"turnback-files-{uid}"
            threading.Thread(target=watch.run, args=(done,), name=name, daemon=True).start()
        for thread in threads.values():
            thread.start()
        try:
            yield
        finally:
            done.set()  # nobody waits for a question that is open
            for uid, thread in threads.items():
                if self._sources[uid].commits:
                    thread.join(_LAST_COMMIT_S)

    def lags(self) -> dict[str, Lag]:
        lags = {uid: source.lag() for uid, source in self._sources.items()}
        return {uid: lag for uid, lag in lags.items() if lag is not None}


def _files_seen(positions: JobPositions, uid: str) -> Sequence[LogFile] | None:
    """The list of files that a source has read, as of now; None while the job does not run."""
    position = (positions.confirmed() or {}).get(uid)
    return None if position is None else position.log


class _Watch:
    def __init__(
        self,
        uid: str,
        open_reader: OpenLagReader,
        positions: JobPositions,
        identities: SourceIdentities,
        replays: ReplayLimits,
        clock: Clock,
        growing_ms: int | None,
    ) -> None:
        self._uid = uid
        self._open = open_reader
        self._positions = positions
        self._identities = identities
        self._replays = replays
        self._clock = clock
        self._replays_due = 0.0
        self._reader: LagReader | None = None
        self._trend = LagTrend()
        self._growing_ms = growing_ms
        self._growth = self._new_growth()
        self._newest: tuple[float, Lag] | None = None
        self._committed: str | None = None
        self._failing: set[str] = set()

    @property
    def commits(self) -> bool:
        return isinstance(self._reader, CommitsPositions)

    def lag(self) -> Lag | None:
        if self._newest is None:
            return None
        measured, lag = self._newest
        if self._clock.monotonic() - measured > _FRESH_S:
            return Lag(records=None, seconds=None, measured_ms=lag.measured_ms)
        return lag

    def run(self, done: threading.Event) -> None:
        pause = min(_SHORT_S, _PAUSE_S)
        while not done.wait(pause):
            positions = self._positions.confirmed()
            if positions is None:
                self._newest = None
                self._trend = LagTrend()
                self._growth = self._new_growth()
                continue
            pause = _PAUSE_S
            position = positions.get(self._uid)
            self._measure(position.offset if position is not None else None)
            self._identify(position)
            self._commit()
            self._look_at_savepoints()
        if self._reader is not None:
            self._commit()
            with suppress(Exception):
                self._reader.close()

    def _new_growth(self) -> SteadyGrowth | None:
        return None if self._growing_ms is None else SteadyGrowth(self._growing_ms / 1000)

    def _measure(self, offset: str | None) -> None:
        at = self._clock.monotonic()
        now_ms = self._clock.now_ms()
        read: SourceLag | None = SourceLag(None, None)
        with self._trying("cannot measure its lag"):
            self._reader = self._reader or self._open()
            read = self._reader.read(offset)
        if read is None:
            self._newest = None
            return
        change = self._trend.add(at, read.records)
        behind = read.seconds if read.records is None else read.records
        grows = self._growth is not None and self._growth.add(at, behind)
        self._newest = (
            at,
            Lag(
                records=read.records,
                seconds=read.seconds,
                change_per_s=change,
                catch_up_s=catch_up_s(read.records, change),
                growing_ms=self._growing_ms if grows else None,
                measured_ms=now_ms,
            ),
        )

    def _identify(self, position: SourcePosition | None) -> None:
        if not isinstance(self._reader, ReadsIdentity) or not position or not position.offset:
            return
        with self._trying("cannot identify the streams that it reads"):
            found = self._reader.identity(position.offset, self._identities.get(self._uid))
            if found is not None:
                self._identities.set(self._uid, found)

    def _commit(self) -> None:
        """Tell the system how far the newest checkpoint is, if it has not been told yet."""
        position = (self._positions.checkpointed() or {}).get(self._uid)
        offset = position.offset if position is not None else None
        if not isinstance(self._reader, CommitsPositions):
            return
        if offset is None or offset == self._committed:
            return
        with self._trying("cannot report its position to the consumer group"):
            self._reader.commit(offset)
            self._committed = offset

    def _look_at_savepoints(self) -> None:
        """Find out now and then for how long they can be replayed."""
        if not isinstance(self._reader, KnowsReplayLimits):
            return
        if self._clock.monotonic() < self._replays_due:
            return
        self._replays_due = self._clock.monotonic() + _REPLAYS_S
        with self._trying("cannot find out how long savepoints can be replayed"):
            offsets = self._replays.offsets(self._uid)
            if offsets:
                limits = self._reader.replay_limits(set(offsets.values()))
                found = {id_: limits[at] for id_, at in offsets.items() if at in limits}
                self._replays.record(self._uid, found)

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        """Go on whatever is raised; it is logged once until it works again."""
        try:
            yield
            self._failing.discard(what)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on
            if what not in self._failing:
                _LOG.warning("source %r: %s: %s", self._uid, what, error)
            self._failing.add(what)
