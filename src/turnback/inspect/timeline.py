"""The attempts and savepoints of related jobs on one time axis."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from turnback.core.errors import StorageError
from turnback.inspect.history import AttemptLife
from turnback.inspect.job import Job
from turnback.inspect.locations import display_path, normalized
from turnback.inspect.model import SavepointRow, View
from turnback.inspect.summary import Liveness
from turnback.snapshot.find import split_slot_path


class StartedFrom(View, frozen=True, kw_only=True):
    """What an attempt started from.

    Attributes:
        kind: "checkpoint" or "savepoint".
        job: The job that took it, if it is known.
        checkpoint: Number of the checkpoint; of a savepoint, the one it was written from.
        savepoint: Id of the savepoint.
        path: Where it is or was.
    """

    kind: str
    job: str | None = None
    checkpoint: int | None = None
    savepoint: str | None = None
    path: str | None = None


class TimelineAttempt(View, frozen=True, kw_only=True):
    """An attempt of a job: RUNNING, RESTARTED, FINISHED, FAILED, CANCELED or LOST.

    `ended_ms` is None while it runs, `started_from` if it started from nothing.
    """

    attempt: int
    started_ms: int
    ended_ms: int | None
    state: str
    started_from: StartedFrom | None = None
    cause: str | None = None


class TimelineJob(View, frozen=True, kw_only=True):
    """A job in a timeline."""

    name: str
    state: str
    attempts: tuple[TimelineAttempt, ...]
    savepoints: tuple[SavepointRow, ...]


class Timeline(View, frozen=True, kw_only=True):
    """A job, the jobs it descends from and those that descend from it, ancestors first."""

    job: str
    now_ms: int
    jobs: tuple[TimelineJob, ...]


_LOG = logging.getLogger(__name__)
_OWN = re.compile(r"chk-([0-9]+)")


def timeline(job: Job, jobs: Iterable[Job], now_ms: int) -> Timeline:
    """Return the timeline around a job; others that cannot be read are left out."""
    lives = {normalized(job.directory.storage.uri): _read(job)}
    for other in jobs:
        location = normalized(other.directory.storage.uri)
        if location in lives:
            continue
        try:
            lives[location] = _read(other)
        except StorageError as error:
            _LOG.warning("job %r is left out of the timeline: %s", other.name, error)
    lineage = _Lineage(lives)
    related = lineage.of(next(iter(lives.values())))
    return Timeline(
        job=job.name, now_ms=now_ms, jobs=tuple(lineage.timeline_job(life) for life in related)
    )


@dataclass(frozen=True, eq=False)
class _Life:
    job: Job
    alive: Liveness
    attempts: list[AttemptLife]
    savepoints: list[SavepointRow]


class _Lineage:
    """Which job started from whose snapshots; jobs are by their location."""

    def __init__(self, lives: Mapping[str, _Life]) -> None:
        self._lives = lives
        self._savepoints = {
            normalized(row.path): (life, row)
            for life in lives.values()
            for row in reversed(life.savepoints)
        }
        self._parents = {life: self._parents_of(life) for life in lives.values()}

    def of(self, life: _Life) -> list[_Life]:
        """Return the ancestors of a job, the job, and its descendants, in this order."""
        everyone = self._lives.values()
        ancestors = _reachable(life, lambda one: self._parents[one])
        children = _reachable(life, lambda one: [x for x in everyone if one in self._parents[x]])
        descendants = reversed(children)
        return [*ancestors, life, *(one for one in descendants if one not in ancestors)]

    def timeline_job(self, life: _Life) -> TimelineJob:
        attempts = zip_longest(life.attempts, life.attempts[1:])
        return TimelineJob(
            name=life.job.name,
            state=life.alive.state,
            attempts=tuple(self._timeline_attempt(life, *pair) for pair in attempts),
            savepoints=tuple(reversed(life.savepoints)),
        )

    def _timeline_attempt(
        self, life: _Life, attempt: AttemptLife, following: AttemptLife | None
    ) -> TimelineAttempt:
        started = attempt.started_ms if attempt.started_ms is not None else attempt.last_ms
        ended = _ended_ms(attempt, following, life.alive)
        return TimelineAttempt(
            attempt=attempt.number,
            started_ms=started,
            ended_ms=max(started, ended) if ended is not None else None,  # clocks jump
            state=attempt.state(life.alive),
            started_from=self._started_from(life, attempt)[1],
            cause=attempt.cause or ("its driver died" if attempt.died(life.alive) else None),
        )

    def _parents_of(self, life: _Life) -> list[_Life]:
        parents = (self._started_from(life, attempt)[0] for attempt in life.attempts)
        return list(dict.fromkeys(p for p in parents if p is not None and p is not life))

    def _started_from(
        self, life: _Life, attempt: AttemptLife
    ) -> tuple[_Life | None, StartedFrom | None]:
        number, given = _origin(attempt)
        if number is not None:
            return life, _checkpoint(
                normalized(life.job.directory.storage.uri), life.job.name, number
            )
        if given is None:
            return None, None
        slot = split_slot_path(display_path(given))
        if slot is not None:
            owner = self._lives.get(normalized(slot[0]))
            return owner, _checkpoint(
                normalized(slot[0]), owner.job.name if owner else None, slot[1]
            )
        owner, row = self._savepoints.get(normalized(given), (None, None))
        return owner, StartedFrom(
            kind="savepoint",
            job=owner.job.name if owner is not None else None,
            checkpoint=row.checkpoint if row is not None else None,
            savepoint=row.id if row is not None else None,
            path=normalized(given),
        )


def _reachable(life: _Life, towards: Callable[[_Life], list[_Life]]) -> list[_Life]:
    """Return all that can be reached from a job, each after all that it leads to itself."""
    order, seen = [], {life}
    stack = [(life, iter(towards(life)))]
    while stack:
        one, rest = stack[-1]
        unseen = next((other for other in rest if other not in seen), None)
        if unseen is None:
            stack.pop()
            order.append(one)
        else:
            seen.add(unseen)
            stack.append((unseen, iter(towards(unseen))))
    return order[:-1]


def _read(job: Job) -> _Life:
    return _Life(job, job.liveness(), job.attempts(), job.savepoints())


def _origin(attempt: AttemptLife) -> tuple[int | None, str | None]:
    """Return the job's own checkpoint an attempt started from, or where its snapshot is."""
    if attempt.info is not None:
        return attempt.info.checkpoint, attempt.info.snapshot
    named = _OWN.fullmatch(attempt.snapshot or "")
    return (int(named[1]), None) if named else (None, attempt.snapshot)


def _checkpoint(directory: str, job: str | None, number: int) -> StartedFrom:
    path = f"{directory}/checkpoints/chk-{number}.json"
    return StartedFrom(kind="checkpoint", job=job, checkpoint=number, path=path)


def _ended_ms(attempt: AttemptLife, following: AttemptLife | None, alive: Liveness) -> int | None:
    if attempt.ended is not None:
        return attempt.ended.at_ms
    if following is not None:
        return following.started_ms if following.started_ms is not None else following.last_ms
    return None if alive.has_live_driver else attempt.last_ms
