"""Job directories as drivers leave them, and processes that live, died, or are elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest, SourcePosition
from turnback.core.clock import ManualClock
from turnback.inspect.job import Job
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.job.history import AttemptStarted, CheckpointFailed, CheckpointStats, Event, History
from turnback.job.requests import Requests
from turnback.job.run import ProcessId
from turnback.job.status import JobProgram, JobState, ProgramOperator, ProgramSetting, StatusUpdate
from turnback.snapshot.directory import WRITING
from turnback.state.files import StateFile
from turnback.state.schema import StateSchema
from turnback.storage.envelope import digest
from turnback.storage.open import open_storage

START = 1_700_000_000_000


def elsewhere() -> ProcessId:
    return ProcessId("another-host", "another-boot", 4711, "1")


def dead() -> ProcessId:
    """A process of this machine that is gone."""
    with living() as process:
        pass
    assert process.is_local()
    assert not process.is_alive()
    return process


@contextmanager
def living() -> Iterator[ProcessId]:
    """Another live process of this machine."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield msgspec.structs.replace(
            ProcessId.current(), pid=child.pid, started=_started(child.pid)
        )
    finally:
        child.kill()
        child.communicate()


def _started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


class Driver:
    """Writes the directory of a job as a driver does."""

    def __init__(
        self,
        root: object,
        name: str = "wordcount",
        clock: ManualClock | None = None,
        process: ProcessId | None = None,
    ) -> None:
        self.clock = clock or ManualClock(START)
        self.directory = JobDirectory.locate(str(root), name, clock=self.clock)
        self.storage = self.directory.storage
        if process is not None:
            self.directory._process = process
        self.info = self.directory.open()
        self.log = CheckpointLog(self.storage)
        self.requests = Requests(self.storage, self.clock)
        self.catalog = SavepointCatalog(self.storage)
        self.fence: Fence | None = None
        self.history: History | None = None

    @property
    def path(self) -> Path:
        return Path(self.storage._root)  # type: ignore[attr-defined]

    def say(self, state: JobState, **fields: Any) -> Driver:
        attempt = {"attempt": self.fence.attempt} if self.fence is not None else {}
        self.directory.write_status(state, self.info.job_id, StatusUpdate(**(attempt | fields)))
        return self

    def attempt(self, checkpoint: int | None = None, snapshot: str | None = None) -> Driver:
        """Start an attempt, as the newest driver of the job."""
        self.fence = self.log.fence(
            job=self.info.job,
            job_id=self.info.job_id,
            created_ms=self.clock.now_ms(),
            host="host",
            pid=1,
            nonce="n",
        )
        number = self.fence.attempt
        self.history = History(self.storage, number, self.clock)
        self.directory.record_attempt(number, checkpoint=checkpoint, snapshot=snapshot)
        name = f"chk-{checkpoint}" if checkpoint is not None else snapshot
        self.happens(AttemptStarted(name))
        return self.say(JobState.RUNNING)

    def happens(self, event: Event, after_ms: int = 1_000) -> Driver:
        assert self.history is not None
        self.clock.advance(after_ms)
        self.history.record(event)
        return self

    def file(self, name: str, data: bytes = b"state") -> StateFile:
        assert self.fence is not None
        path = self.directory.state_path(self.fence.attempt, name)
        self.storage.put(path, data)
        return StateFile(
            path=path,
            length=len(data),
            digest=digest(data),
            rows=1,
            first_epoch=1,
            last_epoch=1,
            first_group=0,
            last_group=127,
            operators=("count",),
        )

    def checkpoint(
        self, *files: StateFile, epoch: int = 1, recorded: bool = True, **numbers: Any
    ) -> int:
        assert self.fence is not None
        schema = StateSchema(
            uid="count",
            name="total",
            kind="value",
            key={"types": ["string"], "columns": True},
            value="long",
            sub=None,
        )
        manifest = Manifest(
            job=self.info.job,
            job_id=self.info.job_id,
            number=0,
            attempt=self.fence.attempt,
            epoch=epoch,
            created_ms=self.clock.now_ms(),
            trigger="periodic",
            parent=None,
            max_parallelism=128,
            sources={"events": SourcePosition("{}")},
            state=files,
            schemas=(schema,),
            operators=(),
            transactions={},
            watermarks={},
        )
        number = self.log.append(manifest)[-1].number
        if recorded:
            self.happens(done(number, epoch, **numbers))
        self.say(JobState.RUNNING, checkpoint=number, epoch=epoch)
        return number

    def savepoint(self, target: object, id: str, checkpoint: int = 2, **fields: Any) -> str:
        """Take a savepoint; of its content only the fact that it is complete matters here."""
        storage = open_storage(str(target))
        storage.put("_metadata.json", b"{}")
        entry = SavepointEntry(
            id=id,
            path=storage.uri,
            created_ms=self.clock.now_ms(),
            checkpoint=checkpoint,
            epoch=checkpoint,
            **fields,
        )
        self.catalog.add(entry)
        return storage.uri

    def partial(self, target: object, id: str) -> None:
        """Begin a savepoint and die."""
        storage = open_storage(str(target))
        storage.put(WRITING, f"{id} nonce".encode())
        storage.put("state/count/total/part-0.parquet", b"half")

    def runs(self, *settings: tuple[str, str, str], script: tuple[str, ...] = ()) -> Driver:
        program = JobProgram(
            attempt=1,
            operators=(
                ProgramOperator(
                    uid="events", name="Events", kind="source", parallelism=None, level=-1
                ),
                ProgramOperator(
                    uid="count",
                    name="Count",
                    kind="keyed process",
                    parallelism=2,
                    level=0,
                    key="word",
                    inputs=("events",),
                ),
            ),
            settings=tuple(ProgramSetting(key=k, value=v, origin=o) for k, v, o in settings),
            warnings=("careful",),
            versions={"turnback": "1"},
            script=script,
        )
        self.directory.record_program(program)
        return self


def done(number: int, epoch: int = 1, **fields: Any) -> CheckpointStats:
    numbers = {
        "waited_ms": 10,
        "manifest_ms": 20,
        "commit_ms": 30,
        "delta_bytes": 100,
        "delta_files": 1,
        "full_bytes": 1_000,
        "files": 3,
        "sync_ms": 5,
        "tasks": 4,
    }
    return CheckpointStats(number=number, epoch=epoch, trigger="periodic", **(numbers | fields))


def failed(epoch: int, **fields: Any) -> CheckpointFailed:
    return CheckpointFailed(epoch=epoch, trigger="periodic", reason="no space", **fields)


def seen(driver: Driver) -> Job:
    """The job as those see it who look at its directory."""
    return Job(driver.directory, clock=driver.clock)
