"""A job that takes checkpoints and savepoints without Spark, into real directories."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest, OperatorInfo, SourcePosition
from turnback.config.savepoints import SavepointFormat
from turnback.core.clock import ManualClock
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.directory import JobDirectory
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import Origin, SavedState, SavepointMetadata
from turnback.snapshot.snapshot import Snapshot
from turnback.snapshot.table import ROWS, StateTable, write_parts
from turnback.state.backend import sub_codec
from turnback.state.delta import DeltaBuilder
from turnback.state.files import StateFile, StorageRef
from turnback.state.schema import StateSchema
from turnback.storage.open import open_storage
from turnback.types.factory import Types
from turnback.types.keys import KeyCodec
from turnback.types.serializer import Serializer
from turnback.types.typeinfo import TypeInfo, type_from_descriptor

_NAMES = itertools.count()


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
        key={"types": [t.describe() for t in keys or [Types.STRING()]], "columns": columns},
        value=(value or Types.LONG()).describe(),
        sub=None if sub is None else sub.describe(),
    )


def entries(state: StateSchema, held: Mapping[Any, Any], groups: int, epoch: int = 1) -> Any:
    """Groups, keys, subs and values of what a state holds, encoded as the engine does."""
    codec = KeyCodec(
        tuple(map(type_from_descriptor, state.key["types"])), bool(state.key["columns"])
    )
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


class FakeJob:
    """Takes snapshots of whatever states it is given: pairs of schema and content."""

    def __init__(self, root: str, name: str = "likes", groups: int = 16) -> None:
        self.root, self.name, self.groups = root, name, groups
        self.clock = ManualClock(1_700_000_000_000)
        self.directory = JobDirectory.locate(root, name, clock=self.clock)
        self.storage = self.directory.storage
        self.info = self.directory.open()
        self.log = CheckpointLog(self.storage)
        self.catalog = SavepointCatalog(self.storage)
        self.epoch = 0
        self.files: list[StateFile] = []
        self.schemas: dict[tuple[str, str], StateSchema] = {}
        self.parent: int | None = None

    def attempt(self, **started: Any) -> int:
        fence = self.log.fence(
            job=self.name, job_id=self.info.job_id, created_ms=self.clock.now_ms(), host="h",
            pid=1, nonce=f"n{next(_NAMES)}",
        )  # fmt: skip
        self.directory.record_attempt(fence.attempt, **started)
        self.number = fence.attempt
        return fence.attempt

    def checkpoint(self, *states: tuple[StateSchema, Mapping[Any, Any]], inline=False, **more: Any):
        """A checkpoint of an epoch that has put these entries."""
        self.epoch += 1
        builder = DeltaBuilder(self.epoch)
        for state, held in states:
            self.schemas[state.id] = state
            builder.add(state, *entries(state, held, self.groups, self.epoch))
        built = builder.build()
        if built is not None:
            path = self.directory.state_path(self.number, f"{self.epoch}.arrow")
            self.files.append(built.file(path, self.epoch, f"{self.number}-n", inline=inline))
            if not inline:
                self.storage.put(path, built.data)
        manifest = Manifest(
            job=self.name, job_id=self.info.job_id, number=0, attempt=self.number,
            epoch=self.epoch, created_ms=self.clock.now_ms(), trigger="periodic",
            parent=self.parent, max_parallelism=self.groups,
            sources={"events": SourcePosition(f'{{"at": {self.epoch}}}')},
            state=tuple(self.files), schemas=tuple(self.schemas.values()),
            operators=(OperatorInfo("count", "Count", "keyed_process", 2),),
            transactions=more.pop("transactions", {}), watermarks={"count": 5},
        )  # fmt: skip
        (*_, written) = self.log.append(msgspec.structs.replace(manifest, **more))
        self.parent = written.number
        self.clock.advance(60_000)
        return Snapshot.of_manifest(written, StorageRef(self.storage.uri))

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
        return Snapshot.of_savepoint(metadata, StorageRef(directory.uri))

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
        return Snapshot.of_savepoint(metadata, StorageRef(storage.uri))
