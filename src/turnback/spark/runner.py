"""Runs a job, attempt after attempt."""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid

from msgspec.structs import replace

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence
from turnback.config.savepoints import SavepointFormat
from turnback.core.clock import Clock, SystemClock
from turnback.core.errors import StorageError, TurnbackError
from turnback.job.directory import JobDirectory, JobInfo
from turnback.job.history import AttemptStarted, History, JobEnded, Restarting
from turnback.job.run import RunError, RunningJob
from turnback.job.status import JobState, StatusUpdate
from turnback.program.plan import Plan
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import Origin
from turnback.snapshot.snapshot import Snapshot
from turnback.spark.attempt import Attempt
from turnback.spark.driver import AttemptContext, Heartbeat, JobContext
from turnback.spark.engine import Engine
from turnback.spark.failures import FINAL, REPLACED, describe_error, final_error, lost_error
from turnback.spark.job import ClaimMode, EpochStats, JobReport, JobSpec, describe
from turnback.spark.service import RequestService
from turnback.spark.sinks import JobSinks
from turnback.spark.starter import Matched, Starter
from turnback.state.files import storage_of
from turnback.storage.local import LocalStorage
from turnback.worker.local_state import LocalStores, StoreOwner, remove_others

_LOG = logging.getLogger(__name__)


class JobRunner:
    """Runs a job: attempt after attempt, until it ends or the restart strategy gives up.

    An attempt takes a fence, finds what it starts from, commits what earlier attempts have
    promised, and then runs epochs. Any failure ends the attempt, and the restart strategy decides
    whether there is another one. A heartbeat and the service for requests run beside the attempts.
    """

    def __init__(
        self, engine: Engine, plan: Plan, spec: JobSpec, clock: Clock | None = None
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._spec = spec
        self._clock = clock or SystemClock()
        self._directory = JobDirectory.locate(
            spec.root, spec.name, dict(spec.storage_options), self._clock
        )
        self._context = JobContext(engine, plan, spec, self._directory, self._clock)
        self._starter = Starter(self._context)
        self.requests = RequestService(self._context, self)
        """Serves what is asked of the job."""
        self._heartbeat = Heartbeat(self._directory, self._status_update, spec.run)
        self._attempts: set[int] = set()
        self._attempt: Attempt | None = None
        self._claimed: Snapshot | None = None
        self.origin: Origin | None = None
        self._restarts = 0
        self._failed_checkpoints = 0
        self._last_update = StatusUpdate()
        self._fenced: int | None = None
        self._nonce = uuid.uuid4().hex
        self._cancelled = threading.Event()
        self.report = JobReport(spec.name, job_dir=self._directory.storage.uri)
        self.report.warnings = plan.warnings

    def run(self) -> JobReport:
        """Run until the input ends, the job is cancelled, or no restart is left.

        Raises:
            JobFailedError: It failed for good; its cause is chained.
            SparkUnavailableError: Spark's JVM is gone; another driver can go on with the job.
        """
        self._directory.require_free()
        self._starter.check()
        storage = self._directory.storage
        if isinstance(storage, LocalStorage):
            storage.leftovers(
                remove=True
            )  # half-written files of drivers and workers that were killed
        info = self._directory.renew() if self._spec.fresh else self._directory.open()
        self.report.job_id = info.job_id
        self._tell_supervisor(info)
        remove_others(self._store_owner(info), self._spec.backend, self._spec.local_dir)
        strategy = self._spec.restart.create()
        with self._heartbeat.beating(), self._serving_requests(info):
            while True:
                history, cause = self._run_attempt(info)
                if cause is None:
                    return self._finish(info, history)
                if not isinstance(cause, REPLACED) and (fate := self._engine.lost()):
                    # No attempt of this process can work any more, whatever the strategy allows.
                    if self._cancelled.is_set():
                        return self._finish(info, history)
                    raise self._fail_without_spark(info, history, cause, fate)
                delay = None if isinstance(cause, FINAL) else strategy(self._now())
                if delay is None or self._cancelled.is_set():
                    raise self._fail(info, history, cause)
                self._await_restart(info, history, cause, delay)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that is running, `None` between two of them."""
        return self._attempt

    @property
    def saves_on_stop(self) -> bool:
        """Whether a stop takes a savepoint unless the user declines."""
        return self._spec.savepoints.on_stop and self._spec.savepoints.directory is not None

    @property
    def savepoint_format(self) -> SavepointFormat:
        """How savepoints are written unless the user says otherwise."""
        return self._spec.savepoints.format

    def cancel(self) -> None:
        """End the job from another thread; its checkpoints stay or go as configured."""
        self._cancelled.set()
        if self._attempt is not None:
            self._attempt.stop()

    def _tell_supervisor(self, info: JobInfo) -> None:
        if self._spec.run is not None:
            self._spec.run.set_job(
                RunningJob(
                    name=info.job,
                    job_id=info.job_id,
                    root=self._spec.root,
                    directory=self._directory.storage.uri,
                    restart=self._spec.restart.to_configuration(),
                    storage_options=self._spec.storage_options,
                )
            )

    # -- one attempt

    def _run_attempt(self, info: JobInfo) -> tuple[History | None, BaseException | None]:
        """Run one attempt; returns why it failed, or None."""
        history = None
        try:
            log = CheckpointLog(self._directory.storage)
            supervisor = self._spec.run.supervisor() if self._spec.run else None
            self._write_status(JobState.CREATED, info, StatusUpdate(supervisor=supervisor))
            fence = self._fence(log, info)
            self.requests.took_over(fence.attempt)
            history = History(self._directory.storage, fence.attempt, self._clock)
            first = not self.report.attempts
            matched = self._starter.find(log, info.job_id, self._attempts, first=first)
            sinks = JobSinks(self._plan, fence, self._directory)
            _settle(log, sinks, matched)
            if matched is not None and matched.own is not None and matched.upgrade:
                self.requests.save_before_upgrade(matched.own)
            self._begin(info, fence, matched, history)
            manifest = self._starter.manifest(matched, fence) if matched else None
            self._attempt = Attempt(
                self._context,
                AttemptContext(fence, log, manifest, sinks, history),
                self._epoch_done,
                lambda: self._is_running(info, fence.attempt),
            )
            self.requests.attempt_begins(self._attempt)
            if self._cancelled.is_set():
                self._attempt.stop()
            self._attempt.run()
        except Exception as e:  # noqa: BLE001 - whatever it is, the restart strategy decides
            return history, e
        finally:
            self._count_attempt()
        return history, None

    def _fence(self, log: CheckpointLog, info: JobInfo) -> Fence:
        fence = log.fence(
            job=info.job,
            job_id=info.job_id,
            created_ms=self._clock.now_ms(),
            host=socket.gethostname(),
            pid=getpid(),
            nonce=self._nonce,
            after=self._fenced,
        )
        self._fenced = fence.attempt
        self._attempts.add(fence.attempt)
        return fence

    def _begin(
        self, info: JobInfo, fence: Fence, matched: Matched | None, history: History
    ) -> None:
        origin = matched.snapshot if matched else None
        own = matched.own if matched else None
        self._directory.record_attempt(
            fence.attempt,
            checkpoint=own.number if own else None,
            snapshot=origin.origin.uri if origin and not own else None,
        )
        if origin is not None and own is None:
            self.origin = origin.origin
            if self._spec.claim_mode is ClaimMode.CLAIM and origin.metadata is not None:
                self._claimed = origin
        name = origin.name if origin else None
        _LOG.info("job %r: attempt %d starts from %s", info.job, fence.attempt, name or "nothing")
        history.record(AttemptStarted(name, origin.epoch if origin else None))
        if not self.report.attempts:
            self.report.restored_from = name
        self.report.attempts += 1
        self._directory.record_program(describe(self._plan, self._spec, fence.attempt))
        update = StatusUpdate(
            attempt=fence.attempt,
            epoch=origin.epoch if origin else None,
            checkpoint=own.number if own else None,
            log=str(self._spec.run.log) if self._spec.run else None,
        )
        self._write_status(JobState.CREATED, info, update)

    def _is_running(self, info: JobInfo, attempt: int) -> None:
        self._write_status(JobState.RUNNING, info)
        if self._spec.run is not None:
            self._spec.run.set_running(attempt)

    def _epoch_done(self, stats: EpochStats) -> None:
        self.report.epochs.append(stats)
        for how, times in stats.found.items():
            self.report.found[how] = self.report.found.get(how, 0) + times

        if self._attempt is not None and self._attempt.coordinator.completed:
            self._drop_claimed()

    def _drop_claimed(self) -> None:
        """Delete the savepoint that the job was given, now that it has a checkpoint of its own."""
        claimed, self._claimed = self._claimed, None
        if claimed is not None:
            try:
                SavepointDirectory(storage_of(claimed.storage)).delete()
            except TurnbackError as e:
                _LOG.warning("the claimed savepoint %s was not deleted: %s", claimed.name, e)

    def _count_attempt(self) -> None:
        if self._attempt is not None:
            self._last_update = self._status_update()
            last = self._attempt.coordinator.last
            self.report.checkpoints += self._attempt.coordinator.completed
            self._failed_checkpoints += self._attempt.coordinator.failed
            if self._attempt.coordinator.completed:
                self._drop_claimed()
            if last is not None:
                self.report.last_checkpoint = last.number
            self._attempt = None

    # -- between and after attempts

    def _await_restart(
        self, info: JobInfo, history: History | None, cause: BaseException, delay_ms: int
    ) -> None:
        self._restarts += 1
        why = describe_error(cause)
        _LOG.warning("job %r restarts in %d ms: %s", info.job, delay_ms, why)
        if history is not None:
            history.record(Restarting(why, delay_ms))
        update = StatusUpdate(restarts=self._restarts, cause=why)
        self._write_status(JobState.RESTARTING, info, update)
        self._cancelled.wait(delay_ms / 1000)

    def _finish(self, info: JobInfo, history: History | None) -> JobReport:
        state = JobState.CANCELED if self._cancelled.is_set() else JobState.FINISHED
        _LOG.info("job %r is %s", info.job, state.value)
        if history is not None:
            history.record(JobEnded(state.value))
        self._write_status(state, info, self._last_update)
        # The files are the state. What is left on this machine is a cache nobody uses now.
        owner = self._store_owner(info)
        LocalStores.of(owner, self._spec.backend, self._spec.local_dir).discard("the job has ended")
        return self.report

    def _store_owner(self, info: JobInfo) -> StoreOwner:
        directory = self._directory.storage.uri
        return StoreOwner(job=info.job, job_id=info.job_id, directory=directory)

    def _fail(self, info: JobInfo, history: History | None, cause: BaseException) -> BaseException:
        why = describe_error(cause)
        if history is not None:
            history.record(JobEnded(JobState.FAILED.value, why))
        if not isinstance(cause, REPLACED):
            self._write_status(JobState.FAILED, info, replace(self._last_update, cause=why))
        return final_error(info.job, self._restarts, cause)

    def _fail_without_spark(
        self, info: JobInfo, history: History | None, cause: BaseException, fate: str
    ) -> BaseException:
        """End this driver, but not its job: the next driver goes on with it."""
        run = self._spec.run
        error = lost_error(info.job, fate, cause, supervised=run is not None)
        try:
            if run is not None:
                # The program may catch the error and end well; the job has not.
                run.set_error(RunError.of(error))
                if history is not None:
                    history.record(Restarting(str(error), 0))
            self._write_status(JobState.RESTARTING, info, StatusUpdate(cause=str(error)))
        except StorageError as e:
            _LOG.warning("job %r: that its driver ends is not recorded: %s", info.job, e)
        return error

    def _write_status(
        self, state: JobState, info: JobInfo, update: StatusUpdate | None = None
    ) -> None:
        self._directory.write_status(state, info.job_id, update)

    @contextmanager
    def _serving_requests(self, info: JobInfo) -> Iterator[None]:
        self.requests.start(
            info.created_ms,
            resumed=self._spec.resumed,
            supervised=self._spec.run is not None,
        )
        try:
            yield
        finally:
            self.requests.close(give_up=self._cancelled.is_set())

    def _status_update(self) -> StatusUpdate:
        """What has changed in the status since the last one."""
        attempt, update = self._attempt, StatusUpdate()
        if self.report.epochs:
            update = replace(update, epoch=self.report.epochs[-1].number)
        if attempt is None:
            return update
        last = attempt.coordinator.last
        if last is not None:
            update = replace(update, checkpoint=last.number)
        metrics = attempt.metrics(self.report.checkpoints, self._failed_checkpoints)
        return replace(update, metrics=metrics)

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1000)


def _settle(log: CheckpointLog, sinks: JobSinks, matched: Matched | None) -> None:
    """Commit what was promised; before anything else, so that a savepoint lacks nothing."""
    manifest = matched.snapshot.manifest if matched is not None else None
    for uid, committer in sinks.committers.items():
        promised = matched.promised(uid) if matched is not None else ()
        committer.recover(promised)
        if promised and matched is not None and manifest is not None:
            done = [was for was, now in matched.sinks.items() if now == uid]
            log.record_commit(manifest.number, done)
    sinks.record()
