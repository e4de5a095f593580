"""`IcebergSink`: rows of an Iceberg table, through PyIceberg (the extra 'iceberg')."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.types as pt

from turnback.connectors.tables.compaction import (
    TARGET_BYTES,
    Compaction,
    ConflictError,
    RowGroupWriter,
    bins,
)
from turnback.connectors.tables.files import (
    ChangeKind,
    ColumnChange,
    Layout,
    TableFile,
    column_changes,
    partition_differences,
)
from turnback.connectors.tables.sink import (
    Mark,
    TableOptions,
    TableSink,
    TableTarget,
    commit_marks,
    sync_files,
    who_commits,
)
from turnback.core.extras import require
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, attempt_of
from turnback.sinks.ownership import Ownership, SinkIdentity
from turnback.state.files import StorageRef, storage_of
from turnback.storage.base import Storage
from turnback.values.columns import stream_schema
from turnback.values.typeinfo import TypeInfo


def plan(table: Any) -> list[list[Any]]:
    """Choose the tasks of a scan whose files are to be joined, each list into one file.

    Files that rows were deleted from are left alone, and so are those of an older partition spec.
    """
    small: dict[str, list[Any]] = {}
    for task in table.scan().plan_files():
        file = task.file
        if (
            not task.delete_files
            and file.file_size_in_bytes < TARGET_BYTES // 2
            and file.spec_id == table.spec().spec_id
            and str(file.file_format).upper().endswith("PARQUET")
        ):
            small.setdefault(repr(file.partition), []).append(task)
    ordered = [sorted(tasks, key=lambda task: task.file.file_path) for tasks in small.values()]
    every = (bins(tasks, lambda task: task.file.file_size_in_bytes) for tasks in ordered)
    return [bin for some in every for bin in some if len(bin) > 1]


def describe(table: Any, bins: list[list[Any]], version: str) -> Compaction:
    """Say what `replace_files` would do."""
    files = sum(1 for _ in table.scan().plan_files())
    joined = sum(map(len, bins))
    return Compaction(
        files_before=files,
        files_after=files - joined + len(bins),
        joined=joined,
        bytes=sum(task.file.file_size_in_bytes for bin in bins for task in bin),
        version=version,
    )


class JoinedFiles:
    """Files that are joined and not part of the table yet.

    They are kept when a commit meets another one, and are of use for as long as the table has the
    files they were made of, as they were.
    """

    def __init__(self, table: Any, storage: Storage) -> None:
        self._schema_id = table.schema().schema_id
        self._arrow_io = require("pyiceberg.io.pyarrow", "iceberg", "IcebergSink")
        self._made: list[tuple[str, list[str]]] = []
        name = secrets.token_hex(8)
        for number, bin in enumerate(plan(table)):
            path = f"data/compacted-{name}-{number}.parquet"
            storage.put(path, _joined(self._arrow_io, table, bin))
            self._made.append((path, [task.file.file_path for task in bin]))

    def commit(self, table: Any, summary: dict[str, str]) -> tuple[Any, int]:
        """Commit them in place of the old files; returns the table and how many went.

        PyIceberg must not rebase the commit: rows may have been deleted from the old files
        meanwhile. None go if the table has changed so much that everything has to begin again.
        """
        location = table.location().rstrip("/")
        there = _whole_files(table)
        usable = [
            (path, old)
            for path, old in self._made
            if table.schema().schema_id == self._schema_id and all(one in there for one in old)
        ]
        if not usable:
            return table, 0
        transaction = table.transaction()
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
            for path, old in usable:
                uri = f"{location}/{path}"
                snapshot.append_data_file(
                    self._arrow_io.parquet_file_to_data_file(table.io, table.metadata, uri)
                )
                for one in old:
                    snapshot.delete_data_file(there[one])
        return transaction.commit_transaction(), sum(len(old) for _, old in usable)


def _whole_files(table: Any) -> dict[str, Any]:
    """The files of a table from which no rows were deleted, by path."""
    tasks = table.scan().plan_files()
    return {task.file.file_path: task.file for task in tasks if not task.delete_files}


def _joined(arrow_io: Any, table: Any, tasks: list[Any]) -> bytes:
    """The rows of some files as one, in the columns that the table has now."""
    always = require("pyiceberg.expressions", "iceberg", "IcebergSink").AlwaysTrue()
    scan = arrow_io.ArrowScan(table.metadata, table.io, table.schema(), always)
    schema = table.schema().as_arrow()
    joined = RowGroupWriter(schema)
    for batch in scan.to_record_batches(tasks):
        joined.add(batch.cast(schema))  # files differ in string types
    return joined.finish()


KIND = "iceberg"


class IcebergTarget(TableTarget):
    """An Iceberg table. How far a sink is stands in a property of it, set with each snapshot."""

    format = "Iceberg"
    elsewhere = "use another table"
    additive = (ChangeKind.ADD, ChangeKind.WIDEN)
    _sink: IcebergSink

    def __init__(self, sink: IcebergSink, ctx: CommitterContext) -> None:
        super().__init__(sink, ctx)
        self._synced: str | None = None
        self._connected: Any = None
        self._joined: JoinedFiles | None = None

    def _schema_of(self, type: TypeInfo) -> pa.Schema:
        return iceberg_schema(type)

    def _differences(self, table: Any, schema: pa.Schema) -> tuple[list[ColumnChange], list[str]]:
        changes = list(column_changes(schema, table.schema().as_arrow()))
        problems = _lost_columns(table, schema) if self._sink.mode == "upsert" else []
        found = _partition_columns(table)
        if found is None:
            problems.append("it is partitioned by a transform; only plain columns are supported")
        else:
            problems += partition_differences(found, self._sink.partition_by)
        return changes, problems

    def _evolve(self, table: Any, changes: list[ColumnChange]) -> None:
        wanted = pa.schema([pa.field(change.column, change.here) for change in changes])
        transaction = table.transaction()
        with transaction.update_schema() as update:
            update.union_by_name(wanted)
        # PyIceberg upserts by the columns of the newest snapshot, which are those it was made with.
        self._add_empty_snapshot(transaction, {})
        transaction.commit_transaction()

    def create(self, type: TypeInfo) -> None:
        if self.exists():
            return
        with suppress(ConflictError):  # another sink of the job was faster
            self._create(type)

    def _create(self, type: TypeInfo) -> None:
        exceptions = require("pyiceberg.exceptions", "iceberg", "IcebergSink")
        catalog = self._catalog()
        with self._failures("create"):
            try:
                with (
                    catalog.create_table_transaction(
                        self._sink.table, iceberg_schema(type)
                    ) as transaction,
                    transaction.update_spec() as spec,
                ):
                    for column in self._sink.partition_by:
                        spec.add_identity(column)
            except exceptions.TableAlreadyExistsError as error:
                raise ConflictError(str(error)) from error
            except exceptions.NoSuchNamespaceError:
                namespace = self._sink.table.rpartition(".")[0]
                raise ConfigurationError(
                    f"{self._name}: the catalog has no namespace {namespace!r}; create it first"
                ) from None

    def look(self) -> None:
        self._table = self._open()
        if self._table is None:
            raise SinkError(
                f"{self._name}: the Iceberg table {self._sink.place} no longer exists. Restore "
                "it, or start the job again to create it"
            )
        with self._failures("sync"):
            self._require_same()
            self._sync()
        # PyIceberg must not rebase by itself: the commit it met may be that of this sink by a newer
        # driver, which has to be looked at. This changes the copy in memory only.
        self._table.metadata.properties["commit.retry.num-retries"] = "0"

    def remembered(self, identity: SinkIdentity) -> Mark | None:
        value = self._table.properties.get(self._key_of(identity))
        if value is None:
            return None
        version, *others = value.split()
        if not others:  # written before targets were told of job directories
            return Mark(identity, int(version), attempt_of(int(version)))
        attempt, fence, *nonce = others
        return Mark(identity, int(version), int(attempt), "".join(nonce), int(fence))

    def referenced(self, paths: Collection[str]) -> set[str]:
        location = self._table.location().rstrip("/")
        with self._failures("read"):
            files = {task.file.file_path for task in self._table.scan().plan_files()}
        return {path for path in paths if f"{location}/{path}" in files}

    def append(self, files: Sequence[TableFile], mark: Mark, join: str = "") -> None:
        location = self._table.location().rstrip("/")
        paths = [f"{location}/{file.path}" for file in files]
        with self._failures("commit to"):
            transaction = self._table.transaction()
            # Names have random parts, and the version is looked at: no file can be there twice.
            summary = self._summary | commit_marks(self._key_of(mark.identity), mark, join)
            transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
            self._commit(transaction, mark)

    def _commits(self) -> Iterable[Mapping[str, Any]]:
        snapshots = sorted(
            self._table.snapshots(),
            key=lambda snapshot: snapshot.sequence_number or 0,
            reverse=True,
        )
        return (one.summary.additional_properties for one in snapshots if one.summary)

    def _key_of(self, identity: SinkIdentity) -> str:
        digest = blake2b(identity.hashed, digest_size=8).hexdigest()
        return f"turnback.version.{digest}"

    def mark(self, mark: Mark) -> None:
        with self._failures("commit to"):
            transaction = self._table.transaction()
            self._add_empty_snapshot(transaction, who_commits(mark))
            self._commit(transaction, mark)

    def merge(self, rows: pa.Table, mark: Mark) -> None:
        with self._failures("merge into"):
            transaction = self._table.transaction()
            summary = self._summary | commit_marks(self._key_of(mark.identity), mark, "")
            result = transaction.upsert(
                rows, join_cols=list(self._sink.key), snapshot_properties=summary
            )
            if not result.rows_updated and not result.rows_inserted:
                self._add_empty_snapshot(transaction, who_commits(mark))
            self._commit(transaction, mark)

    def plan_compaction(self) -> Compaction:
        self.look()
        with self._failures("read"):
            return describe(self._table, plan(self._table), self.version())

    def compact(self, alone: AbstractContextManager[Any]) -> int:
        with self._failures("compact"):
            if self._joined is None:
                self._joined = JoinedFiles(self._table, self._sink.storage())
        with alone, self._failures("compact"):
            self.look()
            self._table, replaced = self._joined.commit(self._table, self._summary)
            self._joined = None
            self._sync()
        if not replaced:
            raise ConflictError("the merged files were changed")
        return replaced

    def version(self) -> str:
        snapshot = self._table.current_snapshot()
        return str(snapshot.snapshot_id) if snapshot is not None else "none"

    def _add_empty_snapshot(self, transaction: Any, info: Mapping[str, str]) -> None:
        """Let a commit without data conflict with others: a property alone does not."""
        update = transaction.update_snapshot(snapshot_properties={**self._summary, **info})
        with update.fast_append():
            pass

    def _commit(self, transaction: Any, mark: Mark) -> None:
        if mark.identity.directory_id:
            value = f"{mark.version} {mark.attempt} {mark.fence} {mark.nonce}".rstrip()
        else:  # drivers that only know the number must be kept out by it
            value = str(max(mark.version, mark.fence))
        transaction.set_properties({self._key_of(mark.identity): value})
        self._table = transaction.commit_transaction()
        self._sync()

    def _sync(self) -> None:
        """Make durable what PyIceberg has written, perhaps in a process that died before this."""
        if self._table.metadata_location != self._synced:
            sync_files(self._sink.storage(), self._newest_files())
            self._synced = self._table.metadata_location

    def _newest_files(self) -> Iterator[str]:
        """The files of the current snapshot, as URIs."""
        table = self._table
        yield table.metadata_location
        snapshot = table.current_snapshot()
        if snapshot is None:
            return
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                yield manifest.manifest_path
                if self._sink.mode == "upsert":
                    entries = manifest.fetch_manifest_entry(table.io)
                    yield from (entry.data_file.file_path for entry in entries)

    def _catalog(self) -> Any:
        if self._connected is None:
            with self._failures("find the catalog of"):
                self._connected = self._sink.load_catalog()
        return self._connected

    def _open(self) -> Any:
        exceptions = require("pyiceberg.exceptions", "iceberg", "IcebergSink")
        catalog = self._catalog()
        with self._failures("open"):
            try:
                return catalog.load_table(self._sink.table)
            except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
                return None

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        exceptions = require("pyiceberg.exceptions", "iceberg", "IcebergSink")
        try:
            yield
        except (ConfigurationError, ConflictError, SinkError):
            raise
        except exceptions.CommitFailedException as error:
            raise ConflictError(str(error)) from error
        except Exception as error:
            raise SinkError(
                f"{self._name}: cannot {what} the Iceberg table {self._sink.place}: "
                f"{type(error).__name__}: {self._sink.without_secrets(str(error))}"
            ) from error


@lru_cache(maxsize=8)
def _location(catalog: tuple[tuple[str, str], ...] | str, table: str) -> str:
    """Where a table is; asked once in each process that writes."""
    return str(_load(catalog).load_table(table).location()).rstrip("/")


def _load(catalog: tuple[tuple[str, str], ...] | str) -> Any:
    load_catalog = require("pyiceberg.catalog", "iceberg", "IcebergSink").load_catalog
    if isinstance(catalog, str):
        return load_catalog(catalog)
    properties = dict(catalog)
    return load_catalog(properties.pop("name", "default"), **properties)


class IcebergSink(TableSink):
    """Writes an Iceberg table; every row is in it once, from the snapshot its checkpoint made.

    Tasks write Parquet files below the table's location. When the checkpoint is complete the driver
    adds the files of its epochs as one snapshot of the table, and in the same commit sets a
    property that records the position of this sink of this job. Other programs may write to the
    table as well. A table belongs to one Turnback job; any other, such as a fork, is refused unless
    `take_over_sinks` is set. With `evolve_table` a column that is wider in the stream, such as
    bigint instead of int, is widened in the table.

    Args:
        catalog: The PyIceberg properties of the catalog, and its `name` if it is not "default"; or
            the name of a catalog in PyIceberg's own configuration on the driver and all executors.
            Properties may contain passwords: they are never stored or shown.
        table: Its name, as `namespace.table`; created with the columns of the stream if it does not
            exist. The namespace must exist.
        options: See `TableOptions`.

    Raises:
        ConfigurationError: An argument cannot be used, or `pyiceberg` is not installed.
    """

    kind = KIND

    def __init__(
        self, catalog: str | Mapping[str, str], table: str, **options: Unpack[TableOptions]
    ) -> None:
        super().__init__(**options)
        require("pyiceberg", "iceberg", "IcebergSink")
        if not isinstance(catalog, str | Mapping) or not catalog:
            raise self._refused("catalog must be the properties of a catalog, or the name of one")
        if not isinstance(table, str) or not all(table.split(".")) or "." not in table:
            raise self._refused(f"table must be 'namespace.table', not {table!r}")
        self.table = table
        self._catalog = catalog if isinstance(catalog, str) else tuple(sorted(catalog.items()))

    @property
    def place(self) -> str:
        return self.table

    def load_catalog(self) -> Any:
        """Connect to the catalog."""
        return _load(self._catalog)

    def without_secrets(self, text: str) -> str:
        """A message without the values of the catalog's properties."""
        values = () if isinstance(self._catalog, str) else [value for _, value in self._catalog]
        for value in sorted(map(str, values), key=len, reverse=True):
            if len(value) > 3:
                text = text.replace(value, "***")
        return text

    def storage(self) -> Storage:
        return storage_of(StorageRef(_location(self._catalog, self.table), self.options))

    def ownership(self, ctx: CommitterContext) -> Ownership | None:
        return super().ownership(ctx) if self.target(ctx).exists() else None

    def target(self, ctx: CommitterContext) -> IcebergTarget:
        return IcebergTarget(self, ctx)

    def layout(self, type: TypeInfo) -> Layout:
        staged = self.mode == "upsert"
        return Layout(
            kind=self.kind,
            storage=self.storage(),
            folder="data/",
            schema=iceberg_schema(type),
            partition_by=() if staged else self.partition_by,
            key=self.key,
            staged=staged,
        )

    def describe(self) -> dict[str, str]:
        described = {**self._described(), "table": self.table}
        if isinstance(self._catalog, str):
            described["catalog"] = self._catalog
        return described

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> IcebergSink | None:
        """Recreate a sink from what `describe` returned; None if only the program knows how."""
        if "catalog" not in description:
            return None
        return cls(description["catalog"], description["table"], **cls._arguments(description))

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r}, mode={self.mode!r})"


def iceberg_schema(type: TypeInfo) -> pa.Schema:
    """The schema of a stream in types that Iceberg has: no small integers, no nanoseconds."""
    return pa.schema([pa.field(f.name, _iceberg_type(f.type)) for f in stream_schema(type)])


def _lost_columns(table: Any, schema: pa.Schema) -> list[str]:
    """Columns that only the table has; PyIceberg replaces whole rows in an upsert."""
    names = [name for name in table.schema().column_names if "." not in name]
    return [
        f"column {name!r}, which only exists in the table, would lose its values in an upsert"
        for name in names
        if name not in schema.names
    ]


def _partition_columns(table: Any) -> tuple[str, ...] | None:
    """The columns that divide a table; None if they do so by a transform."""
    fields = table.spec().fields
    if any(str(field.transform) != "identity" for field in fields):
        return None
    return tuple(table.schema().find_column_name(field.source_id) for field in fields)


def _iceberg_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_int8(kind) or pt.is_int16(kind):
        return pa.int32()
    if pt.is_time64(kind):
        return pa.time64("us")
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, _iceberg_type(f.type)) for f in kind])
    if pt.is_map(kind):
        return pa.map_(_iceberg_type(kind.key_type), _iceberg_type(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(pa.field("element", _iceberg_type(kind.value_type)))
    return kind
