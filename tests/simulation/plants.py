"""Defects to plant, one at a time: a simulation that does not notice them proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from simulation.kafka_plants import KAFKA_PLANTS
from simulation.redis_plants import LAYOUTS, REDIS_PLANTS
from simulation.savepoint_plants import FRESH_PLANTS, SAVEPOINT_PLANTS
from simulation.sql_plants import SQL_PLANTS
from simulation.table_plants import DELTA, ICEBERG, TABLE_PLANTS, TABLES
from simulation.targets import TwoPhaseModel, WriteAheadModel, ask, identity, target
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.protocol import CommitProtocol
from turnback.checkpoint.retention import Retention
from turnback.driver import restore_plan, runner
from turnback.driver.restore_plan import commit_promised, roll_back_leftovers
from turnback.sinks import two_phase
from turnback.sinks.write_ahead import WriteAheadCommitter
from turnback.snapshot.preflight import refuse_data_loss


def _commit_before_manifest() -> Any:
    persist = CommitProtocol._persist_manifest

    def hasty(self: Any, pending: Any) -> Any:
        self.commit_up_to(pending.epoch)
        return persist(self, pending)

    return mock.patch.object(CommitProtocol, "_persist_manifest", hasty)


def _roll_back_before_start_is_recorded() -> Any:
    def hasty(log: Any, sinks: Any, matched: Any) -> None:
        commit_promised(log, sinks, matched)
        roll_back_leftovers(sinks)

    return mock.patch.object(runner, "commit_promised", hasty)


def _task_rolls_back_its_copies() -> Any:
    begin = TwoPhaseModel.begin

    def jealous(self: Any, ctx: Any) -> str:
        task = f"{identity(ctx)}:{ctx.attempt}.{ctx.epoch}.{ctx.partition}."

        def roll_back() -> None:
            for txn in [t for t in target(self.name).prepared if t.startswith(task)]:
                del target(self.name).prepared[txn]

        ask(f"{self.name}: roll back copies", roll_back)
        return begin(self, ctx)

    return mock.patch.object(TwoPhaseModel, "begin", jealous)


def _no_fence() -> Any:
    def append(self: Any, manifest: Any) -> Any:
        # Wherever there is room, whoever has taken over.
        self._next = max([*self.numbers(), 0]) + 1
        return honest(self, manifest)

    honest = CheckpointLog.append
    return mock.patch.object(CheckpointLog, "append", append)


def _commits_count_as_done_when_they_fail() -> Any:
    def careless(self: Any, epoch: int, number: int, *, flush: bool = True) -> None:
        try:
            self.commit_up_to(epoch, flush=flush)
        except Exception:
            self._log.record_commit(number)
            raise
        self._log.record_commit(number)

    return mock.patch.object(CommitProtocol, "_commit_manifest", careless)


def _files_in_use_are_deleted() -> Any:
    def clean(self: Any, in_use: Callable[[], Any]) -> None:
        self._drop(self.numbers()[:-1])
        with self._lock:
            gone = sorted(self._retired)
        for path in gone:
            self._storage.delete(path)

    return mock.patch.object(Retention, "clean", clean)


def _publishes_without_comparing() -> Any:
    def publish(self: Any, ctx: Any, version: int, driver: str | None, rows: list[Any]) -> None:
        place = target(self.name)
        place.rows += rows
        place.versions[identity(ctx)] = (version, driver)

    return mock.patch.object(WriteAheadModel, "_publish", publish)


def _forgets_where_it_was_staged() -> Any:
    return mock.patch.object(WriteAheadCommitter, "_place_of", lambda self, task: "")


def _discards_what_waits_for_its_commit() -> Any:
    discard = two_phase._TwoPhaseCommitter.abort_orphans
    return mock.patch.object(
        two_phase._TwoPhaseCommitter, "abort_orphans", lambda self, known: discard(self, ())
    )


def _promises_of_renamed_sinks_are_forgotten() -> Any:
    """A start commits what is promised only of sinks that are called what they were."""

    def commit(log: Any, sinks: Any, matched: Any) -> None:
        if matched is not None:
            same = {was: now for was, now in matched.sinks.items() if was == now}
            matched = replace(matched, sinks=same)
        commit_promised(log, sinks, matched)

    return mock.patch.object(runner, "commit_promised", commit)


def _starts_lose_output_unasked() -> Any:
    """Promised output of sinks that are gone is left out, whether or not that is allowed."""

    def refuse(snapshot: Any, match: Any) -> None:
        refuse_data_loss(snapshot, replace(match, unclaimed_sinks=()))

    return mock.patch.object(restore_plan, "refuse_data_loss", refuse)


def _publishes_as_the_sink_is_called_now() -> Any:
    """What was staged under another name is published without asking how far that has come."""

    def publish(self: Any, tasks: Any, ctx: Any) -> None:
        honest(self, tasks, self._ctx)

    honest = WriteAheadCommitter._publish
    return mock.patch.object(WriteAheadCommitter, "_publish", publish)


PLANTS: dict[str, Callable[[], Any]] = {
    "commit-before-manifest": _commit_before_manifest,
    "roll-back-before-start": _roll_back_before_start_is_recorded,
    "task-rolls-back-copies": _task_rolls_back_its_copies,
    "no-fence": _no_fence,
    "failed-commits-recorded": _commits_count_as_done_when_they_fail,
    "files-in-use-deleted": _files_in_use_are_deleted,
    "no-compare-at-publish": _publishes_without_comparing,
    "forgets-where-staged": _forgets_where_it_was_staged,
    "discards-what-waits": _discards_what_waits_for_its_commit,
    "renamed-not-committed": _promises_of_renamed_sinks_are_forgotten,
    "loss-unasked": _starts_lose_output_unasked,
    "renamed-published-again": _publishes_as_the_sink_is_called_now,
    **KAFKA_PLANTS,
    **REDIS_PLANTS,
    **TABLE_PLANTS,
    **SAVEPOINT_PLANTS,
    **FRESH_PLANTS,
    **{name: plant for name, (plant, _) in SQL_PLANTS.items()},
}
SINKS: dict[str, Sequence[str]] = {
    "renamed-not-committed": ("two-phase", "write-ahead", "postgres", "files"),
    "loss-unasked": ("two-phase", "write-ahead", "postgres", "files"),
    "renamed-published-again": ("write-ahead",),
    "roll-back-before-start": ("two-phase", "postgres", "mariadb"),
    "no-compare-at-publish": ("write-ahead",),
    "forgets-where-staged": ("write-ahead", "kafka"),
    **dict.fromkeys(KAFKA_PLANTS, ("kafka",)),
    **dict.fromkeys(REDIS_PLANTS, LAYOUTS),
    **dict.fromkeys(TABLE_PLANTS, TABLES),
    "table-two-commits": DELTA,
    "iceberg-marks-alone": ICEBERG,
    "iceberg-rebases": ICEBERG,
    **dict.fromkeys(SAVEPOINT_PLANTS, ("two-phase", "write-ahead")),
    "fresh-leaves-prepared": ("postgres", "mariadb"),
    **{name: sinks for name, (_, sinks) in SQL_PLANTS.items()},
}
"""The sinks that a program needs to have the defect; those of others are any."""
HANDED_OVER = frozenset({"sql-no-owner", "sql-takes-over-promises", "redis-no-owner"})
"""The defects that only show where a target is handed over: stories have that more often."""
UPGRADED = frozenset({"renamed-not-committed", "loss-unasked", "renamed-published-again"})
"""Those that only show where a sink is renamed."""
TURNED_BACK = frozenset({"roll-back-before-start", "table-no-fence"})
"""Those that only show where a job is turned back."""

RESTORED = frozenset({"redis-restored-claim"})
"""Those that only show where a job directory is restored from a backup."""

ANEW = frozenset(FRESH_PLANTS)
"""Those that only show where a job is started afresh."""

SAVED = frozenset({*SAVEPOINT_PLANTS, *FRESH_PLANTS})
"""Those that only show where drivers serve requests."""

ABORTED = frozenset({"table-aborts-blindly"})
"""Those that only show where promised output is aborted by hand."""

FOCUS: dict[str, tuple[str, tuple[str, ...]]] = {
    "kafka-writes-without-looking": ("kafka: commit", ("lost reply", "late")),
    "redis-restored-claim": ("put state/", ("kill",)),
    "redis-no-version": ("redis: EVALSHA", ("late", "pause")),
    "redis-no-owner": ("redis: EVALSHA", ("late", "pause")),
    "savepoint-writers-alike": (" files/", ("pause",)),
    "table-aborts-blindly": (": commit", ("kill after", "lost reply")),
    "table-no-fence": (".inprogress", ("pause",)),
    "iceberg-marks-alone": ("iceberg: commit", ("pause",)),
    "iceberg-rebases": ("iceberg: commit", ("pause", "lost reply")),
}
"""Those that need one kind of failure in one place: stories have that often, and no other."""

MOVED = frozenset({"forgets-where-staged"})
"""Those that only show where a job directory is moved."""

NOTICED_BY = {
    "discards-what-waits": 15,
    "failed-commits-recorded": 154,
    "forgets-where-staged": 13,
    "fresh-goes-on": 8,
    "iceberg-rebases": 10,
    "kafka-lost-line-counts": 27,
    "kafka-offsets-only": 125,
    "loss-unasked": 49,
    "no-compare-at-publish": 207,
    "no-fence": 20,
    "redis-no-owner": 24,
    "redis-no-version": 38,
    "redis-stray-claims": 99,
    "renamed-not-committed": 30,
    "renamed-published-again": 86,
    "roll-back-before-start": 15,
    "savepoint-files-deleted": 28,
    "sql-no-progress": 49,
    "sql-task-rolls-back-copies": 8,
    "sql-two-transactions": 51,
    "table-no-fence": 25,
    "table-no-look": 21,
    "task-rolls-back-copies": 20,
}
"""A seed known to notice a defect, where the search for one begins; 0 for all others.

It is that at which `python -m simulation --plant NAME` stops.
"""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    if name is None:
        yield
        return
    with PLANTS[name]():
        yield
