"""Fakes around the coordinator: sinks that remember, storage that fails, executors run by hand."""

import builtins
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from manual_clock import ManualClock
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import EpochCut, Fence, SourcePosition
from turnback.config.checkpointing import CheckpointSettings
from turnback.errors import StorageError
from turnback.job.history import History
from turnback.state.files import StateFile
from turnback.storage.base import Storage
from turnback.storage.envelope import digest
from turnback.storage.open import MemoryStorage

_NAMES = itertools.count()


def memory() -> MemoryStorage:
    return MemoryStorage(f"coordinator-test-{next(_NAMES)}")


def settings(**options: Any) -> CheckpointSettings:
    """Settings with a checkpoint every second."""
    return CheckpointSettings(**{"interval_ms": 1_000} | options)


class RecordingCommitter:
    """A sink whose target is a list. Committing twice changes nothing, and is remembered."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, ...]] = []
        self.visible: list[bytes] = []
        self.aborted: list[bytes] = []
        self.broken: Exception | None = None

    def commit(self, transactions: Sequence[bytes]) -> None:
        self.calls.append(tuple(transactions))
        if self.broken is not None:
            raise self.broken
        self.visible.extend(t for t in transactions if t not in self.visible)

    def abort(self, transactions: Sequence[bytes]) -> None:
        self.aborted.extend(transactions)

    def recover(self, pending: Sequence[bytes]) -> None:
        self.commit(pending)


class InlineExecutor:
    """Runs each task within `submit`."""

    def __init__(self, name: str) -> None:
        pass

    def submit(self, task: Callable[[], None]) -> None:
        task()

    def close(self, timeout_s: float) -> bool:
        return True


class ManualExecutor:
    """Runs its tasks when the test says so."""

    def __init__(self, name: str) -> None:
        self.tasks: list[Callable[[], None]] = []

    def submit(self, task: Callable[[], None]) -> None:
        self.tasks.append(task)

    def run(self) -> None:
        while self.tasks:
            self.tasks.pop(0)()

    def close(self, timeout_s: float) -> bool:
        self.run()
        return True


class ManualExecutors(dict[str, ManualExecutor]):
    """Makes manual executors and keeps them by name."""

    def __call__(self, name: str) -> ManualExecutor:
        return self.setdefault(name, ManualExecutor(name))

    def run(self) -> None:
        while any(executor.tasks for executor in self.values()):
            for executor in self.values():
                executor.run()


class HookedStorage:
    """Storage that asks a hook before, and another after, every operation."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.uri = inner.uri
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self.after: Callable[[str, str], None] = lambda operation, path: None
        self.operations: list[tuple[str, str]] = []

    def put(self, path: str, data: bytes) -> None:
        self._run("put", path, lambda: self.inner.put(path, data))

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._run("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def get(self, path: str) -> bytes:
        return self._run("get", path, lambda: self.inner.get(path))

    def list(self, prefix: str = "") -> builtins.list[str]:
        return self._run("list", prefix, lambda: self.inner.list(prefix))

    def delete(self, path: str) -> None:
        self._run("delete", path, lambda: self.inner.delete(path))

    def fail(self, operation: str, containing: str) -> None:
        """Fail an operation on some paths from now on; nothing happens to them."""

        def hook(wanted: str, path: str) -> None:
            if wanted == operation and containing in path:
                raise StorageError(f"{operation} {path}: no answer")

        self.before = hook

    def heal(self) -> None:
        self.before = self.after = lambda operation, path: None

    def _run(self, operation: str, path: str, action: Callable[[], Any]) -> Any:
        self.before(operation, path)
        self.operations.append((operation, path))
        result = action()
        self.after(operation, path)
        return result


def take_fence(
    log: CheckpointLog,
    nonce: str = "n",
    pid: int = 1,
    job_id: str = "id",
    after: int | None = None,
) -> Fence:
    return log.fence(
        job="job", job_id=job_id, created_ms=0, host="host", pid=pid, nonce=nonce, after=after
    )


def state_file(storage: Storage, path: str, data: bytes = b"state", epoch: int = 1) -> StateFile:
    storage.put(path, data)
    return StateFile(
        path=path,
        length=len(data),
        digest=digest(data),
        rows=1,
        first_epoch=epoch,
        last_epoch=epoch,
        first_group=0,
        last_group=127,
        operators=("op",),
    )


def cut(
    epoch: int,
    files: Sequence[StateFile] = (),
    transactions: Mapping[str, tuple[bytes, ...]] | None = None,
) -> EpochCut:
    if transactions is None:
        transactions = {"sink": (f"t{epoch}".encode(),)}
    return EpochCut(
        epoch=epoch,
        sources={"source": SourcePosition(f'{{"offset": {epoch}}}')},
        state=tuple(files),
        transactions=transactions,
    )


class Job:
    """One attempt of a job, with everything a test wants to look at."""

    def __init__(
        self,
        storage: Storage | None = None,
        settings: CheckpointSettings | None = None,
        committers: Mapping[str, RecordingCommitter] | None = None,
        clock: ManualClock | None = None,
        executor: Callable[[str], Any] = InlineExecutor,
        nonce: str = "n",
        job_id: str = "id",
    ) -> None:
        self.storage = storage if storage is not None else memory()
        self.clock = clock or ManualClock(1_000_000)
        self.sinks = committers if committers is not None else {"sink": RecordingCommitter()}
        self.log = CheckpointLog(self.storage)
        self.fence = take_fence(self.log, nonce, job_id=job_id)
        self.history = History(self.storage, self.fence.attempt, self.clock)
        self.failures: list[BaseException] = []
        latest = self.log.latest()
        self.coordinator = CheckpointCoordinator(
            self.log,
            settings or CheckpointSettings(interval_ms=1_000),
            self.sinks,
            max_parallelism=128,
            parent=latest.number if latest else None,
            history=self.history,
            clock=self.clock,
            executor=executor,
            on_failure=self.failures.append,
        ).start(thread=False)

    @property
    def sink(self) -> RecordingCommitter:
        return self.sinks["sink"]

    def epoch(self, number: int, files: Sequence[StateFile] = (), **kwargs: Any) -> None:
        self.coordinator.epoch_confirmed(cut(number, files, **kwargs))

    def checkpoint(self) -> None:
        """Let the interval pass."""
        self.clock.advance(1_000)
        self.coordinator.tick()

    def checkpoints(self) -> list[int]:
        return [manifest.number for manifest in CheckpointLog(self.storage).scan().manifests]

    def files(self, prefix: str = "state") -> list[str]:
        return self.storage.list(prefix)
