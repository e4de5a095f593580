from __future__ import annotations

import logging
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import getpid
from typing import Any

from pyspark.sql import SparkSession

from turnback.coordinator import (
    AttemptStarted,
    CheckpointLog,
    Fence,
    History,
    Holds,
    JobDirectory,
    JobEnded,
    JobInfo,
    JobState,
    Request,
    RequestKind,
    Restarting,
    RunningJob,
    resume_point,
)
from turnback.core import Clock, SystemClock
from turnback.core.errors import FencedError, JobInUseError, TurnbackError
from turnback.core.faults import reach
from turnback.planner import Plan
from turnback.runtime.describe import describe
from turnback.runtime.heartbeat import Heartbeat
from turnback.runtime.job import ClaimMode, EpochStats, JobReport, JobSpec
from turnback.runtime.localstate import local_root
from turnback.runtime.locate import locate
from turnback.runtime.snapshot import Snapshot
from turnback.runtime.spark.attempt import Attempt
from turnback.runtime.spark.service import Service
from turnback.runtime.spark.starter import Starter
from turnback.runtime.storageref import StorageRef, storage_of
from turnback.runtime.verdict import FINAL, final_error, told
from turnback.savepoint import Origin, SavepointDirectory
from turnback.storage import LocalStorage

_LOG = logging.getLogger(__name__)


class JobRunner:
    """Runs a job: attempt after attempt, as the restart strategy says."""

    def __init__(
        self, spark: SparkSession, plan: Plan, spec: JobSpec, clock: Clock | None = None
    ) -> None:
        self._spark = spark
        self._plan = plan
        self._spec = spec
        self._clock = clock or SystemClock()
        self._directory = JobDirectory.locate(
            spec.root, spec.name, dict(spec.storage_options), self._clock
        )
        self._storage = StorageRef(
            self._directory.storage.uri, dict(spec.storage_options), spec.inline
        )
        self._starter = Starter(spark, plan, spec, self._storage, self._clock)
        self._holds = Holds()
        self._service = Service(
            spark, self._directory, self._storage, spec.savepoints, self, self._clock
        )
        self._heartbeat = Heartbeat(self._directory, self._vitals, spec.run)
        self._attempt: Attempt | None = None
        self._claimed: Snapshot | None = None
        self.origin: Origin | None = None
        self._restarts = 0
        self._failed_checkpoints = 0
        self._last_words: dict[str, Any] = {}
        self._fenced: int | None = None
        self._nonce = uuid.uuid4().hex
        self._cancelled = threading.Event()
        self.report = JobReport(spec.name, job_dir=self._directory.storage.uri)
        self.report.warnings = plan.warnings

    def run(self) -> JobReport:
        """Run until the input ends, the job is cancelled, or no restart is left.

        Raises:
            JobFailedError: It failed for good; the cause is chained and told.
        """
        self._directory.require_free()
        storage = self._directory.storage
        if isinstance(storage, LocalStorage):
            storage.remove_leftovers()  # half-written files of drivers and workers that were killed
        info = self._directory.renew() if self._spec.fresh else self._directory.open()
        self.report.job_id = info.job_id
        self._introduce(info)
        strategy = self._spec.restart.create()
        with self._heartbeat.beating(), self._served(info):
            while True:
                history, cause = self._live(info)
                if cause is None:
                    return self._ended(info, history)
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

    def ask(self, kind: RequestKind, **what: Any) -> Request:
        """Ask the running job for something, as `Requests.submit` does."""
        what["type"] = what.get("type") or self._spec.savepoints.format
        return self._service.submit(kind, **what)

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

    # -- one attempt

    def _live(self, info: JobInfo) -> tuple[History | None, BaseException | None]:
        """Run one attempt; returns why it failed, or None."""
        history = None
        try:
            log = CheckpointLog(self._directory.storage)
            self._say(JobState.CREATED, info)
            fence = self._fence(log, info)
            self._service.took_over(fence.attempt)
            reach("after-fence")
            history = History(self._directory.storage, fence.attempt, self._clock)
            origin, known = self._origin(log)
            matched = self._starter.match(origin, fence, known=known) if origin else None
            if matched is not None and matched.own is not None and matched.upgrade:
                self._service.save_before_upgrade(matched.own)
            self._begin(info, fence, origin, history)
            manifest = self._starter.manifest(matched, fence) if matched else None
            self._attempt = Attempt(
                self._spark,
                self._plan,
                self._spec,
                self._directory,
                log,
                fence,
                manifest,
                history,
                self._clock,
                self._epoch_done,
                lambda: self._is_running(info, fence.attempt),
                self._holds,
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
        return fence

    def _origin(self, log: CheckpointLog) -> tuple[Snapshot | None, bool]:
        """What to start from: what the user chose, the first time; then the newest there is.

        Returns:
            The snapshot, and whether it is known to fit because this very program has taken it.
        """
        first = not self.report.attempts
        if self._spec.start_from is not None and first:
            return locate(self._spec.start_from, self._storage), False
        point = resume_point(log, self._directory)
        if point is None:
            return None, False
        if point.manifest is not None:
            return Snapshot.of_manifest(point.manifest, self._storage), not first
        assert point.snapshot is not None
        return locate(point.snapshot, self._storage), False

    def _begin(
        self, info: JobInfo, fence: Fence, origin: Snapshot | None, history: History
    ) -> None:
        own = origin.manifest if origin and origin.job_id == info.job_id else None
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
        self._say(
            JobState.CREATED,
            info,
            attempt=fence.attempt,
            epoch=origin.epoch if origin else None,
            checkpoint=own.number if own else None,
            log=str(self._spec.run.log) if self._spec.run else None,
        )

    def _is_running(self, info: JobInfo, attempt: int) -> None:
        self._say(JobState.RUNNING, info)
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
        self._say(JobState.RESTARTING, info, restarts=self._restarts, cause=why)
        self._cancelled.wait(delay_ms / 1000)

    def _ended(self, info: JobInfo, history: History | None) -> JobReport:
        state = JobState.CANCELED if self._cancelled.is_set() else JobState.FINISHED
        _LOG.info("job %r is %s", info.job, state.value)
        if history is not None:
            history.record(JobEnded(state.value))
        self._say(state, info, **self._last_words)
        # The files are the state. What is left on this machine is a cache nobody uses now.
        root = local_root(self._spec.backend, self._spec.local_dir, info.job_id)
        shutil.rmtree(root, ignore_errors=True)
        return self.report

    def _failed(
        self, info: JobInfo, history: History | None, cause: BaseException
    ) -> BaseException:
        why = told(cause)
        if history is not None:
            history.record(JobEnded(JobState.FAILED.value, why))
        if not isinstance(cause, FencedError | JobInUseError):
            self._say(JobState.FAILED, info, cause=why, **self._last_words)
        return final_error(info.job, self._restarts, cause)

    def _say(self, state: JobState, info: JobInfo, **fields: object) -> None:
        self._directory.say(state, info.job_id, **fields)

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

    def _vitals(self) -> dict[str, Any]:
        """What the status says of the running attempt."""
        attempt, found = self._attempt, dict[str, Any]()
        if self.report.epochs:
            found["epoch"] = self.report.epochs[-1].number
        if attempt is None:
            return found
        last = attempt.coordinator.last
        if last is not None:
            found["checkpoint"] = last.number
        found["metrics"] = attempt.metrics(self.report.checkpoints, self._failed_checkpoints)
        return found

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1000)
