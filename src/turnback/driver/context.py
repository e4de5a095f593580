"""A driver's job and attempts: what they work with, and whether the job is still its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest
from turnback.checkpoint.redriven import Redriven
from turnback.checkpoint.retention import PinnedFiles
from turnback.core.clock import Clock, SystemClock
from turnback.core.errors import FencedError
from turnback.driver.engine import Engine
from turnback.driver.job import JobSpec
from turnback.driver.restoring import RestoreMeter
from turnback.driver.sinks import JobSinks
from turnback.driver.source_monitor import SourceIdentities
from turnback.job.directory import HEARTBEAT_S, JobDirectory
from turnback.job.history import History
from turnback.job.run import RunDirectory
from turnback.job.status import StatusUpdate
from turnback.plan.plan import Plan
from turnback.state.files import StorageRef

_LOG = logging.getLogger(__name__)


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
    redriven: Redriven
    """How far it is with dead letters that are fed back."""
    is_over: bool = False
    """Whether the job has come to its end with what it starts from: there is nothing to run."""
    origin: Manifest | None = None
    """What the restore point was made of, if that is in the job's own log."""

    def inherited(self) -> set[str]:
        """The files that this attempt starts from, and any other that starts from the same."""
        manifests = (self.restore_point, self.origin)
        return {path for manifest in manifests if manifest for path in manifest.files()}


class Tenure:
    """Checks that no other driver has taken the job, where no fence protects a write by itself."""

    def __init__(self, directory: JobDirectory) -> None:
        self._name = directory.name
        self._log = CheckpointLog(directory.storage)
        self.attempt: int | None = None
        """The newest attempt whose fence this driver has taken."""

    def check(self) -> int:
        """Return the attempt of this driver.

        Raises:
            FencedError: There is none yet, or a newer one has taken over.
            StorageError: The log cannot be read.
        """
        newest = self._log.newest()
        if self.attempt is None or newest is None:
            raise FencedError(f"job {self._name!r}: this driver has not taken it over yet")
        if newest.attempt > self.attempt:
            raise FencedError(
                f"job {self._name!r}: attempt {newest.attempt} has taken over from attempt "
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
                    _LOG.warning("the status could not be written, trying again: %s", e)

        thread = threading.Thread(target=beat, name="turnback-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
