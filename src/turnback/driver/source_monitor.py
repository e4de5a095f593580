"""What is asked of the systems that sources read from, and told to them, beside the epochs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.core.clock import Clock
from turnback.driver.changed_files import FilesWatch, SeenFiles
from turnback.driver.lag import LagTrend, SteadyGrowth, catch_up_s
from turnback.driver.replay import ReplayLimits
from turnback.job.status import Lag
from turnback.plan.plan import Plan, SourcePlan
from turnback.plan.sources import (
    CommitsPositions,
    KnowsReplayLimits,
    LagReader,
    OpenLagReader,
    ReadsIdentity,
    SourceLag,
)
from turnback.storage.base import Storage

_LOG = logging.getLogger(__name__)
_PAUSE_S = 5.0
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
        """The lag of every source that can tell, by uid."""
        lags = {uid: source.lag() for uid, source in self._sources.items()}
        return {uid: lag for uid, lag in lags.items() if lag is not None}


def _files_seen(positions: JobPositions, uid: str) -> Sequence[LogFile] | None:
    """The list of files that a source has read, as of now; None while the job does not run."""
    position = (positions.confirmed() or {}).get(uid)
    return None if position is None else position.log


class _Watch:
    """Over one source."""

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
        with self._trying("its lag is not known"):
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
        with self._trying("which streams it reads is not known"):
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
        with self._trying("how far it is could not be told to its consumer group"):
            self._reader.commit(offset)
            self._committed = offset

    def _look_at_savepoints(self) -> None:
        """Find out now and then for how long they can be replayed."""
        if not isinstance(self._reader, KnowsReplayLimits):
            return
        if self._clock.monotonic() < self._replays_due:
            return
        self._replays_due = self._clock.monotonic() + _REPLAYS_S
        with self._trying("how long savepoints can be replayed is not known"):
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
