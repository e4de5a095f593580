"""A driver without Spark: its attempts number epochs, and its sink is a list of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from turnback import RestartStrategies
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest
from turnback.checkpoint.retention import PinnedCheckpoint, PinnedFiles
from turnback.config.checkpointing import CheckpointSettings, SavepointFormat, SavepointSettings
from turnback.driver import service as service_module
from turnback.driver.context import JobContext
from turnback.driver.job import JobSpec
from turnback.driver.service import RequestService
from turnback.errors import CheckpointError, FencedError
from turnback.job.directory import JobDirectory
from turnback.job.request import Request, RequestKind, RequestProgress, RequestSpec, RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobState, StatusUpdate
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavepointMetadata
from turnback.storage.open import MemoryStorage
from verification import verify_savepoint

_NAMES = itertools.count()
PATIENCE_S = 30.0

STEPS = (
    "before-decision",
    "after-decision",
    "during-export",
    "after-savepoint",
    "after-record",
    "before-answer",
)
"""Where a driver can be stopped while it serves a request that ends the job."""


class World:
    """The job directory, the savepoints and the output, which outlive drivers."""

    def __init__(self) -> None:
        name = f"service-{next(_NAMES)}"
        self.storage = MemoryStorage(name)
        self.saved = f"memory://{name}-saved"
        self.requests = Requests(self.storage)
        self.committed: list[int] = []
        self.drivers: list[Driver] = []
        JobDirectory(self.storage, "job").open()

    def driver(self, *, resumed: bool = False, **how: Any) -> Driver:
        """Start a driver."""
        driver = Driver(self, resumed=resumed, **how)
        self.drivers.append(driver)
        driver.thread.start()
        return driver

    def state(self) -> JobState | None:
        status = JobDirectory(self.storage, "job").status()
        return status.state if status is not None else None

    def ask(self, kind: RequestKind, *, savepoint: bool = False) -> str:
        return self.requests.submit(RequestSpec(kind, savepoint=savepoint)).id

    def result(self, id: str) -> Any:
        return eventually(lambda: self.requests.result(id))

    def savepoint(self, id: str) -> SavepointMetadata:
        return SavepointDirectory.locate(f"{self.saved}/savepoint-job-{id}").load()

    def newest(self) -> Manifest:
        manifest = CheckpointLog(self.storage).latest()
        assert manifest is not None
        return manifest

    def assert_ended_at(self, id: str) -> None:
        """The job has ended where its savepoint says, and nothing was written twice."""
        result = self.result(id)
        assert (result.state, result.error) == (RequestState.COMPLETED, None)
        metadata = self.savepoint(id)
        assert (result.path, result.checkpoint) == (
            f"{self.saved}/savepoint-job-{id}",
            metadata.checkpoint,
        )
        time.sleep(0.1)  # whatever still ran would commit more
        assert self.committed == list(range(1, metadata.epoch + 1))
        assert self.newest().epoch == metadata.epoch
        assert verify_savepoint(result.path) == []

    def close(self) -> None:
        for driver in self.drivers:
            driver.killed.set()


class Driver:
    """One process: attempt after attempt, as `JobRunner` runs them, with a real service."""

    def __init__(
        self,
        world: World,
        *,
        resumed: bool = False,
        stop_at: str | None = None,
        kill_at: str | None = None,
        restarts: int = 100,
    ) -> None:
        self.world = world
        self.directory = JobDirectory(world.storage, "job")
        self.attempt: Any = None
        self.origin = None
        self.attempts: list[FakeAttempt] = []
        self.error: BaseException | None = None
        self.cancelled, self.killed = threading.Event(), threading.Event()
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self._restarts = restarts
        self._stop_at, self._kill_at = stop_at, kill_at
        self.on_attempt: Callable[[FakeAttempt], None] = lambda attempt: None
        supervised: Any = object()
        spec = JobSpec(
            "job",
            "memory://",
            CheckpointSettings(),
            RestartStrategies.no_restart(),
            "hashmap",
            savepoints=SavepointSettings(directory=world.saved),
            run=supervised,
            resumed=resumed,
        )
        engine: Any = SimpleNamespace(lost=lambda: None)
        plan: Any = None
        self.service = RequestService(JobContext(engine, plan, spec, self.directory), self)
        self.export = FakeExporter(self)
        savepoints: Any = self.service._savepoints
        savepoints._exporter = self.export
        steps = self.step
        requests: Any = self.service._shutdown._requests
        self._wrap(requests, "record_stop_point", "before-decision", "after-decision")
        self._wrap(savepoints._catalog, "add", "after-savepoint", "after-record")
        self.export.before = lambda: steps("during-export")
        self.thread = threading.Thread(target=self._run, daemon=True)

    def cancel(self) -> None:
        self.cancelled.set()
        if self.attempt is not None:
            self.attempt.stop()

    def step(self, name: str) -> None:
        """Come to a point at which the driver may be stopped or killed."""
        self._check_alive()
        if name == self._kill_at:
            self.killed.set()
            self.stopped.set()
            threading.Event().wait()  # a dead thread does nothing any more
        if name == self._stop_at:
            self._stop_at = None
            self.stopped.set()
            assert self.go_on.wait(PATIENCE_S)

    def _check_alive(self) -> None:
        if self.killed.is_set():
            threading.Event().wait()

    def _wrap(self, of: Any, method: str, before: str, after: str) -> None:
        real = getattr(of, method)

        def wrapped(*args: Any) -> Any:
            self.step(before)
            result = real(*args)
            self.step(after)
            return result

        setattr(of, method, wrapped)

    def _run(self) -> None:
        info = self.directory.open()
        self.service.start(0)
        give_up = False
        try:
            while True:
                cause = self._live(info.job_id)
                self._check_alive()
                give_up = self.cancelled.is_set()
                if cause is None:
                    state = JobState.CANCELED if give_up else JobState.FINISHED
                    self.directory.write_status(
                        state, info.job_id, StatusUpdate(attempt=self.attempts[-1].number)
                    )
                    break
                self._restarts -= 1
                if isinstance(cause, FencedError) or self._restarts < 0:
                    self.error = cause
                    if not isinstance(cause, FencedError):
                        self.directory.write_status(JobState.FAILED, info.job_id)
                    break
        finally:
            self.attempt = None
            self.step("before-answer")
            self.service.close(give_up=give_up)

    def _live(self, job_id: str) -> BaseException | None:
        log = CheckpointLog(self.world.storage)
        try:
            self.directory.write_status(JobState.CREATED, job_id)
            fence = log.fence(
                job="job", job_id=job_id, created_ms=0, host="h", pid=1, nonce=f"{id(self)}"
            )
            self.service.took_over(fence.attempt)
            attempt = FakeAttempt(self, log, fence, log.latest())
            self.attempts.append(attempt)
            self.attempt = attempt
            self.on_attempt(attempt)
            self.service.attempt_begins(attempt)
            if self.cancelled.is_set():
                attempt.stop()
            self.directory.write_status(
                JobState.RUNNING, job_id, StatusUpdate(attempt=fence.attempt)
            )
            attempt.run()
        except Exception as e:  # noqa: BLE001 - as in the real runner
            return e
        finally:
            self.attempt = None
        return None


class FakeAttempt:
    """Runs an epoch every few milliseconds, and takes a checkpoint after every third."""

    def __init__(
        self, driver: Driver, log: CheckpointLog, fence: Fence, start: Manifest | None
    ) -> None:
        self.driver, self.number = driver, fence.attempt
        self.coordinator = SimpleNamespace(failure=None)
        self.is_running = False
        self.epoch = start.epoch if start is not None else 0
        self._log, self._fence, self._pins = log, fence, PinnedFiles()
        self._last: Manifest | None = None
        self._gate, self._wake, self._taking = threading.Lock(), threading.Event(), threading.Lock()
        self._stopping = False

    def run(self) -> None:
        self.is_running = True
        try:
            while not self._wake.wait(0.002):
                if not self._gate.acquire(timeout=0.01):
                    continue
                with ExitStack() as stack:
                    stack.callback(self._gate.release)
                    self.driver._check_alive()
                    if self._wake.is_set():
                        break
                    self.epoch += 1
                    if self.epoch % 3 == 0:
                        self._checkpoint()
            if self.coordinator.failure is not None:
                raise self.coordinator.failure
            if not self._stopping:
                self._checkpoint()
        finally:
            self.is_running = False

    def fail(self, error: Exception) -> None:
        self.coordinator.failure = error
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def finish(self) -> None:
        self._wake.set()

    def pause(self) -> None:
        self._gate.acquire()

    def resume(self) -> None:
        self._gate.release()

    def hold(self, kind: str) -> Future[PinnedCheckpoint]:
        future: Future[PinnedCheckpoint] = Future()
        try:
            if not self.is_running or self.coordinator.failure is not None:
                raise CheckpointError("job 'job' has ended")
            future.set_result(PinnedCheckpoint(self._checkpoint(), self._pins))
        except Exception as e:  # noqa: BLE001 - raised by whoever waits
            future.set_exception(e)
        return future

    def _checkpoint(self) -> Manifest:
        with self._taking:
            if self._last is not None and self._last.epoch == self.epoch:
                return self._last
            manifest = Manifest(
                job="job",
                job_id=self._fence.job_id,
                number=0,
                attempt=self.number,
                epoch=self.epoch,
                created_ms=0,
                trigger="periodic",
                parent=None,
                max_parallelism=128,
                sources={},
                state=(),
                schemas=(),
                operators=(),
                transactions={},
                watermarks={},
            )
            self._last = self._log.append(manifest)[-1]
            committed = self.driver.world.committed
            committed.extend(range(len(committed) + 1, self.epoch + 1))
            return self._last


class FakeExporter:
    """Makes savepoints without files."""

    def __init__(self, driver: Driver) -> None:
        self.before: Callable[[], None] = lambda: None
        self.error: Exception | None = None
        self.exported: list[int] = []

    def stop(self) -> None:
        pass

    def export(
        self,
        request: Request,
        manifest: Manifest,
        origin: Any,
        directory: Any,
        created_ms: int,
        on_progress: Any,
    ) -> SavepointMetadata:
        self.before()
        if self.error is not None:
            raise self.error
        self.exported.append(manifest.number)
        on_progress(RequestProgress(1, 1, 0, created_ms))
        return SavepointMetadata(
            id=request.id,
            turnback_version="0",
            type=SavepointFormat.CANONICAL,
            job="job",
            job_id=manifest.job_id,
            attempt=manifest.attempt,
            checkpoint=manifest.number,
            epoch=manifest.epoch,
            created_ms=created_ms,
            trigger="test",
            label=request.label,
            max_parallelism=128,
            sources={},
            operators=(),
            states=(),
            watermarks={},
        )


def eventually(what: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.005)
    return found


def hurry(monkeypatch: Any) -> None:
    """Let services look for requests all the time."""
    monkeypatch.setattr(service_module, "_POLL_S", 0.01)
    monkeypatch.setattr(service_module, "_WAIT_S", 0.005)
