"""What sinks for table formats have in common: arguments, claims, and the check of schemas."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from turnback.connectors.tables.committer import (
    Mark,
    TableCommitter,
    TableTarget,
    forget_unknown_output,
    require_known_output,
    who_commits,
)
from turnback.connectors.tables.compaction import BackgroundCompaction, Compaction, compact_table
from turnback.connectors.tables.files import FileNames, Layout, TableTransaction, TableWriter
from turnback.connectors.tables.stats import is_partitionable
from turnback.core.errors import ConfigurationError, SinkError, StorageError
from turnback.core.units import parse_size
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    name_sink,
)
from turnback.sinks.identity import SinkIdentity
from turnback.sinks.ownership import Ownership
from turnback.storage.base import Storage
from turnback.storage.directory import sync_directory
from turnback.storage.local import LocalStorage
from turnback.values.columns import stream_schema
from turnback.values.typeinfo import TypeInfo

_MOST = 1000
"""Checkpoints hold what waits, so there has to be an end to it."""

_MOST_FILES = 1_000_000
_APP = "turnback.app"
_VERSION = "turnback.version"
_JOIN = "turnback.join"


class TableSink(Sink):
    """A sink for a table in an open format.

    Attributes:
        mode: "append" or "upsert".
        partition_by: Columns that divide the table.
        key: Columns that identify a row, in mode "upsert".
        write_every: After how many checkpoints the table is written.
        write_bytes: How much output may wait for that.
        compact_files: After how many new files the table is compacted.
        evolve_table: Whether the table gets the stream's new columns.
    """

    kind: str

    def __init__(
        self,
        mode: str,
        partition_by: Sequence[str],
        key: Sequence[str],
        write_every: int,
        write_bytes: int | str | None,
        compact_files: int | None,
        evolve_table: bool,
    ) -> None:
        self.partition_by = self._columns("partition_by", partition_by)
        self.key = self._columns("key", key)
        self.mode = mode
        if mode not in ("append", "upsert"):
            raise self._refused(f"mode is 'append' or 'upsert', not {mode!r}")
        if (mode == "upsert") != bool(self.key):
            raise self._refused("mode='upsert' and key go together: give both, or none")
        self.write_every = self._count("write_every", write_every, "checkpoints")
        self.write_bytes = self._bytes("write_bytes", write_bytes)
        self.compact_files = compact_files
        self.evolve_table = evolve_table
        if not isinstance(evolve_table, bool):
            raise self._refused(f"evolve_table is True or False, not {evolve_table!r}")
        if compact_files is not None:
            self._count("compact_files", compact_files, "files", least=2, most=_MOST_FILES)
        if self.write_bytes is not None and self.write_every == 1:
            raise self._refused(
                "write_bytes needs write_every: it says after how many checkpoints rows are "
                "written if fewer bytes come, for example write_every=30"
            )

    @property
    def needs_checkpoints(self) -> bool:  # type: ignore[override]
        # Between two writes nothing but checkpoints remembers what waits.
        return self.write_every > 1

    # -- what a format adds

    @abstractmethod
    def target(self, ctx: CommitterContext) -> TableTarget:
        """The table, for the driver."""

    @abstractmethod
    def storage(self) -> Storage:
        """The table's directory."""

    @abstractmethod
    def layout(self, type: TypeInfo) -> Layout:
        """How tasks write."""

    @property
    @abstractmethod
    def place(self) -> str:
        """What messages call the table."""

    def ownership(self, ctx: CommitterContext) -> Ownership | None:
        """The record of the job that the table belongs to; None if there is no table yet."""
        return Ownership(self.storage(), self.place, ctx)

    # -- the sink

    def writer(self, ctx: WriterContext) -> SinkWriter:
        return TableWriter(self.layout(ctx.type), ctx)

    def check_claim(self, ctx: CommitterContext) -> None:
        self._check_claim(ctx)

    def _check_claim(self, ctx: CommitterContext) -> str:
        """Check everything; returns the job in this job directory that the table belongs to."""
        self._check_columns(ctx)
        ownership = self.ownership(ctx)
        before = ""
        if ownership is not None:
            ownership.check_claim()
            before = ownership.job_before()
        target = self.target(ctx)
        target.check(ctx.type)
        if target.exists():
            target.look()
            require_known_output(target, ctx, self.place, before)
        return before

    def claim(self, ctx: CommitterContext) -> None:
        before = self._check_claim(ctx)
        target = self.target(ctx)
        if ctx.type is not None:
            target.create(ctx.type)
        ownership = self.ownership(ctx)
        if ownership is not None:
            ownership.claim()
        if ctx.take_over and target.exists():
            forget_unknown_output(target, ctx, self.place, before)

    def committer(self, ctx: CommitterContext) -> Committer:
        target = self.target(ctx)
        if ctx.type is not None:
            target.create(ctx.type)
            target.check(ctx.type)
        return TableCommitter(
            target,
            self.storage(),
            ctx,
            kind=self.kind,
            place=self.place,
            key=self.key,
            write_every=self.write_every,
            write_bytes=self.write_bytes,
            compaction=self._background(ctx),
        )

    def compact(
        self,
        ctx: CommitterContext,
        *,
        dry_run: bool = False,
        alone: AbstractContextManager[Any] | None = None,
    ) -> Compaction:
        """Join small files of the table, also while the job runs; see `compact_table`."""
        ownership = self.ownership(ctx)
        if ownership is not None:
            ownership.check_claim()
        name = name_sink(ctx.job, ctx.uid)
        return compact_table(self.target(ctx), name, self.place, dry_run=dry_run, alone=alone)

    def _background(self, ctx: CommitterContext) -> BackgroundCompaction | None:
        if self.compact_files is None:
            return None
        name = name_sink(ctx.job, ctx.uid)
        return BackgroundCompaction(
            self.compact_files, lambda alone: self.compact(ctx, alone=alone), name
        )

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return TableTransaction.decode(self.kind, transaction, ctx).explain(self.place, ctx)

    def left_behind(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        own = SinkIdentity.of(ctx)
        found = {}
        try:
            for names in map(FileNames, {own, own.without_directory}):
                for path in self.storage().list(names.home):
                    task = names.task_of(path)
                    if task is not None:
                        found[task[0]] = TransactionInfo(
                            what=f"files of attempt {names.attempt_of(path)} for {self.place}",
                            id=task[0],
                            epoch=task[1],
                        )
        except StorageError as error:
            raise SinkError(
                f"what it has written below {self.place} cannot be listed: {error}"
            ) from error
        return found.values()

    def _check_columns(self, ctx: CommitterContext) -> None:
        """Refuse columns that a stream does not have, or that cannot do what they should."""
        if ctx.type is None:
            return
        schema = stream_schema(ctx.type)
        for argument, columns in (("partition_by", self.partition_by), ("key", self.key)):
            for column in columns:
                if column not in schema.names:
                    raise self._refused(
                        f"{argument} names {column!r}, which the stream does not have; its columns "
                        f"are {', '.join(schema.names)}"
                    )
                kind = schema.field(column).type
                if not is_partitionable(kind):
                    raise self._refused(
                        f"{argument} names {column!r}, which is of type {kind}; use "
                        "strings, integers, booleans, dates or timestamps"
                    )
        if self.partition_by and set(schema.names) == set(self.partition_by):
            raise self._refused("a table needs a column that is not in partition_by")

    def _columns(self, argument: str, columns: Sequence[str]) -> tuple[str, ...]:
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(
            names
        ):
            raise self._refused(f"{argument} is names of columns, each once, not {columns!r}")
        return names

    def _count(
        self, argument: str, value: int, what: str, least: int = 1, most: int = _MOST
    ) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self._refused(
                f"{argument} is a number of {what}, {least} to {most}, not {value!r}"
            )
        return value

    def _bytes(self, argument: str, value: int | str | None) -> int | None:
        if value is None:
            return None
        size = parse_size(value, f"{type(self).__name__}: {argument}")
        if not size:
            raise self._refused(f"{argument} is a size above 0, for example '256 mb'")
        return size

    def _described(self) -> dict[str, str]:
        """What descriptions of all formats have, for `_arguments`."""
        described = {
            "kind": self.kind,
            "mode": self.mode,
            "partition_by": json.dumps(self.partition_by),
            "key": json.dumps(self.key),
        }
        if self.write_every > 1:
            described["write_every"] = str(self.write_every)
        if self.write_bytes is not None:
            described["write_bytes"] = str(self.write_bytes)
        if self.evolve_table:
            described["evolve_table"] = "true"
        if self.compact_files is not None:
            described["compact_files"] = str(self.compact_files)
        return described

    @staticmethod
    def _arguments(description: Mapping[str, str]) -> dict[str, Any]:
        """The arguments that `_described` has described."""
        size = description.get("write_bytes")
        files = description.get("compact_files")
        return {
            "partition_by": json.loads(description.get("partition_by", "[]")),
            "mode": description.get("mode", "append"),
            "key": json.loads(description.get("key", "[]")),
            "write_every": int(description.get("write_every", 1)),
            "write_bytes": None if size is None else int(size),
            "evolve_table": "evolve_table" in description,
            "compact_files": None if files is None else int(files),
        }

    def _refused(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"{type(self).__name__}: {reason}")


def commit_marks(app: str, mark: Mark, join: str) -> dict[str, str]:
    """What a commit says about itself, to people and for `found_join`."""
    return {_APP: app, _JOIN: join, **who_commits(mark)}


def found_join(commits: Iterable[Mapping[str, Any]], app: str, version: int) -> str | None:
    """Find which join published a number; `commits` are what they say, newest first.

    None if they do not reach back that far.
    """
    found = None
    for commit in commits:
        if commit.get(_APP) == app:
            number = int(commit[_VERSION])
            if number >= version:
                found = commit[_JOIN]
            if number <= version:
                return found
    return None


def sync_files(storage: Storage, uris: Iterable[str]) -> None:
    """Make files durable that a library has written to a table on a mounted file system.

    Libraries of table formats do not; object stores need nothing of the kind.
    """
    if not isinstance(storage, LocalStorage):
        return
    folders = set()
    for uri in uris:
        path = Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)
        with path.open("rb") as file:
            os.fsync(file.fileno())
        folders.add(path.parent)
    for folder in folders:
        sync_directory(folder)
