"""Runs a job, attempt after attempt."""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import getpid

from msgspec import UNSET
from msgspec.structs import replace

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, StartPoint
from turnback.core.clock import Clock
from turnback.driver.attempt import Attempt
from turnback.driver.context import AttemptContext, FenceGuard, Heartbeat, JobContext
from turnback.driver.engine import Engine
from turnback.driver.epochs import watch_limits
from turnback.driver.executors import check_executors
from turnback.driver.job import (
    EpochStats,
    JobReport,
    JobSpec,
    SameErrors,
    describe,
    describe_error,
    final_error,
    lost_error,
)
from turnback.driver.redrive import redriven_at_start
from turnback.driver.restore_plan import (
    RestorePlan,
    RestorePlanner,
    abandoned_output,
    commit_promised,
    record_left_out,
    roll_back_leftovers,
)
from turnback.driver.service import RequestService
from turnback.driver.sinks import JobSinks
from turnback.driver.source_monitor import Positions, ReplayLimits, SourceMonitor, total_lag
from turnback.driver.standby import Standby
from turnback.errors import (
    FINAL,
    REPLACED,
    ChangedFilesError,
    ConfigurationError,
    FencedError,
    StorageError,
    TableChangedError,
    TurnbackError,
)
from turnback.job.alerts import Hooks, JobWatch
from turnback.job.directory import JobDirectory, JobInfo
from turnback.job.history import AttemptStarted, FilesChanged, History, JobEnded, Restarting
from turnback.job.run import ClaimMode, RunError, RunningJob
from turnback.job.status import JobState, Status, StatusUpdate
from turnback.job.throughput import ThroughputLog
from turnback.plan.plan import Plan, SourcePlan
from turnback.plan.sources import ChangedFilesPolicy, changed_files_text
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import Origin
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import storage_of
from turnback.storage.base import HasLeftovers
from turnback.worker.local_state import StoreOwner, remove_others, stores_of

_PROVEN_S = 60.0
"""An attempt without input that has not failed for so long is taken to run."""
_KEPT = 20


class Restarts:
    """Counts restarts, those of drivers that died among them.

    An attempt that follows a failure is RESTARTING until it has processed something, or has lived
    for a while: a job that fails again and again at the same point never looks as if it ran.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.number = 0
        """How many there were since the job was started."""
        self.state = JobState.CREATED
        self._times: tuple[int, ...] = ()
        self._cause: str | None = None
        self._since_s: float | None = None
        """When the attempt that has to prove itself began to run; None if none has to."""

    def take_over(self, before: Status | None, job_id: str) -> None:
        """Go on where a driver that died has left off."""
        if before is None or before.job_id != job_id or before.state.is_terminal:
            return
        self.number = before.restarts
        self._times = before.restarted_ms
        running = before.state is JobState.RUNNING
        self.count("its driver died" if running or before.cause is None else before.cause)

    def count(self, cause: str) -> StatusUpdate:
        """Count a restart; returns what to write of it."""
        self.number += 1
        self._times = (*self._times, self._clock.now_ms())[-_KEPT:]
        self._cause = cause
        return self.update()

    def update(self) -> StatusUpdate:
        """What is to be written of all restarts so far."""
        return StatusUpdate(restarts=self.number, restarted_ms=self._times, cause=self._cause)

    def begin(self) -> JobState:
        """An attempt is prepared; returns the state of the job."""
        self.state = JobState.RESTARTING if self._cause is not None else JobState.CREATED
        return self.state

    def run(self) -> JobState:
        """An attempt begins to run; returns the state of the job."""
        if self._cause is None:
            self.state = JobState.RUNNING
        else:
            self._since_s = self._clock.monotonic()
        return self.state

    def end(self) -> None:
        """The attempt is over, whether it has proved itself or not."""
        self._since_s = None

    def prove(self, *, has_epoch: bool) -> bool:
        """Whether it is only now clear that the attempt runs: it has an epoch, or goes on well."""
        since = self._since_s
        if since is None or not (has_epoch or self._clock.monotonic() - since >= _PROVEN_S):
            return False
        self._since_s = None
        self._cause = None
        self.state = JobState.RUNNING
        return True


_LOG = logging.getLogger(__name__)
_TABLE_CHANGED = "table-changed"
_NAMED_FILES = 100
_MOVE_FILES = (
    "Write files elsewhere on the same file system, and move them in when they are complete; "
    "write new data to new files"
)


class JobRunner:
    """Runs a job: attempt after attempt, until it ends or the restart strategy gives up.

    An attempt takes a fence, finds what it starts from, commits what earlier attempts have
    promised, and then runs epochs. Any failure ends the attempt, and the restart strategy decides
    whether there is another one. A heartbeat, the service for requests and what asks sources for
    their lag run beside the attempts.
    """

    def __init__(self, engine: Engine, plan: Plan, spec: JobSpec) -> None:
        self._engine = engine
        self._plan = plan
        self.spec = spec
        self._directory = JobDirectory.locate(spec.root, spec.name, dict(spec.storage_options))
        self._context = JobContext(engine, plan, spec, self._directory)
        self._clock = self._context.clock
        self._planner = RestorePlanner(self._context)
        self.requests = RequestService(self._context, self)
        """Serves what is asked of the job."""
        self._heartbeat = Heartbeat(self._directory, self._status_update, spec.run)
        replays = ReplayLimits(self._directory, spec.storage_options, self._clock)
        identities = self._context.identities
        growing_ms = spec.watchdog.growing_lag_ms
        self._changed_files: dict[str, list[str]] = {}
        self._monitor = SourceMonitor(
            *(plan, self, identities, replays, self._clock, growing_ms),
            storage=self._directory.storage,
            on_changed_files=self._on_changed_files,
        )
        self._throughput = ThroughputLog(self._directory.storage, self._clock)
        self._info: JobInfo
        self._history: History | None = None
        self._attempts: set[int] = set()
        self.attempt: Attempt | None = None
        """The attempt that is running, `None` between two of them."""
        self._checkpointed: Positions | None = None
        self._claimed: Snapshot | None = None
        self.origin: Origin | None = None
        """What the job was started from, if it was from another snapshot."""
        self._restarts = Restarts(self._clock)
        self._proving = threading.Lock()
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
        if not self.spec.standby:
            self._directory.require_free()
        elif not self._stand_by():
            return self.report
        self._planner.check()
        storage = self._directory.storage
        if isinstance(storage, HasLeftovers):
            # Half-written files of drivers and workers that were killed.
            storage.leftovers(remove=True)
        self._run_as(self._directory.renew() if self.spec.start.fresh else self._directory.open())
        if self.spec.resumed or self.spec.standby:
            self._restarts.take_over(self._directory.status(), self._info.job_id)
        strategy = self.spec.restart.create()
        same = SameErrors(self.spec.same_error_limit)
        beating = self._heartbeat.beating()
        watching = self._monitor.watching()
        with beating, watching, self._alerting(), self._serving_requests():
            while True:
                cause = self._run_attempt()
                if cause is None:
                    return self._finish()
                if not isinstance(cause, REPLACED) and (fate := self._engine.lost()):
                    # No attempt of this process can work any more, whatever the strategy allows.
                    if self._cancelled.is_set():
                        return self._finish()
                    raise self._fail_without_spark(cause, fate)
                now = round(self._clock.monotonic() * 1000)
                delay = None if isinstance(cause, FINAL) else strategy(now)
                hopeless = same.stop(cause, self.report.epochs)
                if delay is None or hopeless is not None or self._cancelled.is_set():
                    raise self._fail(hopeless or cause)
                self._await_restart(cause, delay)

    def _stand_by(self) -> bool:
        """Wait until the job needs this driver; False if it ends meanwhile, or this was cancelled.

        Raises:
            ConfigurationError: The program says where the job starts: to take over is to resume it.
        """
        run = self.spec.run
        if self.spec.start.fresh or self.spec.start.start_from is not None:
            raise ConfigurationError(
                f"job {self.spec.name!r}: a driver that stands by resumes the job from its newest "
                "checkpoint. Start the job from a snapshot, or afresh, with a driver of its own, "
                "and then those that stand by"
            )

        def on_wait(other: Status) -> None:
            _LOG.info(
                "job %r: standing by for pid %d on %s",
                self.spec.name,
                other.process.pid,
                other.process.host,
            )
            if run is not None:
                self._tell_supervisor(other.job_id)
                run.set_standby(True)

        standby = Standby(self._directory, self.spec.standby_timeout_s, self._clock)
        is_mine = standby.wait(self._cancelled.is_set, on_wait)
        if is_mine and run is not None:
            run.set_standby(False)
        return is_mine

    def cancel(self) -> None:
        """End the job from another thread; its checkpoints stay or go as configured."""
        self._cancelled.set()
        if self.attempt is not None:
            self.attempt.stop()

    def _run_as(self, info: JobInfo) -> None:
        """Run the job under this identity from now on."""
        self._info = info
        self.report.job_id = info.job_id
        self._throughput.begin(info.job_id)
        self._tell_supervisor(info.job_id)
        remove_others(self._store_owner(), self.spec.backend, self.spec.local_dir)

    def _tell_supervisor(self, job_id: str) -> None:
        if self.spec.run is not None:
            self.spec.run.set_job(
                RunningJob(
                    name=self.spec.name,
                    job_id=job_id,
                    root=self.spec.root,
                    directory=self._directory.storage.uri,
                    restart=self.spec.restart.to_configuration(),
                    storage_options=self.spec.storage_options,
                    alerts=self.spec.alerts.to_configuration(),
                )
            )

    # -- one attempt

    def _run_attempt(self) -> BaseException | None:
        """Run one attempt; returns why it failed, or None."""
        self._history = None
        sinks: JobSinks | None = None
        try:
            log = CheckpointLog(self._directory.storage)
            supervisor = self.spec.run.supervisor() if self.spec.run else None
            limits = watch_limits(self.spec)
            update = replace(self._restarts.update(), supervisor=supervisor, limits=limits)
            self._write_status(self._restarts.begin(), update)
            fence = self._fence(log)
            self.requests.took_over(fence.attempt)
            history = self._history = History(self._directory.storage, fence.attempt, self._clock)
            first = not self.report.attempts
            if first:
                check_executors(self._engine, self._context.storage, fence)
            matched = self._planner.find(log, self._info.job_id, self._attempts, first=first)
            sinks = JobSinks(self._plan, fence, self._directory, self.spec.storage_options)
            commit_promised(log, sinks, matched)
            if matched is not None and matched.own is not None and matched.upgrade:
                self.requests.save_before_upgrade(matched.own)
            self._record_start(log, matched, told=first and self.spec.start.start_from is not None)
            record_left_out(log, matched)
            # Whoever takes over after this reads what was given up, and before it is rolled back.
            log.check_fence()
            roll_back_leftovers(sinks)
            if self.spec.rebuild_sink is not None:
                sinks.roll_back_dropped(self.spec.rebuild_sink)
            self._begin(fence.attempt, matched)
            manifest = self._planner.manifest(matched, fence) if matched else None
            redriven = redriven_at_start(matched, fence)
            is_over = matched is not None and matched.is_over
            origin = matched.logged if matched else None
            context = AttemptContext(
                fence, log, manifest, sinks, history, redriven, is_over, origin
            )
            self.attempt = Attempt(
                self._context, context, self._epoch_done, lambda: self._running(fence.attempt)
            )
            self.requests.attempt_begins(self.attempt)
            if self._cancelled.is_set():
                self.attempt.stop()
            self.attempt.run()
        except Exception as e:  # noqa: BLE001 - whatever it is, the restart strategy decides
            return e
        finally:
            self._count_attempt()
            if sinks is not None:
                sinks.close()
        return None

    def _fence(self, log: CheckpointLog) -> Fence:
        """Take a fence of the job as it is now.

        Another driver may have started it afresh since this one began. That one is stopped by the
        fence, so this one goes on in its place: if both ended, nobody would run the job.
        """
        while True:
            fence = log.fence(
                job=self._info.job,
                job_id=self._info.job_id,
                created_ms=self._clock.now_ms(),
                host=socket.gethostname(),
                pid=getpid(),
                nonce=self._nonce,
                after=self._fenced,
            )
            self._fenced = fence.attempt
            self._attempts.add(fence.attempt)
            info = self._directory.info()
            if info is None:
                raise FencedError(f"job {self.spec.name!r} was deleted. Stop this driver")
            if info.job_id == self._info.job_id:
                return fence
            _LOG.warning(
                "job %r was started fresh in the meantime and continues as such", self.spec.name
            )
            self._run_as(info)

    def _record_start(self, log: CheckpointLog, matched: RestorePlan | None, *, told: bool) -> None:
        """Make durable what an attempt starts from: other starts go on from there as well."""
        chosen = matched.logged if matched else None
        snapshot = matched.snapshot.origin.uri if matched and not chosen else None
        goes_on = matched is not None and matched.goes_on
        abandoned = abandoned_output(log, chosen)
        if told:
            log.record_start(StartPoint(checkpoint=chosen, snapshot=snapshot, goes_on=goes_on))
        self._directory.record_attempt(
            log.own_fence.attempt,
            checkpoint=chosen.number if chosen else None,
            snapshot=snapshot,
            abandoned=abandoned,
            started=self.spec.started,
            goes_on=goes_on,
            commits_every_epoch=self.spec.settings.commits_every_epoch,
            start_id=self.spec.start_id,
        )

    def _begin(self, attempt: int, matched: RestorePlan | None) -> None:
        """Tell what an attempt starts from, everywhere it is looked for."""
        snapshot = matched.snapshot if matched else None
        own = matched.own if matched else None
        if snapshot is not None and own is None:
            self.origin = snapshot.origin
            if self.spec.start.claim_mode is ClaimMode.CLAIM and snapshot.metadata is not None:
                self._claimed = snapshot
        name, epoch = (snapshot.name, snapshot.epoch) if snapshot else (None, None)
        _LOG.info("job %r: attempt %d starts from %s", self.spec.name, attempt, name or "nothing")
        self._record(AttemptStarted(name, epoch))
        if not self.report.attempts:
            self.report.restored_from = name
        self.report.attempts += 1
        self._directory.record_program(describe(self._plan, self.spec, attempt))
        update = StatusUpdate(
            attempt=attempt,
            epoch=epoch,
            checkpoint=own.number if own else None,
            log=str(self.spec.run.log) if self.spec.run else None,
            spark_ui=self._engine.web_ui(),
            application=self._engine.application(),
        )
        self._write_status(self._restarts.state, update)

    def _running(self, attempt: int) -> None:
        self._write_status(self._restarts.run(), StatusUpdate(restore=None))
        if self.spec.run is not None:
            self.spec.run.set_running(attempt)

    def _epoch_done(self, stats: EpochStats) -> None:
        if not self.report.epochs and self.spec.run is not None:
            self.spec.run.set_epoch(stats.number)
        self.report.epochs.append(stats)
        self.report.openings.update(stats.openings)
        self._throughput.count(stats.records, stats.written, stats.seconds)
        self._prove(has_epoch=True)
        if self.attempt is not None and self.attempt.coordinator.completed:
            self._drop_claimed()

    def _prove(self, *, has_epoch: bool = False) -> None:
        """Say that the job runs, once an attempt after a failure has shown that it does."""
        with self._proving:  # or the attempt may end before that is written
            if self._restarts.prove(has_epoch=has_epoch):
                self._write_status(JobState.RUNNING)

    def _drop_claimed(self) -> None:
        """Delete the savepoint that the job was given, now that it has a checkpoint of its own."""
        claimed = self._claimed
        self._claimed = None
        if claimed is not None:
            try:
                # A driver that has taken over may have been told to start from it.
                fence_guard = FenceGuard(self._directory)
                fence_guard.attempt = self._fenced
                fence_guard.check()
                SavepointDirectory(storage_of(claimed.storage)).delete()
            except TurnbackError as e:
                _LOG.warning("the claimed savepoint %s was not deleted: %s", claimed.name, e)

    def _count_attempt(self) -> None:
        with self._proving:
            self._restarts.end()
        if self.attempt is not None:
            self._last_update = self._status_update()
            self._throughput.write()
            coordinator = self.attempt.coordinator
            self.report.checkpoints += coordinator.completed
            self._failed_checkpoints += coordinator.failed
            if coordinator.completed:
                self._drop_claimed()
            if coordinator.last is not None:
                self.report.last_checkpoint = coordinator.last.number
                self._checkpointed = coordinator.last.sources
            self.attempt = None

    # -- between and after attempts

    def _await_restart(self, cause: BaseException, delay_ms: int) -> None:
        why = describe_error(cause)
        _LOG.warning("job %r restarts in %d ms: %s", self.spec.name, delay_ms, why)
        self._record(Restarting(why, delay_ms))
        self._write_status(JobState.RESTARTING, self._restarts.count(why))
        self._cancelled.wait(delay_ms / 1000)

    def _finish(self) -> JobReport:
        state = JobState.CANCELED if self._cancelled.is_set() else JobState.FINISHED
        _LOG.info("job %r is %s", self.spec.name, state.value)
        self._record(JobEnded(state.value))
        self._write_status(state, self._last_update)
        # The files are the state. What is left on this machine is a cache nobody uses now.
        for stores in stores_of(self._store_owner(), self.spec.backend, self.spec.local_dir):
            stores.discard("the job has ended")
        return self.report

    def _store_owner(self) -> StoreOwner:
        directory = self._directory.storage.uri
        return StoreOwner(job=self._info.job, job_id=self._info.job_id, directory=directory)

    def _fail(self, cause: BaseException) -> BaseException:
        if isinstance(cause, TableChangedError):
            saved = self.requests.save_before_failure(_TABLE_CHANGED)
            if saved is not None:
                cause = TableChangedError(
                    f"{cause}. Savepoint {saved} matches the contents of the tables"
                )
        why = describe_error(cause)
        self._record(JobEnded(JobState.FAILED.value, why))
        if not isinstance(cause, REPLACED):
            self._write_status(JobState.FAILED, replace(self._last_update, cause=why))
        return final_error(self.spec.name, self._restarts.number, cause)

    def _fail_without_spark(self, cause: BaseException, fate: str) -> BaseException:
        """End this driver, but not its job: the next driver goes on with it."""
        run = self.spec.run
        error = lost_error(self.spec.name, fate, cause, supervised=run is not None)
        try:
            if run is not None:
                # The program may catch the error and end well; the job has not.
                run.set_error(RunError.of(error))
                self._record(Restarting(str(error), 0))
            self._write_status(JobState.RESTARTING, StatusUpdate(cause=str(error)))
        except StorageError as e:
            _LOG.warning("job %r: cannot record that its driver ends: %s", self.spec.name, e)
        return error

    def _record(self, event: AttemptStarted | FilesChanged | Restarting | JobEnded) -> None:
        if self._history is not None:
            self._history.record(event)

    def _write_status(self, state: JobState, update: StatusUpdate | None = None) -> None:
        self._directory.write_status(state, self._info.job_id, update)

    @contextmanager
    def _serving_requests(self) -> Iterator[None]:
        self.requests.start(self._info.created_ms)
        try:
            yield
        finally:
            self.requests.close(give_up=self._cancelled.is_set())

    def _alerting(self) -> AbstractContextManager[None]:
        """Watch the job, unless its supervisor does."""
        if self.spec.run is not None or not self.spec.alerts.enabled:
            return nullcontext()
        return JobWatch(self._directory, Hooks(self.spec.alerts), self._clock).watching()

    def _status_update(self) -> StatusUpdate:
        """What has changed in the status since the last one.

        Called now and then, so it also writes what nothing else would: the last events of a job
        that has nothing to do.
        """
        if self._history is not None:
            self._history.flush_if_due()
        self._prove()
        attempt = self.attempt
        restore = self._context.restoring.progress()
        epoch = self.report.epochs[-1].number if self.report.epochs else UNSET
        if attempt is None:
            return StatusUpdate(epoch=epoch, restore=restore)
        last = attempt.coordinator.last
        metrics = attempt.metrics(self.report.checkpoints, self._failed_checkpoints)
        metrics = replace(metrics, lag=self._monitor.lags())
        self._throughput.tick(total_lag(metrics.lag), attempt.epoch_s())
        number = last.number if last else UNSET
        changed = dict(self._changed_files).items()
        notices = tuple(changed_files_text(uid, files) for uid, files in changed)
        return StatusUpdate(
            epoch=epoch, checkpoint=number, metrics=metrics, restore=restore, notices=notices
        )

    # -- for the monitor of sources

    def _on_changed_files(self, source: SourcePlan, files: list[str]) -> None:
        known = self._changed_files.get(source.uid, [])
        self._changed_files[source.uid] = [*known, *files]
        self._record(FilesChanged(source.uid, len(files), tuple(files[:_NAMED_FILES])))
        text = changed_files_text(source.uid, files)
        assert source.files is not None, "they are looked at"
        if source.files.policy is not ChangedFilesPolicy.FAIL:
            _LOG.warning("job %r: %s. %s", self.spec.name, text, _MOVE_FILES)
            return
        attempt = self.attempt
        if attempt is not None:
            attempt.fail(
                ChangedFilesError(
                    f"job {self.spec.name!r}: {text}. {_MOVE_FILES}. To continue without the new "
                    'data, use on_changed_files="warn"'
                )
            )

    def confirmed(self) -> Positions | None:
        attempt = self.attempt
        return attempt.positions() if attempt is not None else None

    def checkpointed(self) -> Positions | None:
        attempt = self.attempt
        newest = attempt.coordinator.last if attempt is not None else None
        return newest.sources if newest is not None else self._checkpointed
