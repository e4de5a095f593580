"""How long savepoints of a job can be replayed, found out from time to time while it runs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping

from turnback.core.clock import Clock
from turnback.core.errors import TurnbackError
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JobDirectory
from turnback.job.replay import Replays, SavepointReplay
from turnback.plan.sources import ReplayLimit
from turnback.snapshot.directory import SavepointDirectory

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
