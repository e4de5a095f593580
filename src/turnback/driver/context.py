"""A driver's job and attempts: what they work with, and whether the job is still its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest, RedriveProgress
from turnback.checkpoint.retention import PinnedFiles
from turnback.core.clock import Clock, SystemClock
from turnback.core.units import format_age
from turnback.driver.engine import Engine
from turnback.driver.job import JobSpec
from turnback.driver.sinks import JobSinks
from turnback.driver.source_monitor import SourceIdentities
from turnback.errors import FencedError, StorageError
from turnback.job.directory import HEARTBEAT_S, JobDirectory
from turnback.job.history import History
from turnback.job.run import RunDirectory
from turnback.job.status import RestoreProgress, StatusUpdate
from turnback.plan.plan import Plan
from turnback.state.files import StorageRef
from turnback.storage.base import Storage
from turnback.worker.local_state import DIRECTORY, REPORT_S, WHOLE

_LOG = logging.getLogger(__name__)
_LOG_S = 10.0


@dataclass
class _Restoring:
    """One thing that is being restored by many tasks; the weight of a task is its entries."""

    what: str
    attempt: int
    weights: Mapping[str, float]
    since_ms: int
    since_s: float
    newest: RestoreProgress | None = None
    logged_s: float = 0.0


class RestoreMeter:
    """Adds up what tasks report while they restore, see `turnback.worker.local_state`. Thread-safe.

    What is restored within moments is never shown.
    """

    def __init__(self, job: str, storage: Storage, clock: Clock) -> None:
        self._job = job
        self._storage = storage
        self._clock = clock
        self._lock = threading.Lock()
        self._current: _Restoring | None = None

    def begin(self, what: str, attempt: int, weights: Mapping[str, float]) -> None:
        """Tasks of these names begin to restore something."""
        with self._lock:
            now_ms = self._clock.now_ms()
            now_s = self._clock.monotonic()
            self._current = _Restoring(what, attempt, dict(weights), now_ms, now_s)

    def end(self) -> None:
        """All is restored, or given up."""
        with self._lock:
            current = self._current
            self._current = None
            if current is None or self._clock.monotonic() - current.since_s < REPORT_S:
                return  # too quick for any report
            try:
                for path in self._storage.list(DIRECTORY):
                    self._storage.delete(path)
            except StorageError as error:
                _LOG.warning("%s was not cleared, which is harmless: %s", DIRECTORY, error)

    def progress(self) -> RestoreProgress | None:
        """How far it is; None if nothing is restored, or nothing is known of it yet."""
        with self._lock:
            current = self._current
            if current is None or self._clock.monotonic() - current.since_s < REPORT_S:
                return None
            try:
                sizes = self._storage.sizes(f"{DIRECTORY}/{current.attempt}")
            except StorageError:
                return current.newest
            reported = {path.rpartition("/")[2]: size for path, size in sizes.items()}
            if reported.keys() & current.weights.keys():
                current.newest = self._progress(current, reported)
                self._log(current, current.newest)
            return current.newest

    def _progress(self, current: _Restoring, reported: Mapping[str, int]) -> RestoreProgress:
        total = sum(current.weights.values())
        entries = sum(
            weight * min(reported.get(task, 0), WHOLE) / WHOLE
            for task, weight in current.weights.items()
        )
        done = entries / total if total else 0.0
        now_ms = self._clock.now_ms()
        elapsed_s = self._clock.monotonic() - current.since_s
        before = current.newest
        moved = before is None or done > before.done
        return RestoreProgress(
            what=current.what,
            done=done,
            entries=round(total),
            since_ms=current.since_ms,
            moved_ms=now_ms if moved or before is None else before.moved_ms,
            left_s=elapsed_s * (1 - done) / done if done else None,
        )

    def _log(self, current: _Restoring, progress: RestoreProgress) -> None:
        now_s = self._clock.monotonic()
        if current.logged_s and now_s - current.logged_s < _LOG_S:
            return
        current.logged_s = now_s
        left = ""
        if progress.left_s is not None:
            left = f", about {format_age(round(progress.left_s * 1000))} left"
        _LOG.info("job %r: %s: %.0f %%%s", self._job, progress.what, 100 * progress.done, left)


@dataclass(frozen=True)
class JobContext:
    """What holds for all attempts of a job in this driver."""

    engine: Engine
    plan: Plan
    spec: JobSpec
    directory: JobDirectory
    clock: Clock = field(default_factory=SystemClock)
    pins: PinnedFiles = field(default_factory=PinnedFiles)
    """Files that savepoints are being written from."""
    identities: SourceIdentities = field(default_factory=SourceIdentities)

    @cached_property
    def restoring(self) -> RestoreMeter:
        """How far the newest attempt is with restoring state."""
        return RestoreMeter(self.spec.name, self.directory.storage, self.clock)

    @property
    def storage(self) -> StorageRef:
        spec = self.spec
        return StorageRef(self.directory.storage.uri, dict(spec.storage_options), spec.inline)


@dataclass(frozen=True)
class AttemptContext:
    """What one attempt of a job works with: its fence, and a log that appends with it."""

    fence: Fence
    log: CheckpointLog
    restore_point: Manifest | None
    """What it starts from; None to start empty."""
    sinks: JobSinks
    """The program's sinks; transactions of older attempts are settled."""
    history: History
    redriven: RedriveProgress
    """How far it is with dead letters that are fed back."""
    is_over: bool = False
    """Whether the job has come to its end with what it starts from: there is nothing to run."""
    origin: Manifest | None = None
    """What the restore point was made of, if that is in the job's own log."""

    def inherited(self) -> set[str]:
        """The files that this attempt starts from, and any other that starts from the same."""
        manifests = (self.restore_point, self.origin)
        return {path for manifest in manifests if manifest for path in manifest.files()}


class FenceGuard:
    """Checks that no other driver has taken the job, where no fence protects a write by itself."""

    def __init__(self, directory: JobDirectory) -> None:
        self._name = directory.name
        self._log = CheckpointLog(directory.storage)
        self.attempt: int | None = None
        """The newest attempt whose fence this driver has taken."""

    def check(self) -> int:
        """Return the attempt of this driver; `FencedError` if a newer one has taken over."""
        newest = self._log.newest()
        if self.attempt is None or newest is None:
            raise FencedError(f"job {self._name!r}: this driver has not taken over the job yet")
        if newest.attempt > self.attempt:
            raise FencedError(
                f"job {self._name!r}: attempt {newest.attempt} has replaced attempt "
                f"{self.attempt} of this driver. Stop this driver"
            )
        return self.attempt


class Heartbeat:
    """Updates the status regularly, which shows that the driver is alive, and its supervisor."""

    def __init__(
        self, directory: JobDirectory, update: Callable[[], StatusUpdate], run: RunDirectory | None
    ) -> None:
        self._directory = directory
        self._update = update
        self._run = run

    @contextmanager
    def beating(self) -> Iterator[None]:
        done = threading.Event()

        def beat() -> None:
            while not done.wait(HEARTBEAT_S):
                try:
                    supervisor = None if self._run is None else self._run.supervisor()
                    self._directory.heartbeat(replace(self._update(), supervisor=supervisor))
                except Exception as e:  # noqa: BLE001 - a dead thread would look like a dead driver
                    _LOG.warning("cannot write the status, retrying: %s", e)

        thread = threading.Thread(target=beat, name="turnback-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
