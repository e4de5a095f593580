from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
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
from turnback.job.request import Request, RequestSpec
from turnback.job.run import RunError, RunningJob
from turnback.job.status import JobState, StatusUpdate
from turnback.program.plan import Plan
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.find import locate, resume_point
from turnback.snapshot.metadata import Origin
from turnback.snapshot.snapshot import Snapshot
from turnback.spark.attempt import Attempt
from turnback.spark.driver import AttemptContext, Heartbeat, JobContext
from turnback.spark.ending import FINAL, REPLACED, final_error, lost_error, told
from turnback.spark.engine import Engine
from turnback.spark.job import ClaimMode, EpochStats, JobReport, JobSpec, describe
from turnback.spark.service import Service
from turnback.spark.sinks import JobSinks, claim_targets
from turnback.spark.starter import Matched, Starter
from turnback.state.files import storage_of
from turnback.storage.local import LocalStorage
from turnback.worker.local_state import LocalStores, StoreOwner, remove_others

_LOG = logging.getLogger(__name__)


class JobRunner:
    """Runs a job: attempt after attempt, as the restart strategy says."""

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
        self._storage = self._context.storage
        self._starter = Starter(engine, plan, spec, self._storage, self._clock)
        self._service = Service(
            engine, self._directory, self._storage, spec.savepoints, self, self._clock
        )
        self._heartbeat = Heartbeat(self._directory, self._vitals, spec.run)
        self._accepted: Matched | None = None
        self._attempts: set[int] = set()
        self._attempt: Attempt | None = None
        self._claimed: Snapshot | None = None
        self.origin: Origin | None = None
        self._restarts = 0
        self._failed_checkpoints = 0
        self._last_words = StatusUpdate()
        self._fenced: int | None = None
        self._nonce = uuid.uuid4().hex
        self._cancelled = threading.Event()
        self.report = JobReport(spec.name, job_dir=self._directory.storage.uri)
        self.report.warnings = plan.warnings

    def run(self) -> JobReport:
        """Run until the input ends, the job is cancelled, or no restart is left.

        Raises:
            JobFailedError: It failed for good; the cause is chained and told.
            SparkUnavailableError: Spark's JVM is gone; another driver can go on with the job.
        """
        self._directory.require_free()
        self._accepted = self._accept()
        storage = self._directory.storage
        if isinstance(storage, LocalStorage):
            storage.remove_leftovers()  # half-written files of drivers and workers that were killed
        info = self._directory.renew() if self._spec.fresh else self._directory.open()
        self.report.job_id = info.job_id
        self._introduce(info)
        remove_others(self._store_owner(info), self._spec.backend, self._spec.local_dir)
        strategy = self._spec.restart.create()
        with self._heartbeat.beating(), self._served(info):
            while True:
                history, cause = self._live(info)
                if cause is None:
                    return self._ended(info, history)
                if not isinstance(cause, REPLACED) and (fate := self._engine.lost()):
                    # No attempt of this process can work any more, whatever the strategy allows.
                    if self._cancelled.is_set():
                        return self._ended(info, history)
                    raise self._lost(info, history, cause, fate)
                delay = None if isinstance(cause, FINAL) else strategy.on_failure(self._now())
                if delay is None or self._cancelled.is_set():
                    raise self._failed(info, history, cause)
                self._wait(info, history, cause, delay)

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

    def ask(self, spec: RequestSpec) -> Request:
        """Ask the running job for something, as `Requests.submit` does."""
        return self._service.submit(spec)

    def answer(self, request: Request, is_over: Callable[[], bool]) -> str | None:
        """Wait for the end of a request; see `Service.answer`."""
        return self._service.answer(request, is_over)

    def cancel(self) -> None:
        """End the job from another thread; its checkpoints stay or go as configured."""
        self._cancelled.set()
        if self._attempt is not None:
            self._attempt.stop()

    def _introduce(self, info: JobInfo) -> None:
        """Tell the supervisor which job this is."""
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

    def _accept(self) -> Matched | None:
        """Find what the job starts from, and refuse what does not fit.

        Nothing has been written yet: a start that is refused leaves no trace, neither a new job
        nor another status of one that was stopped. Targets of sinks are claimed last.
        """
        info, matched = self._directory.check_owner(), None
        try:
            if not self._spec.fresh:
                matched = self._match(CheckpointLog(self._directory.storage), info)
            job_id = info.job_id if info else ""
            take_over = self._spec.take_over_sinks  # said once: a restart takes nothing back
            claim_targets(self._plan, self._directory, job_id, take_over=take_over)
        except FINAL:
            raise
        except Exception as e:  # noqa: BLE001 - the restart strategy decides, once there is a job
            _LOG.warning("job %r: the start could not be checked: %s", self._spec.name, e)
        return matched

    # -- one attempt

    def _live(self, info: JobInfo) -> tuple[History | None, BaseException | None]:
        """Run one attempt; returns why it failed, or None."""
        history = None
        try:
            log = CheckpointLog(self._directory.storage)
            supervisor = self._spec.run.supervisor() if self._spec.run else None
            self._write_status(JobState.CREATED, info, StatusUpdate(supervisor=supervisor))
            fence = self._fence(log, info)
            self._service.took_over(fence.attempt)
            history = History(self._directory.storage, fence.attempt, self._clock)
            matched = self._match(log, info)
            sinks = JobSinks(self._plan, fence, self._directory)
            self._settle(log, sinks, matched)
            if matched is not None and matched.own is not None and matched.upgrade:
                self._service.save_before_upgrade(matched.own)
            self._begin(info, fence, matched, history)
            manifest = self._starter.manifest(matched, fence) if matched else None
            self._attempt = Attempt(
                self._context,
                AttemptContext(fence, log, manifest, sinks, history),
                self._epoch_done,
                lambda: self._is_running(info, fence.attempt),
            )
            self._service.begins(self._attempt)
            if self._cancelled.is_set():
                self._attempt.stop()
            self._attempt.run()
        except Exception as e:  # noqa: BLE001 - whatever it is, the restart strategy decides
            return history, e
        finally:
            self._take_stock()
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

    def _match(self, log: CheckpointLog, info: JobInfo | None) -> Matched | None:
        """Match what the job starts from with the program; `None` to start empty."""
        origin = self._origin(log)
        if origin is None:
            return None
        if self._accepted is not None and self._accepted.snapshot == origin:
            return self._accepted
        # A restart is a start like any other, unless this very program has taken the checkpoint.
        known = origin.manifest is not None and origin.manifest.attempt in self._attempts
        return self._starter.match(origin, info.job_id if info else "", known=known)

    def _settle(self, log: CheckpointLog, sinks: JobSinks, matched: Matched | None) -> None:
        """Commit what was promised; before anything else, so that a savepoint lacks nothing."""
        manifest = matched.snapshot.manifest if matched is not None else None
        for uid, committer in sinks.committers.items():
            promised = matched.promised(uid) if matched is not None else ()
            committer.recover(promised)
            if promised and matched is not None and manifest is not None:
                done = [was for was, now in matched.sinks.items() if now == uid]
                log.record_commit(manifest.number, done)
        sinks.record()

    def _origin(self, log: CheckpointLog) -> Snapshot | None:
        """What to start from: what the user chose, the first time; then the newest there is."""
        if self._spec.start_from is not None and not self.report.attempts:
            return locate(self._spec.start_from, self._storage)
        point = resume_point(log, self._directory)
        if point is None:
            return None
        if point.manifest is not None:
            promised = log.uncommitted(point.manifest)
            return Snapshot.of_manifest(point.manifest, self._storage, promised)
        assert point.snapshot is not None
        return locate(point.snapshot, self._storage)

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

    def _take_stock(self) -> None:
        if self._attempt is not None:
            self._last_words = self._vitals()
            last = self._attempt.coordinator.last
            self.report.checkpoints += self._attempt.coordinator.completed
            self._failed_checkpoints += self._attempt.coordinator.failed
            if self._attempt.coordinator.completed:
                self._drop_claimed()
            if last is not None:
                self.report.last_checkpoint = last.number
            self._attempt = None

    # -- between and after attempts

    def _wait(
        self, info: JobInfo, history: History | None, cause: BaseException, delay_ms: int
    ) -> None:
        self._restarts += 1
        why = told(cause)
        _LOG.warning("job %r restarts in %d ms: %s", info.job, delay_ms, why)
        if history is not None:
            history.record(Restarting(why, delay_ms))
        update = StatusUpdate(restarts=self._restarts, cause=why)
        self._write_status(JobState.RESTARTING, info, update)
        self._cancelled.wait(delay_ms / 1000)

    def _ended(self, info: JobInfo, history: History | None) -> JobReport:
        state = JobState.CANCELED if self._cancelled.is_set() else JobState.FINISHED
        _LOG.info("job %r is %s", info.job, state.value)
        if history is not None:
            history.record(JobEnded(state.value))
        self._write_status(state, info, self._last_words)
        # The files are the state. What is left on this machine is a cache nobody uses now.
        owner = self._store_owner(info)
        LocalStores.of(owner, self._spec.backend, self._spec.local_dir).discard("the job has ended")
        return self.report

    def _store_owner(self, info: JobInfo) -> StoreOwner:
        directory = self._directory.storage.uri
        return StoreOwner(job=info.job, job_id=info.job_id, directory=directory)

    def _failed(
        self, info: JobInfo, history: History | None, cause: BaseException
    ) -> BaseException:
        why = told(cause)
        if history is not None:
            history.record(JobEnded(JobState.FAILED.value, why))
        if not isinstance(cause, REPLACED):
            self._write_status(JobState.FAILED, info, replace(self._last_words, cause=why))
        return final_error(info.job, self._restarts, cause)

    def _lost(
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
    def _served(self, info: JobInfo) -> Iterator[None]:
        self._service.start(
            info.created_ms,
            resumed=self._spec.resumed,
            supervised=self._spec.run is not None,
        )
        try:
            yield
        finally:
            self._service.close(give_up=self._cancelled.is_set())

    def _vitals(self) -> StatusUpdate:
        """What the status says of the running attempt."""
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
