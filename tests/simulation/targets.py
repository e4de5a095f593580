"""Model targets, and a right sink for each template that writes to them.

A sink holds the name of its target; the target is in the world. What a sink does with its target in
one call is atomic, as a transaction is; the call itself may fail in every way the world knows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from simulation.world import World
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks import IdempotentSink, StagedOutput, TwoPhaseCommitSink, WriteAheadSink
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    WriterContext,
    attempt_of,
    directory_digest,
    promised_version,
    require_known_attempt,
)
from turnback.values.columns import Batch

T = TypeVar("T")
Row = tuple[Any, ...]


@dataclass
class Target:
    """What a server keeps.

    Attributes:
        rows: What readers see, in the order in which it became visible.
        prepared: What is durable and not visible, by transaction.
        committed: The transactions whose rows are visible.
        versions: What it remembers for each job: a version, and the driver that wrote it.
        values: The newest value of each key, with the job and version that wrote it.
        drivers: The newest attempt of each job directory that has claimed it, and its driver.
        owner: The job directory it belongs to.
    """

    rows: list[Row] = field(default_factory=list)
    prepared: dict[str, list[Row]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    versions: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    values: dict[str, tuple[str, int, Row]] = field(default_factory=dict)
    drivers: dict[str, tuple[int, str]] = field(default_factory=dict)
    owner: str | None = None

    def require_owner(self, directory: str | None) -> None:
        if self.owner != directory:
            raise ConfigurationError(f"the target belongs to {self.owner}, not to {directory}")


class Targets:
    """All targets of the world that is being played."""

    world: ClassVar[World]
    by_name: ClassVar[dict[str, Target]] = {}

    @classmethod
    def begin(cls, world: World) -> None:
        cls.world = world
        cls.by_name = {}


def target(name: str) -> Target:
    return Targets.by_name.setdefault(name, Target())


def ask(what: str, action: Callable[[], T], *, writes: bool = True) -> T:
    return Targets.world.call(what, action, SinkError, writes=writes)


def identity(ctx: WriterContext | CommitterContext) -> str:
    return f"{job_of(ctx)}/{ctx.uid}"


def job_of(ctx: WriterContext | CommitterContext) -> str:
    """A job, whatever its sink is called: attempts before a rename are attempts of it as well."""
    return f"{ctx.directory_id}/{ctx.job_id}"


class _Owned:
    """What all of them do about the owner of their target."""

    name: str

    def check_target(self, ctx: CommitterContext) -> None:
        self._checked(ctx)

    def acquire_target(self, ctx: CommitterContext) -> None:
        seen = self._checked(ctx)
        assert ctx.attempts is not None
        attempt, driver = seen[1]
        is_lost_line = bool(attempt) and ctx.attempts.nonce_of(attempt) != driver

        def claim() -> None:
            place = target(self.name)
            if self._state(ctx) != seen:
                raise SinkError(f"{self.name} was claimed by somebody else meanwhile")
            if is_lost_line:
                self._forget(place, ctx)
            place.owner = ctx.job_directory
            if ctx.attempt:
                place.drivers[ctx.directory_id] = (ctx.attempt, ctx.nonce)

        ask(f"{self.name}: claim", claim)

    def _state(self, ctx: CommitterContext) -> tuple[str | None, tuple[int, str]]:
        place = target(self.name)
        return place.owner, place.drivers.get(ctx.directory_id, (0, ""))

    def _checked(self, ctx: CommitterContext) -> tuple[str | None, tuple[int, str]]:
        """What the target says of its owner, if that allows the job to use it."""
        owner, newest = ask(f"{self.name}: whose is it", lambda: self._state(ctx), writes=False)
        if owner not in (None, ctx.job_directory):
            assert owner is not None and ctx.other_jobs is not None
            if not ctx.take_over or ctx.other_jobs.promised_by(owner):
                raise ConfigurationError(f"{self.name} belongs to the job in {owner}")
        # A restored job directory counts the attempts again that the target remembers.
        require_known_attempt(ctx, *newest, self.name)
        return owner, newest

    def _forget(self, place: Target, ctx: CommitterContext) -> None:
        """Go on with what is there; versions that drivers of a lost line wrote say nothing."""
        place.drivers.pop(ctx.directory_id, None)
        assert ctx.attempts is not None
        for sink, (version, driver) in list(place.versions.items()):
            is_known = ctx.attempts.nonce_of(attempt_of(version)) == driver
            is_promised = is_known and promised_version(ctx, version) == version
            if sink.startswith(f"{job_of(ctx)}/") and not is_promised:
                del place.versions[sink]
        for key, (job, _, row) in place.values.items():
            if job == job_of(ctx):
                place.values[key] = ("", 0, row)


class TwoPhaseModel(_Owned, TwoPhaseCommitSink[str]):
    """Prepared transactions, each with a name that nobody else has."""

    transaction_type = str

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory: str | None = None
        self._open: dict[str, list[Row]] = {}

    def begin(self, ctx: WriterContext) -> str:
        task = f"{ctx.attempt}.{ctx.epoch}.{ctx.partition}.{ctx.task_attempt_id}.{ctx.nonce[:4]}"
        txn = f"{identity(ctx)}:{task}"
        self._open[txn] = []
        return txn

    def write(self, txn: str, element: Any) -> None:
        self._open[txn].append(tuple(element))

    def pre_commit(self, txn: str) -> str:
        rows = self._open.pop(txn)
        ask(f"{self.name}: prepare {_short(txn)} {rows}", lambda: self._prepare(txn, rows))
        return txn

    def _prepare(self, txn: str, rows: list[Row]) -> None:
        target(self.name).prepared[txn] = rows

    def commit(self, txn: str) -> None:
        ask(f"{self.name}: commit {_short(txn)}", lambda: self._commit(txn))

    def _commit(self, txn: str) -> None:
        place = target(self.name)
        if self.directory is not None:
            place.require_owner(self.directory)
        if txn in place.prepared:
            place.rows += place.prepared.pop(txn)
            place.committed.add(txn)
        elif txn not in place.committed:
            raise SinkError(f"{txn} is lost")

    def abort(self, txn: str) -> None:
        self._open.pop(txn, None)
        ask(
            f"{self.name}: roll back {_short(txn)}",
            lambda: target(self.name).prepared.pop(txn, None),
        )

    def dangling(self, ctx: CommitterContext) -> Iterable[str]:
        def prepared() -> list[str]:
            mine = [t for t in target(self.name).prepared if t.startswith(f"{ctx.directory_id}/")]
            return [t for t in mine if int(t.rpartition(":")[2].split(".")[0]) <= ctx.attempt]

        return ask(f"{self.name}: list", prepared, writes=False)

    def writer(self, ctx: WriterContext) -> Any:
        return TwoPhaseCommitSink.writer(_own(self, _open={}), ctx)

    def committer(self, ctx: CommitterContext) -> Committer:
        own = _own(self, _open={}, directory=ctx.job_directory)
        return TwoPhaseCommitSink.committer(own, ctx)


class WriteAheadModel(_Owned, WriteAheadSink):
    """Rows and a version in one transaction."""

    def __init__(self, name: str) -> None:
        self.name = name

    def published(self, ctx: CommitterContext) -> int:
        version, driver = ask(
            f"{self.name}: how far",
            lambda: target(self.name).versions.get(identity(ctx), (0, "")),
            writes=False,
        )
        require_known_attempt(ctx, attempt_of(version), driver or "", self.name)
        return version

    def publish(self, ctx: CommitterContext, output: StagedOutput) -> None:
        rows = [tuple(row) for batch in output.batches() for row in batch.rows]
        assert ctx.attempts is not None
        driver = ctx.attempts.nonce_of(output.attempt)
        what = f"{self.name}: publish {output.attempt}.{output.epoch} {rows}"
        ask(what, lambda: self._publish(ctx, output.version, driver, rows))

    def _publish(
        self, ctx: CommitterContext, version: int, driver: str | None, rows: list[Row]
    ) -> None:
        place = target(self.name)
        place.require_owner(ctx.job_directory)
        if place.versions.get(identity(ctx), (0, ""))[0] >= version:
            return
        place.rows += rows
        place.versions[identity(ctx)] = (version, driver)


class IdempotentModel(_Owned, IdempotentSink):
    """The newest value of each key."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write_batch(self, batch: Batch, ctx: WriterContext) -> None:
        rows = [tuple(row) for row in batch.rows]
        ask(f"{self.name}: set {rows}", lambda: self._set(rows, ctx))

    def _set(self, rows: list[Row], ctx: WriterContext) -> None:
        place = target(self.name)
        if place.drivers.get(ctx.directory_id, (0, ""))[1] != ctx.nonce:
            return  # a stray task of a driver that was replaced
        if place.owner is None or directory_digest(place.owner) != ctx.directory_id:
            return  # or of a job whose target was taken over
        values = place.values
        for row in rows:
            job, version, _ = values.get(row[0], ("", 0, ()))
            if job != job_of(ctx) or version <= ctx.version:
                values[row[0]] = (job_of(ctx), ctx.version, row)


def _own(sink: T, **changed: Any) -> T:
    """A sink as another process has it."""
    own = copy.copy(sink)
    vars(own).update(changed)
    return own


def _short(txn: str) -> str:
    return txn.rpartition(":")[2]


KINDS: dict[str, type[TwoPhaseModel | WriteAheadModel | IdempotentModel]] = {
    "two-phase": TwoPhaseModel,
    "write-ahead": WriteAheadModel,
    "idempotent": IdempotentModel,
}
