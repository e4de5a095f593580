"""Jobs without Spark, in real directories: what they leave there, and the processes of drivers."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from manual_clock import ManualClock
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Fence, Manifest, OperatorInfo, SourcePosition
from turnback.config.checkpointing import SavepointFormat
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.job.history import AttemptStarted, CheckpointFailed, CheckpointStats, Event, History
from turnback.job.requests import Requests
from turnback.job.run import ProcessId
from turnback.job.status import JobProgram, JobState, ProgramOperator, ProgramSetting, StatusUpdate
from turnback.snapshot.directory import WRITING, SavepointDirectory
from turnback.snapshot.metadata import Origin, SavedState, SavepointMetadata
from turnback.snapshot.parts import write_parts
from turnback.snapshot.snapshot import Snapshot
from turnback.snapshot.table import ROWS, StateTable
from turnback.state.backend import sub_codec
from turnback.state.delta import DeltaBuilder
from turnback.state.files import StateFile, StorageRef
from turnback.state.schema import KeySchema, StateSchema
from turnback.storage.envelope import digest
from turnback.storage.open import open_storage
from turnback.values.keys import KeyCodec
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import TypeInfo, Types, type_from_descriptor
from turnback.views.job import Job

_NAMES = itertools.count()
START = 1_700_000_000_000


def memory_root() -> str:
    return f"memory://ops-test-{next(_NAMES)}"


def schema(
    name: str = "total",
    kind: str = "value",
    value: TypeInfo | None = None,
    keys: Sequence[TypeInfo] | None = None,
    sub: TypeInfo | None = None,
    *,
    uid: str = "count",
    columns: bool = True,
) -> StateSchema:
    return StateSchema(
        uid=uid,
        name=name,
        kind=kind,
        key=KeySchema(tuple(t.describe() for t in keys or [Types.STRING()]), columns),
        value=(value or Types.LONG()).describe(),
        sub=None if sub is None else sub.describe(),
    )


def entries(state: StateSchema, held: Mapping[Any, Any], groups: int, epoch: int = 1) -> Any:
    """Groups, keys, subs and values of what a state holds, encoded as the engine does."""
    codec = KeyCodec(state.key.type_infos(), state.key.columns)
    encode = Serializer(type_from_descriptor(state.value)).encode
    found = []
    for key, value in held.items():
        group, data = codec.group(key, groups), codec.encode(key)
        if state.kind == "list":
            for i, element in enumerate(value):
                found.append((group, data, struct.pack(">QI", epoch, i), encode(element)))
        elif state.kind == "map":
            sub = sub_codec(type_from_descriptor(state.sub)).encode
            found += [(group, data, sub(k), encode(v)) for k, v in value.items()]
        else:
            found.append((group, data, None, encode(value)))
    return [list(column) for column in zip(*found, strict=True)] or [[], [], [], []]


def described(
    states: Iterable[SavedState] = (),
    operators: Iterable[OperatorInfo] = (),
    sources: Iterable[str] = (),
    *,
    groups: int = 128,
    promised: Mapping[str, tuple[bytes, ...]] | None = None,
) -> Snapshot:
    """A snapshot without files that calls itself chk-7 of the job clicks."""
    metadata = SavepointMetadata(
        id="sp", turnback_version="0", type=SavepointFormat.CANONICAL, job="clicks", job_id="id",
        attempt=1, checkpoint=7, epoch=1, created_ms=0, trigger="savepoint (user)",
        max_parallelism=groups, sources={leaf: SourcePosition(None) for leaf in sources},
        operators=tuple(operators), states=tuple(states), watermarks={},
    )  # fmt: skip
    return Snapshot(metadata, StorageRef("chk-7"), promised or {})


class FakeJob:
    """Takes snapshots of whatever states it is given: pairs of schema and content."""

    def __init__(
        self,
        root: object,
        name: str = "likes",
        groups: int = 16,
        clock: ManualClock | None = None,
        process: ProcessId | None = None,
    ) -> None:
        self.root, self.name, self.groups = str(root), name, groups
        self.options: dict[str, str] = {}
        self.clock = clock or ManualClock(START)
        self.directory = JobDirectory.locate(self.root, name, clock=self.clock)
        self.storage = self.directory.storage
        if process is not None:
            self.directory._process = process
        self.info = self.directory.open()
        self.log = CheckpointLog(self.storage)
        self.catalog = SavepointCatalog(self.storage)
        self.fence: Fence | None = None
        self.epoch = 0
        self.files: list[StateFile] = []
        self.schemas: dict[tuple[str, str], StateSchema] = {}
        self.parent: int | None = None

    def attempt(self, **started: Any) -> int:
        self.fence = self.log.fence(
            job=self.name, job_id=self.info.job_id, created_ms=self.clock.now_ms(), host="h",
            pid=1, nonce=f"n{next(_NAMES)}",
        )  # fmt: skip
        self.number = self.fence.attempt
        self.directory.record_attempt(self.number, **started)
        return self.number

    def checkpoint(self, *states: tuple[StateSchema, Mapping[Any, Any]], inline=False, **more: Any):
        """A checkpoint of an epoch that has put these entries."""
        self.epoch += 1
        builder = DeltaBuilder()
        for state, held in states:
            self.schemas[state.id] = state
            builder.add(state, *entries(state, held, self.groups, self.epoch))
        built = builder.build()
        if built is not None:
            path = f"state/{self.number}/{self.epoch}.arrow"
            self.files.append(built.file(path, self.epoch, f"{self.number}-n", inline=inline))
            if not inline:
                self.storage.put(path, built.data)
        written = self._append(tuple(self.files), tuple(self.schemas.values()), **more)
        self.clock.advance(60_000)
        return Snapshot(written, StorageRef(self.storage.uri))

    def _append(
        self, files: tuple[StateFile, ...], schemas: tuple[StateSchema, ...], **more: Any
    ) -> Manifest:
        manifest = Manifest(
            job=self.name, job_id=self.info.job_id, number=0, attempt=self.number,
            epoch=self.epoch, created_ms=self.clock.now_ms(), trigger="periodic",
            parent=self.parent, max_parallelism=self.groups,
            sources={"events": SourcePosition(f'{{"at": {self.epoch}}}')}, state=files,
            schemas=schemas, operators=(OperatorInfo("count", "Count", "keyed_process", 2),),
            transactions=more.pop("transactions", {}), watermarks={"count": 5},
        )  # fmt: skip
        (*_, written) = self.log.append(msgspec.structs.replace(manifest, **more))
        self.parent = written.number
        return written

    def savepoint(
        self,
        path: str,
        *states: tuple[StateSchema, Mapping[Any, Any]],
        id: str | None = None,
        label: str | None = None,
        origin: Origin | None = None,
        record: bool = True,
        parts: int = 1,
    ):
        """A savepoint with exactly these states, each in so many files."""
        id = id or f"sp{next(_NAMES):06d}"
        storage = open_storage(path)
        saved = [self._saved(storage, state, held, parts) for state, held in states]
        metadata = SavepointMetadata(
            id=id, turnback_version="0", type=SavepointFormat.CANONICAL, job=self.name,
            job_id=self.info.job_id, attempt=1, checkpoint=self.parent or 0, epoch=self.epoch,
            created_ms=self.clock.now_ms(), trigger="savepoint (user)", label=label, note="why",
            max_parallelism=self.groups, sources={"events": SourcePosition('{"at": 1}')},
            operators=(OperatorInfo("count", "Count", "keyed_process", 2),),
            states=tuple(saved), watermarks={}, origin=origin,
        )  # fmt: skip
        directory = SavepointDirectory(storage)
        directory.write_metadata(metadata)
        if record:
            self.catalog.add(
                SavepointEntry(
                    id=id, path=directory.uri, created_ms=metadata.created_ms,
                    checkpoint=metadata.checkpoint, epoch=metadata.epoch, label=label,
                )
            )  # fmt: skip
        self.clock.advance(60_000)
        return Snapshot(metadata, StorageRef(directory.uri))

    def _saved(self, storage, state, held, parts) -> SavedState:
        columns = entries(state, held, self.groups)
        rows = sorted(zip(*columns, strict=True), key=lambda row: row[0])
        size = -(-len(rows) // parts) or 1
        files = []
        for i in range(0, len(rows), size):
            lists = list(zip(*rows[i : i + size], strict=True))
            arrays = [pa.array(c, f.type) for c, f in zip(lists, ROWS, strict=True)]
            table = StateTable(state).to_typed(pa.Table.from_arrays(arrays, schema=ROWS))
            files += write_parts(storage, state, [table])
        return SavedState(state, len(rows), tuple(files))

    def native(self, path: str, *states: tuple[StateSchema, Mapping[Any, Any]]):
        """A savepoint of type native: copies of state files."""
        taken = self.checkpoint(*states)
        storage = open_storage(path)
        files = []
        for file in taken.manifest.state:
            copy = f"files/{file.path.rpartition('/')[2]}"
            storage.put(copy, self.storage.get(file.path))
            files.append(msgspec.structs.replace(file, path=copy))
        metadata = SavepointMetadata(
            id=f"sp{next(_NAMES):06d}", turnback_version="0", type=SavepointFormat.NATIVE,
            job=self.name, job_id=self.info.job_id, attempt=1, checkpoint=taken.manifest.number,
            epoch=self.epoch, created_ms=self.clock.now_ms(), trigger="savepoint (user)",
            max_parallelism=self.groups, sources={}, operators=taken.operators,
            states=tuple(SavedState(state) for state in taken.manifest.schemas), watermarks={},
            native=tuple(files),
        )  # fmt: skip
        SavepointDirectory(storage).write_metadata(metadata)
        return Snapshot(metadata, StorageRef(storage.uri))


class Driver(FakeJob):
    """A fake job that also writes status, history and requests, as the driver of a job does."""

    def __init__(
        self,
        root: object,
        name: str = "wordcount",
        clock: ManualClock | None = None,
        process: ProcessId | None = None,
    ) -> None:
        super().__init__(root, name, 128, clock, process)
        self.requests = Requests(self.storage, self.clock)
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
        number = super().attempt(checkpoint=checkpoint, snapshot=snapshot)
        self.history = History(self.storage, number, self.clock)
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
        path = f"state/{self.fence.attempt}/{name}"
        self.storage.put(path, data)
        return StateFile(path, len(data), digest(data), 1, 1, 1, 0, 127, ("count",))

    def checkpoint(
        self, *files: StateFile, epoch: int = 1, recorded: bool = True, **numbers: Any
    ) -> int:
        self.epoch = epoch
        number = self._append(files, (schema(),), parent=None, watermarks={}).number
        if recorded:
            self.happens(done(number, epoch, **numbers))
        self.say(JobState.RUNNING, checkpoint=number, epoch=epoch)
        return number

    def savepoint(self, target: object, id: str, checkpoint: int = 2, **fields: Any) -> str:
        """Take a savepoint; of its content only the fact that it is complete matters here."""
        storage = open_storage(str(target))
        storage.put("_metadata.json", b"{}")
        entry = SavepointEntry(
            id=id, path=storage.uri, created_ms=self.clock.now_ms(), checkpoint=checkpoint,
            epoch=checkpoint, **fields,
        )  # fmt: skip
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
                    uid="count", name="Count", kind="keyed process", parallelism=2, level=0,
                    key="word", inputs=("events",),
                ),
            ),
            settings=tuple(ProgramSetting(key=k, value=v, origin=o) for k, v, o in settings),
            warnings=("careful",),
            versions={"turnback": "1"},
            script=script,
        )  # fmt: skip
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
        yield ProcessId.of(child.pid)
    finally:
        child.kill()
        child.communicate()
