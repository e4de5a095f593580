"""`DeltaSink`: rows of a Delta Lake table, through delta-rs (the extra 'delta')."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from turnback.connectors.tables.compaction import TARGET_BYTES, Compaction, ConflictError
from turnback.connectors.tables.files import (
    ColumnChange,
    Layout,
    TableFile,
    column_changes,
    delta_stats,
    describe_problems,
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
from turnback.errors import ConfigurationError, NotFoundError, SinkError, TableChangedError
from turnback.sinks.base import CommitterContext, attempt_of, version_of
from turnback.sinks.ownership import SinkIdentity
from turnback.state.files import StorageRef, storage_of
from turnback.storage.base import Storage
from turnback.storage.local import LocalStorage
from turnback.values.columns import stream_schema
from turnback.values.typeinfo import TypeInfo

KIND = "delta"
_LOOK_BACK = 10
"""How many versions are made durable that others may have written, when a job starts."""
_HISTORY = 1000
"""How many versions are looked at for the join that published something."""
_DRIVER = ".driver"
_FENCE = ".fence"
_OWNER = "turnback.owner"
_NONCE = version_of(1, 0) - 1
"""Attempt and nonce of a driver are one number, as attempt and epoch are in a version."""


class DeltaTarget(TableTarget):
    """A Delta table. How far a sink is stands in its log as a transaction of the sink's app id.

    Others beside it say which driver wrote it, and what was rolled back. One that all sinks of
    Turnback have makes the commits of a job conflict with those of another that has taken the
    table over.
    """

    format = "Delta"
    elsewhere = "use another path"
    _sink: DeltaSink

    def __init__(self, sink: DeltaSink, ctx: CommitterContext) -> None:
        super().__init__(sink, ctx)
        self._delta = require("deltalake", "delta", "DeltaSink")
        self._directory_id = ctx.directory_id
        self._synced: int | None = None

    def _schema_of(self, type: TypeInfo) -> pa.Schema:
        schema = stream_schema(type)
        for field in schema:
            try:
                self._delta.Schema.from_arrow(pa.schema([field]))
            except Exception as error:
                raise ConfigurationError(
                    f"{self._name}: Delta has no type for column {field.name!r} ({field.type}); "
                    "convert it before the sink, for example a time of day to a string"
                ) from error
        return schema

    def _differences(self, table: Any, schema: pa.Schema) -> tuple[list[ColumnChange], list[str]]:
        changes = list(column_changes(schema, pa.schema(table.schema().to_arrow())))
        found = tuple(table.metadata().partition_columns)
        others = partition_differences(found, self._sink.partition_by)
        return changes, _unsupported(table) + others

    def _evolve(self, table: Any, changes: list[ColumnChange]) -> None:
        fields = pa.schema([pa.field(change.column, change.here) for change in changes])
        table.alter.add_columns(
            self._delta.Schema.from_arrow(fields).fields,
            commit_properties=self._delta.CommitProperties(custom_metadata=self._summary),
        )

    def _problems(self, changes: list[ColumnChange], others: list[str]) -> str:
        return describe_problems(changes, others, f"delta.`{self._sink.place}`")

    def create(self, type: TypeInfo) -> None:
        if self._open() is not None:
            return
        sink = self._sink
        schema = self._delta.Schema.from_arrow(stream_schema(type))
        try:
            with self._failures("create"):
                self._delta.DeltaTable.create(
                    sink.uri,
                    schema,
                    partition_by=list(sink.partition_by),
                    storage_options=sink.options or None,
                )
        except (ConflictError, SinkError):
            if self._open() is None:  # else another sink of the job was faster
                raise

    def look(self) -> None:
        with self._failures("read"):
            if self._table is None:
                self._table = self._open()
            else:
                self._table.update_incremental()
            if self._table is not None:
                self._require_same()
                self._sync()
                return
        raise SinkError(
            f"{self._name}: the Delta table at {self._sink.place} no longer exists. Restore it, "
            "or start the job again to create it"
        )

    def remembered(self, identity: SinkIdentity) -> Mark | None:
        app = self._key_of(identity)
        with self._failures("read"):
            version, driver, fence = (
                self._table.transaction_version(app + part) for part in ("", _DRIVER, _FENCE)
            )
        if version is None:
            return None
        if driver is None:  # written before targets were told of job directories
            return Mark(identity, int(version), attempt_of(int(version)))
        nonce = int(driver) & _NONCE
        short = f"{nonce:010x}" if nonce else ""
        return Mark(identity, int(version), attempt_of(int(driver)), short, int(fence or 0))

    def referenced(self, paths: Collection[str]) -> set[str]:
        with self._failures("read"):
            actions = pa.table(self._table.get_add_actions(flatten=True))
            return set(paths) & {unquote(path) for path in actions.column("path").to_pylist()}

    def append(self, files: Sequence[TableFile], mark: Mark, join: str = "") -> None:
        info = commit_marks(self._key_of(mark.identity), mark, join)
        self._append(files, mark, info)

    def mark(self, mark: Mark) -> None:
        self._append((), mark, who_commits(mark))

    def _append(self, files: Sequence[TableFile], mark: Mark, info: dict[str, str]) -> None:
        transaction = require("deltalake.transaction", "delta", "DeltaSink")
        now = int(time.time() * 1000)
        actions = [
            transaction.AddAction(file.path, file.length, file.partition, now, True, file.stats)
            for file in files
        ]
        with self._failures("commit to"):
            table = self._table
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                list(self._sink.partition_by),
                commit_properties=self._properties(mark, info),
            )
            self._table.update_incremental()
            self._sync()

    def _commits(self) -> Iterable[Mapping[str, Any]]:
        with self._failures("read the history of"):
            return list(self._table.history(_HISTORY))

    def _key_of(self, identity: SinkIdentity) -> str:
        place = f"{identity.directory_id}-" if identity.directory_id else ""
        return f"turnback-{place}{identity.job_id}-{identity.uid}"

    def merge(self, rows: pa.Table, mark: Mark) -> None:
        # Columns that only the table has keep their values.
        values = {f"`{name}`": f"new.`{name}`" for name in rows.column_names}
        same = " AND ".join(f"old.`{column}` = new.`{column}`" for column in self._sink.key)
        with self._failures("merge into"):
            self._table.merge(
                rows,
                same,
                source_alias="new",
                target_alias="old",
                commit_properties=self._properties(
                    mark, commit_marks(self._key_of(mark.identity), mark, "")
                ),
            ).when_matched_update(values).when_not_matched_insert(values).execute()
            self._sync()

    def version(self) -> str:
        return str(self._table.version())

    def plan_compaction(self) -> Compaction:
        with self._failures("read"):
            self._table = self._open()
            actions = self._table and pa.table(self._table.get_add_actions(flatten=True))
        if actions is None:
            raise SinkError(f"{self._name}: there is no Delta table at {self._sink.place}")
        return compaction_of(actions, self.version())

    def compact(self, alone: AbstractContextManager[Any]) -> int:
        # Files can be added while others are joined, but not rows replaced.
        held = alone if self._sink.mode == "upsert" else nullcontext()
        with held, self._failures("compact"):
            self._table.update_incremental()
            done = self._table.optimize.compact(
                target_size=TARGET_BYTES,
                commit_properties=self._delta.CommitProperties(custom_metadata=self._summary),
            )
            self._sync()
            return int(done["numFilesRemoved"])

    def _sync(self) -> None:
        """Make durable what delta-rs has written, perhaps in a process that died before this."""
        storage = self._sink.storage()
        newest = self._table.version()
        first = self._synced + 1 if self._synced is not None else max(0, newest - _LOOK_BACK)
        for version in range(first, newest + 1):
            entry = f"_delta_log/{version:020d}.json"
            try:
                files = [entry, *self._added_by_library(entry)]
                sync_files(storage, (f"{storage.uri}/{path}" for path in files))
            except (NotFoundError, FileNotFoundError):
                continue  # it is so old that it was cleaned up
        self._synced = newest

    def _added_by_library(self, entry: str) -> list[str]:
        """The files that a merge or a compaction has written; those of tasks are durable."""
        storage = self._sink.storage()
        if not isinstance(storage, LocalStorage):
            return []
        actions = [json.loads(line) for line in storage.get(entry).splitlines()]
        if self._sink.mode == "append" and not any("remove" in action for action in actions):
            return []
        return [unquote(action["add"]["path"]) for action in actions if "add" in action]

    def _open(self) -> Any:
        exceptions = require("deltalake.exceptions", "delta", "DeltaSink")
        sink = self._sink
        with self._failures("open"):
            try:
                return self._delta.DeltaTable(sink.uri, storage_options=sink.options or None)
            except exceptions.TableNotFoundError:
                return None

    def _properties(self, mark: Mark, info: dict[str, str]) -> Any:
        app = self._key_of(mark.identity)
        transaction = self._delta.Transaction
        if mark.identity.directory_id:
            driver = version_of(mark.attempt, int(mark.nonce or "0", 16))
            transactions = [
                transaction(app, mark.version),
                transaction(app + _DRIVER, driver),
                transaction(app + _FENCE, mark.fence),
            ]
        else:  # drivers that only know this one must be kept out by it
            transactions = [transaction(app, max(mark.version, mark.fence))]
        if self._directory_id:
            transactions.append(transaction(_OWNER, int(self._directory_id, 16)))
        return self._delta.CommitProperties(
            app_transactions=transactions, custom_metadata=self._summary | info
        )

    @contextmanager
    def _failures(self, what: str) -> Iterator[None]:
        exceptions = require("deltalake.exceptions", "delta", "DeltaSink")
        try:
            yield
        except TableChangedError:
            self._table = None
            raise
        except exceptions.CommitFailedError as error:
            self._table = None
            raise ConflictError(str(error).partition("\n")[0]) from error
        except Exception as error:
            self._table = None
            reason = str(error).partition("\n")[0]
            raise SinkError(
                f"{self._name}: cannot {what} the Delta table {self._sink.place}: {reason}"
            ) from error


class DeltaSink(TableSink):
    """Writes a Delta Lake table; every row is in it once, from the version its checkpoint made.

    Tasks write Parquet files below the table. When the checkpoint is complete the driver commits
    the files of its epochs as one version of the table, together with a transaction of the Delta
    log (`txn`) that records the position of this sink of this job. Other programs may write to the
    table as well. A table belongs to one Turnback job; any other, such as a fork, is refused unless
    `take_over_sinks` is set.

    An empty string in a partition column is null to readers, as Delta defines it.

    Args:
        path: The table: a directory that driver and executors share, or `s3://bucket/path`. Created
            with the columns of the stream if it does not exist.
        options: See `TableOptions`.

    Raises:
        ConfigurationError: An argument cannot be used, or `deltalake` is not installed.
    """

    kind = KIND

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[TableOptions]) -> None:
        super().__init__(**options)
        require("deltalake", "delta", "DeltaSink")
        self.uri = self._location(path)

    @property
    def place(self) -> str:
        return self.uri

    def storage(self) -> Storage:
        return storage_of(StorageRef(self.uri, self.options))

    def target(self, ctx: CommitterContext) -> DeltaTarget:
        return DeltaTarget(self, ctx)

    def layout(self, type: TypeInfo) -> Layout:
        schema = stream_schema(type)
        staged = self.mode == "upsert"
        # Values of partition columns are in the log, not in the files.
        dropped = () if staged else self.partition_by
        return Layout(
            kind=self.kind,
            storage=self.storage(),
            folder="",
            schema=pa.schema([field for field in schema if field.name not in dropped]),
            partition_by=dropped,
            dropped=dropped,
            key=self.key,
            staged=staged,
            stats=(lambda table: "") if staged else delta_stats,
        )

    def describe(self) -> dict[str, str]:
        return {**self._described(), ("uri" if "://" in self.uri else "path"): self.uri}

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> DeltaSink:
        return cls(description.get("path") or description["uri"], **cls._arguments(description))

    def unusable_here(self) -> str | None:
        if "://" in self.uri or Path(self.uri).is_dir():
            return None
        return (
            f"writes to {self.uri}, which does not exist on this machine. Run the command on a "
            "machine where it is mounted"
        )

    def _location(self, path: str | os.PathLike[str]) -> str:
        if not isinstance(path, str | os.PathLike):
            raise self._refused(f"path must be a string or a Path, not {path!r}")
        text = os.fspath(path)
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise self._refused(f"{text!r} is not a path")
        if "://" not in text:
            return str(Path(text).absolute())
        url = urlsplit(text)
        if url.scheme == "file" and url.netloc in ("", "localhost"):
            return unquote(url.path)
        if url.scheme != "s3":
            raise self._refused(f"{text!r} is neither a path nor s3://bucket/path")
        return text.rstrip("/")

    def __repr__(self) -> str:
        return f"DeltaSink({self.uri!r}, mode={self.mode!r})"


_ENFORCED = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""What makes a column depend on its writer; delta-rs does not check it in files it is handed."""


def _unsupported(table: Any) -> list[str]:
    """What a table asks of its writers that a sink cannot do."""
    configuration = table.metadata().configuration
    problems = [
        f"it has the constraint {key.removeprefix('delta.constraints.')!r}, which is not checked"
        for key in configuration
        if key.startswith("delta.constraints.")
    ]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        problems.append("its columns are mapped to other names (delta.columnMapping.mode)")
    for field in table.schema().fields:
        if any(key in _ENFORCED for key in field.metadata):
            problems.append(f"column {field.name!r} is generated or constrained by the table")
    return problems


def compaction_of(actions: pa.Table, version: str) -> Compaction:
    """Say what a compaction would do with the files of a table; `actions` has one row for each."""
    by = [name for name in actions.column_names if name.startswith("partition.")]
    small: dict[str, list[int]] = {}
    for row in actions.select([*by, "size_bytes"]).to_pylist():
        if row["size_bytes"] < TARGET_BYTES:
            small.setdefault(repr([row[name] for name in by]), []).append(row["size_bytes"])
    groups = [sizes for sizes in small.values() if len(sizes) > 1]
    joined = sum(map(len, groups))
    made = sum(1 + sum(sizes) // TARGET_BYTES for sizes in groups)
    return Compaction(
        files_before=actions.num_rows,
        files_after=actions.num_rows - joined + made,
        joined=joined,
        bytes=sum(map(sum, groups)),
        version=version,
    )
