"""Checkpoints and savepoints, whoever took them, as one thing to start from and to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import Manifest, OperatorInfo, SourcePosition
from turnback.core.errors import CorruptFileError, NotFoundError
from turnback.snapshot.claims import SnapshotInfo, StoredState, source_uid
from turnback.snapshot.metadata import Origin, SavepointMetadata, StatePart
from turnback.state.files import StateFile, StorageRef, read_state, storage_of
from turnback.state.schema import StateSchema
from turnback.storage.base import Storage
from turnback.storage.envelope import check

if TYPE_CHECKING:
    import pyarrow as pa


class Problem(msgspec.Struct, frozen=True):
    """Something that keeps checkpoints from being restored.

    Attributes:
        path: The file.
        reason: What is wrong with it.
        checkpoints: Numbers of the checkpoints that need it.
    """

    path: str
    reason: str
    checkpoints: tuple[int, ...]


def verify(storage: Storage, manifest: Manifest | None = None) -> list[Problem]:
    """Read every file of one checkpoint, or of all, and compare it with what was recorded.

    Args:
        storage: The job directory.
        manifest: The checkpoint; all of them if left out.

    Raises:
        StorageError: The storage does not answer, so nothing can be said.
    """
    if manifest is not None:
        return _check_files(storage, (manifest,))
    scan = CheckpointLog(storage).scan()
    problems = [
        Problem(slot_path(number), str(error), (number,))
        for number, error in scan.unreadable.items()
    ]
    return problems + _check_files(storage, scan.manifests)


def _check_files(storage: Storage, manifests: tuple[Manifest, ...]) -> list[Problem]:
    needed: dict[tuple[str, int, str, bytes | None], list[int]] = {}
    for manifest in manifests:
        for file in _files(manifest):
            users = needed.setdefault(file, [])
            if manifest.number not in users:
                users.append(manifest.number)
    problems = []
    for (path, length, digest, inline), users in needed.items():
        try:
            data = storage.get(path) if inline is None else inline
            check(data, length, digest, f"{storage.uri}/{path}")
        except NotFoundError:
            problems.append(Problem(path, f"{storage.uri}/{path} is missing", tuple(users)))
        except CorruptFileError as error:
            problems.append(Problem(path, str(error), tuple(users)))
    return problems


def _files(manifest: Manifest) -> Iterator[tuple[str, int, str, bytes | None]]:
    for file in manifest.state:
        yield file.path, file.length, file.digest, file.inline
    for source in manifest.sources.values():
        for entry in source.log:
            yield entry.path, entry.length, entry.digest, None


@dataclass(frozen=True)
class StoredRows:
    """One state of a snapshot, to be read in tasks.

    Attributes:
        schema: What it is, as it was written.
        storage: Where the snapshot's files are.
        parts: Its Parquet files, in a savepoint.
        files: The state files, among others with its rows, in a checkpoint.
    """

    schema: StateSchema
    storage: StorageRef
    parts: tuple[StatePart, ...] = ()
    files: tuple[StateFile, ...] = ()

    def rows(self, first: int, last: int) -> Iterator[pa.Table]:
        """Its rows in the key groups first..last, with the columns group, key, sub and value."""
        from turnback.snapshot.table import StateTable, read_parts
        from turnback.state.files import share
        from turnback.state.merging import live_rows

        if self.parts:
            codec = StateTable(self.schema)
            for typed in read_parts(storage_of(self.storage), self.parts, first, last):
                yield codec.to_rows(typed)
        mine = share(self.files, {self.schema.uid: (first, last)})
        for schema, rows in live_rows(mine, lambda f: read_state(self.storage, f)):
            if schema.id == self.schema.id:
                yield rows

    def typed(self, first: int, last: int) -> Iterator[pa.Table]:
        """The same with typed columns."""
        from turnback.snapshot.table import StateTable, read_parts

        if self.parts:
            yield from read_parts(storage_of(self.storage), self.parts, first, last)
        else:
            codec = StateTable(self.schema)
            for rows in self.rows(first, last):
                yield codec.to_typed(rows)


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint or a savepoint.

    Attributes:
        name: What people call it.
        storage: Where its files are: the job's directory or the savepoint's.
        job: The job that took it.
        job_id: That job's identity.
        epoch: The last epoch in it.
        created_ms: When it was taken, by the clock of the driver that did.
        max_parallelism: Number of key groups.
        sources: Where each source goes on.
        operators: The operators of the program that took it.
        states: Its states and how large they are, as far as known.
        origin: Where it is, as the lineage of jobs started from it tells.
        manifest: The checkpoint, if it is one.
        metadata: The savepoint, if it is one.
        promised: Output it holds that is not known to be committed, by sink; only of the job's own
            checkpoints, because other jobs settle theirs themselves.
    """

    name: str
    storage: StorageRef
    job: str
    job_id: str
    epoch: int
    created_ms: int
    max_parallelism: int
    sources: Mapping[str, SourcePosition]
    operators: tuple[OperatorInfo, ...]
    states: tuple[StoredState, ...]
    origin: Origin
    manifest: Manifest | None = field(default=None, repr=False)
    metadata: SavepointMetadata | None = field(default=None, repr=False)
    promised: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of_manifest(
        cls,
        manifest: Manifest,
        storage: StorageRef,
        promised: Mapping[str, tuple[bytes, ...]] | None = None,
    ) -> Snapshot:
        """A checkpoint of the job whose directory this is."""
        uri = f"{storage.uri}/checkpoints/{manifest.name}.json"
        return cls(
            name=manifest.name,
            storage=storage,
            job=manifest.job,
            job_id=manifest.job_id,
            epoch=manifest.epoch,
            created_ms=manifest.created_ms,
            max_parallelism=manifest.max_parallelism,
            sources=manifest.sources,
            operators=manifest.operators,
            states=tuple(StoredState(schema) for schema in manifest.schemas),
            origin=Origin(uri, job=manifest.job, checkpoint=manifest.number),
            manifest=manifest,
            promised=promised or {},
        )

    @classmethod
    def of_savepoint(cls, metadata: SavepointMetadata, storage: StorageRef) -> Snapshot:
        """The savepoint in this directory."""
        return cls(
            name=storage.uri,
            storage=storage,
            job=metadata.job,
            job_id=metadata.job_id,
            epoch=metadata.epoch,
            created_ms=metadata.created_ms,
            max_parallelism=metadata.max_parallelism,
            sources=metadata.sources,
            operators=metadata.operators,
            states=tuple(StoredState(s.schema, s.rows, s.size or None) for s in metadata.states),
            origin=Origin(storage.uri, metadata.id, metadata.job, metadata.checkpoint),
            metadata=metadata,
        )

    @property
    def drained(self) -> bool:
        """Whether event time has come to its end in it."""
        return self.metadata is not None and self.metadata.drained

    def own_checkpoint(self, storage: StorageRef, job_id: str) -> Manifest | None:
        """It as a checkpoint of the job with this directory and identity, if it is one.

        The place decides: a copy of a checkpoint, or a forged one, carries the same identity.
        """
        here = self.storage.uri == storage.uri and self.job_id == job_id
        return self.manifest if here else None

    def info(self) -> SnapshotInfo:
        """What has to be known to match it with a program."""
        uids = {op.uid for op in self.operators}
        streams = Counter(source_uid(leaf, uids) for leaf in self.sources)
        return SnapshotInfo(
            name=self.name,
            job=self.job,
            max_parallelism=self.max_parallelism,
            states=self.states,
            operators=self.operators,
            sources=tuple(streams),
            streams=dict(streams),
            sinks=tuple(uid for uid, transactions in self.promised.items() if transactions),
        )

    def rows(self, schema: StateSchema) -> StoredRows:
        """The rows of one of its states."""
        if self.manifest is not None:
            return StoredRows(schema, self.storage, files=self.manifest.state)
        assert self.metadata is not None
        saved = self.metadata.state(*schema.id)
        parts = saved.files if saved is not None else ()
        return StoredRows(schema, self.storage, parts, self.metadata.native)
