"""The attempts and savepoints of related jobs on one time axis."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from turnback.errors import StorageError
from turnback.job.catalog import SavepointEntry
from turnback.job.liveness import Liveness
from turnback.snapshot.find import split_slot_path
from turnback.storage.locations import display_path, normalized, resolved
from turnback.views.history import AttemptLife, AttemptOrigin, read_origins
from turnback.views.job import Job
from turnback.views.model import SavepointRow, View


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


def timeline(job: Job, jobs: Iterable[Job], now_ms: int) -> Timeline:
    """Return the timeline around a job; others that cannot be read are left out.

    Of all jobs only what they started from is looked at, and the lives of those that are related.
    """
    family = {resolved(job.directory.storage.uri): _member(job)}
    for other in jobs:
        location = resolved(other.directory.storage.uri)
        if location in family:
            continue
        try:
            family[location] = _member(other)
        except StorageError as error:
            _left_out(other, error)
    lineage = _Lineage(family)
    lives = []
    for member in lineage.of(next(iter(family.values()))):
        try:
            lives.append(lineage.timeline_job(member))
        except StorageError as error:
            if member.job is job:
                raise
            _left_out(member.job, error)
    return Timeline(job=job.name, now_ms=now_ms, jobs=tuple(lives))


def _left_out(job: Job, error: StorageError) -> None:
    _LOG.warning("job %r is missing from the timeline: %s", job.name, error)


@dataclass(frozen=True, eq=False)
class _Member:
    """A job with what its attempts started from, and what others may have started from."""

    job: Job
    origins: list[AttemptOrigin]
    savepoints: list[SavepointEntry]


class _Lineage:
    """Which job started from whose snapshots; jobs are by their location."""

    def __init__(self, family: Mapping[str, _Member]) -> None:
        self._family = family
        self._savepoints = {
            resolved(entry.path): (member, entry)
            for member in family.values()
            for entry in member.savepoints
        }
        self._parents = {member: self._parents_of(member) for member in family.values()}

    def of(self, member: _Member) -> list[_Member]:
        """Return the ancestors of a job, the job, and its descendants, in this order."""
        everyone = self._family.values()
        ancestors = _reachable(member, lambda one: self._parents[one])
        children = _reachable(member, lambda one: [x for x in everyone if one in self._parents[x]])
        descendants = reversed(children)
        return [*ancestors, member, *(one for one in descendants if one not in ancestors)]

    def timeline_job(self, member: _Member) -> TimelineJob:
        """Return the life of a job; `StorageError` if it cannot be read."""
        job = member.job
        alive = member.job.liveness()
        lives = member.job.attempts()
        attempts = zip_longest(lives, lives[1:])
        return TimelineJob(
            name=job.name,
            state=alive.state,
            attempts=tuple(self._timeline_attempt(member, alive, *pair) for pair in attempts),
            savepoints=tuple(reversed(job.savepoints())),
        )

    def _timeline_attempt(
        self, member: _Member, alive: Liveness, attempt: AttemptLife, following: AttemptLife | None
    ) -> TimelineAttempt:
        started = attempt.started_ms if attempt.started_ms is not None else attempt.last_ms
        ended = _ended_ms(attempt, following, alive)
        return TimelineAttempt(
            attempt=attempt.number,
            started_ms=started,
            ended_ms=max(started, ended) if ended is not None else None,  # clocks jump
            state=attempt.state(alive),
            started_from=self._started_from(member, attempt.origin)[1],
            cause=attempt.cause or ("its driver died" if attempt.died(alive) else None),
        )

    def _parents_of(self, member: _Member) -> list[_Member]:
        parents = (self._started_from(member, origin)[0] for origin in member.origins)
        return list(dict.fromkeys(p for p in parents if p is not None and p is not member))

    def _started_from(
        self, member: _Member, origin: AttemptOrigin
    ) -> tuple[_Member | None, StartedFrom | None]:
        if origin.checkpoint is not None:
            here = normalized(member.job.directory.storage.uri)
            return member, _checkpoint(here, member.job.name, origin.checkpoint)
        if origin.snapshot is None:
            return None, None
        slot = split_slot_path(display_path(origin.snapshot))
        if slot is not None:
            owner = self._family.get(resolved(slot[0]))
            return owner, _checkpoint(
                normalized(slot[0]), owner.job.name if owner else None, slot[1]
            )
        owner, entry = self._savepoints.get(resolved(origin.snapshot), (None, None))
        return owner, StartedFrom(
            kind="savepoint",
            job=owner.job.name if owner is not None else None,
            checkpoint=entry.checkpoint if entry is not None else None,
            savepoint=entry.id if entry is not None else None,
            path=normalized(origin.snapshot),
        )


def _reachable(member: _Member, towards: Callable[[_Member], list[_Member]]) -> list[_Member]:
    """Return all that can be reached from a job, each after all that it leads to itself."""
    order = []
    seen = {member}
    stack = [(member, iter(towards(member)))]
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


def _member(job: Job) -> _Member:
    return _Member(job, read_origins(job.directory), job.savepoint_entries())


def _checkpoint(directory: str, job: str | None, number: int) -> StartedFrom:
    path = f"{directory}/checkpoints/chk-{number}.json"
    return StartedFrom(kind="checkpoint", job=job, checkpoint=number, path=path)


def _ended_ms(attempt: AttemptLife, following: AttemptLife | None, alive: Liveness) -> int | None:
    if attempt.ended is not None:
        return attempt.ended.at_ms
    if following is not None:
        return following.started_ms if following.started_ms is not None else following.last_ms
    return None if alive.has_live_driver else attempt.last_ms
