"""`FileSink`: files that become visible when their checkpoint is complete."""

from __future__ import annotations

import errno
import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from turnback.connectors.files.partitions import partition_columns, parts, rest_of
from turnback.connectors.files.staging import (
    KIND,
    LeftFile,
    PublishRecord,
    StagedFile,
    all_homes,
    attempt_directories,
    attempt_directory,
    decode_files,
    encode_files,
    explain_files,
    left_files,
    new_name,
    staged_files,
    task_of,
    writer_id,
)
from turnback.errors import ConfigurationError, SinkError, StorageError
from turnback.sinks.base import (
    Committer,
    CommitterContext,
    GuardedWriter,
    Sink,
    SinkWriter,
    TransactionInfo,
    WriterContext,
    aborted_on_failure,
    promised_version,
    require_known_attempt,
    require_open,
    require_promised,
    sink_errors,
    sink_label,
    version_of,
)
from turnback.sinks.ownership import SUFFIX, Ownership, SinkIdentity, require_shared_target
from turnback.storage.base import TEMPORARY
from turnback.storage.directory import Access, make_directories, sync_directory, sync_upwards
from turnback.storage.local import LocalStorage
from turnback.values.columns import Batch, json_column, text_column

_ROW_GROUP_BYTES = 64 * 1024 * 1024
_ROW_GROUP_ROWS = 1_000_000
_HELD_BYTES = 128 * 1024 * 1024
"""How much a task of a partitioned sink keeps in memory before it writes files."""


class Encoder(ABC):
    """Writes one file, which it leaves open."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    def finish(self) -> None:
        """Write what is buffered and the format's end, if there is any."""
        return

    def abandon(self) -> None:
        """Forget the file: it is about to be removed."""
        return


class ParquetEncoder(Encoder):
    """Parquet, with batches gathered into row groups of a useful size."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, header: bool) -> None:
        self._writer = pq.ParquetWriter(file, schema)
        self._held: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= _ROW_GROUP_BYTES or self._rows >= _ROW_GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Keep the writer from adding a footer when it is collected."""
        self._held = []
        self._writer.is_open = False

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held), _ROW_GROUP_ROWS)
        self._held = []
        self._bytes = self._rows = 0


class JsonEncoder(Encoder):
    """One JSON object per line, in UTF-8."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, header: bool) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode_lines

    def write(self, batch: pa.RecordBatch) -> None:
        names = batch.schema.names
        columns = [json_column(c) for c in batch.columns]
        rows = [dict(zip(names, r, strict=True)) for r in zip(*columns, strict=True)]
        self._file.write(self._encode(rows))


class CsvEncoder(Encoder):
    """CSV in UTF-8, every string quoted so that an empty one differs from a null."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, header: bool) -> None:
        types = [text_column(pa.array([], field.type)).type for field in schema]
        self._schema = pa.schema(list(zip(schema.names, types, strict=True)))
        options = pacsv.WriteOptions(include_header=header, quoting_style="needed")
        self._writer = pacsv.CSVWriter(file, self._schema, write_options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [text_column(c) for c in batch.columns]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def finish(self) -> None:
        self._writer.close()


FORMATS: dict[str, Callable[[BinaryIO, pa.Schema, bool], Encoder]] = {
    "parquet": ParquetEncoder,
    "json": JsonEncoder,
    "csv": CsvEncoder,
}


class FileWriter(GuardedWriter):
    """Writes one hidden file, created with the first element.

    Args:
        sink: What is to be written, and where.
        ctx: Who writes.
        final: The path of the file when it is committed, relative to the sink's directory.
    """

    def __init__(self, sink: FileSink, ctx: WriterContext, final: str) -> None:
        super().__init__(ctx)
        self._root = sink.path
        self._format = sink.format
        self._header = sink.header
        self._final = final
        name = PurePosixPath(final).name
        self._staged = attempt_directory(sink.path, ctx) / (name + SUFFIX)
        self._file: BinaryIO | None = None
        self._encoder: Encoder | None = None
        self._rows = 0

    def _add(self, batch: Batch) -> None:
        arrow = batch.arrow
        if self._encoder is None:
            make_directories(self._staged.parent, Access.UMASK)
            require_shared_target(_storage(self._root), str(self._root), self._ctx)
            self._file = self._staged.open("xb")
            self._encoder = FORMATS[self._format](self._file, arrow.schema, self._header)
        self._encoder.write(arrow)
        self._rows += len(batch)

    def prepare(self) -> bytes | None:
        file = self.finish()
        if file is None:
            return None
        with self._failures():
            sync_upwards(self._staged.parent, self._root)
        return file.encode()

    def finish(self) -> StagedFile | None:
        """Make the content of the file durable, but not yet its name; None if there is none."""
        require_open(self._closed, self._name)
        self._closed = True
        file = self._file
        encoder = self._encoder
        if file is None or encoder is None:
            return None
        with self._failures():
            encoder.finish()
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
            file.close()
        epoch = self._ctx.epoch
        partition = self._ctx.partition
        staged = self._staged.relative_to(self._root).as_posix()
        return StagedFile(staged, self._final, length, self._rows, epoch, partition)

    def abort(self) -> None:
        self._closed = True
        if self._encoder is not None:
            self._encoder.abandon()
        if self._file is None:
            return
        # Closing flushes, which fails again when the disk is full; the file goes anyway.
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._staged.unlink(missing_ok=True)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Remove the file on any failure; errors of the system and of Arrow name the sink."""
        try:
            with aborted_on_failure(self):
                yield
        except OSError as error:
            raise SinkError(
                f"{self._name}: cannot write {self._staged}: {error.strerror or error}; the "
                f"unfinished file was removed"
            ) from error
        except pa.ArrowException as error:
            raise SinkError(
                f"{self._name}: cannot write {self._ctx.type} as {self._format}: {error}"
            ) from error


class PartitionedFileWriter(GuardedWriter):
    """Writes hidden files, one for each directory that rows belong to.

    Rows are kept until there are so many that they must be written, or the epoch ends. Then they
    are sorted by directory and written one file after the other: neither memory nor open files
    depend on the number of directories.
    """

    def __init__(self, sink: FileSink, ctx: WriterContext) -> None:
        super().__init__(ctx)
        self._sink = sink
        self._type = rest_of(ctx.type, sink.partition_by)
        self._name_of_task = new_name(sink.prefix, ctx, sink.format)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._current: FileWriter | None = None
        self._files: list[StagedFile] = []

    def _add(self, batch: Batch) -> None:
        self._held.append(batch.arrow)
        self._bytes += batch.arrow.nbytes
        if self._bytes >= _HELD_BYTES:
            self._write_held()

    def prepare(self) -> bytes | None:
        require_open(self._closed, self._name)
        with self._failures():
            if self._held:
                self._write_held()
            self._closed = True
            if not self._files:
                return None
            with sink_errors(f"{self._name}: cannot write {self._sink.path}", (OSError,)):
                sync_upwards(attempt_directory(self._sink.path, self._ctx), self._sink.path)
        return encode_files(self._files)

    def abort(self) -> None:
        self._closed = True
        self._held = []
        if self._current is not None:
            self._current.abort()
        for file in self._files:
            with suppress(OSError):
                (self._sink.path / file.staged).unlink(missing_ok=True)

    def _write_held(self) -> None:
        held = self._held
        self._held = []
        self._bytes = 0
        stem, _, extension = self._name_of_task.rpartition(".")
        for part in parts(held, self._sink.partition_by, self._name):
            name = f"{stem}-{len(self._files):06d}.{extension}"
            writer = FileWriter(self._sink, self._ctx, f"{part.directory}/{name}")
            self._current = writer
            for batch in part.rows.to_batches():
                writer.write(Batch(self._type, batch))
            file = writer.finish()
            self._current = None
            if file is not None:
                self._files.append(file)


_LOG = logging.getLogger(__name__)


class FileCommitter:
    """Renames staged files into place."""

    def __init__(self, root: Path, ctx: CommitterContext) -> None:
        self._root = root
        self._ctx = ctx
        self._name = sink_label(ctx.job, ctx.uid)
        home = attempt_directory(root, ctx)
        with self._failures("create", home):
            make_directories(home, Access.UMASK)
        self._check_inside(home)
        self._ownership = _ownership(root, ctx)
        self._published = PublishRecord(root, ctx.attempt)

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Rename files into place; one that is there already, or was and was taken, is done.

        1. find out which ones wait, before a record says that they may have been published
        2. record that they may be, then rename
        """
        files = [file for t in transactions for file in decode_files(t, self._ctx)]
        if not files:
            return
        self._ownership.check()
        waiting = [file for file in files if self._is_waiting(file)]
        with self._failures("record what is committed to", self._root):
            self._published.extend(waiting)
        for file in waiting:
            self._publish(file)
        # Also when all were there: the process that renamed them may have died before this.
        with self._failures("sync", self._root):
            self._sync_directories(files)
        self._remove_duplicates(files)

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Remove staged files; first record all of them, if their epoch may be published in part.

        One by one, the record would be written again for each, with all before it.
        """
        waiting: list[Path] = []
        left: dict[PurePosixPath, list[LeftFile]] = {}
        for file in [file for t in transactions for file in decode_files(t, self._ctx)]:
            staged = self._locate(file)
            with self._failures("find", staged), suppress(FileNotFoundError):
                length = staged.stat().st_size
                waiting.append(staged)
                if file.attempt is not None:
                    found = LeftFile(staged, length, file.attempt, file.epoch)
                    left.setdefault(file.home, []).append(found)
        for home, files in left.items():
            with self._failures("record what is removed from", self._root / home):
                self._published.drop(home, files)
        for staged in waiting:
            with self._failures("remove", staged):
                staged.unlink(missing_ok=True)

    def recover(self, pending: Sequence[bytes]) -> None:
        """Publish `pending`, and remove all else that older attempts of the job have staged.

        Also under other uids, and what the job staged before it was started afresh.
        """
        self.commit(pending)
        with self._failures("list", self._root):
            homes = all_homes(self._root, self._ctx)
        for home in homes:
            with self._failures("remove staged files in", home):
                self._roll_back(home)

    def _roll_back(self, home: Path) -> None:
        """Remove what attempts before this one have staged in one place; record it first."""
        older = [
            directory
            for directory in attempt_directories(self._root, home)
            if int(directory.name) < self._ctx.attempt
        ]
        files = [file for directory in older for file in staged_files(directory)]
        where = PurePosixPath(home.relative_to(self._root))
        self._published.drop(where, files)
        former = SinkIdentity.of(self._ctx).found_in(where)
        if files and former is not None and former.job_id != self._ctx.job_id:
            _LOG.warning(
                "%s: dropping %d files with %d bytes that sink %r had written but not published "
                "before the job was started fresh",
                self._name,
                len(files),
                sum(file.length for file in files),
                former.uid,
            )
        for directory in older:
            _remove_directory(directory)
        for path in home.iterdir():
            if path.name.startswith(TEMPORARY) and not path.is_symlink():
                path.unlink(missing_ok=True)

    def abort_orphans(self, known: Sequence[bytes]) -> None:
        retained = {self._root / file.staged for t in known for file in decode_files(t, self._ctx)}
        home = attempt_directory(self._root, self._ctx)
        with self._failures("clean", home):
            for path in list(home.iterdir()):
                if path not in retained and task_of(path.name) is not None:
                    path.unlink(missing_ok=True)

    def _is_waiting(self, file: StagedFile) -> bool:
        """Return whether a file is to be published; False if that has been done."""
        staged = self._locate(file)
        final = self._root / file.final
        with self._failures("commit", staged):
            try:
                length = staged.stat().st_size
            except FileNotFoundError:
                if final.is_file() or self._published.covers(file):
                    return False
                raise self._lost(file) from None
        if length != file.length:
            raise SinkError(
                f"{self._name}: {staged} has {length} bytes, but {file.length} were written; "
                "another program changed it, so it has not been committed"
            )
        return True

    def _publish(self, file: StagedFile) -> None:
        staged = self._root / file.staged
        final = self._root / file.final
        with self._failures("commit", staged):
            try:
                self._rename(staged, final)
            except FileNotFoundError:
                if not final.is_file():
                    raise self._lost(file) from None

    def _rename(self, staged: Path, final: Path) -> None:
        """Give a file its name, in a directory that is made for it unless it is the sink's."""
        if final.parent != self._root:
            make_directories(final.parent, Access.UMASK)
            self._check_inside(final.parent)
        try:
            staged.rename(final)
        except FileNotFoundError:
            # A reader that takes files away may also remove the directory that it has emptied.
            if final.parent.is_dir() or not staged.exists():
                raise
            make_directories(final.parent, Access.UMASK)
            staged.rename(final)

    def _sync_directories(self, files: Sequence[StagedFile]) -> None:
        """Make the names of files durable, in directories that readers may have removed."""
        folders = {folder for file in files for folder in PurePosixPath(file.final).parents}
        inner = folders - {PurePosixPath()}
        for folder in sorted(inner, key=lambda folder: len(folder.parts), reverse=True):
            with suppress(FileNotFoundError):
                sync_directory(self._root / folder)
        sync_directory(self._root)

    def _lost(self, file: StagedFile) -> SinkError:
        return SinkError(
            f"{self._name}: {file.rows} rows of epoch {file.epoch} are lost: neither "
            f"{self._root / file.staged} nor {self._root / file.final} exists. It may have been "
            "removed by hand, or the sink's path may have changed. Restore it, or start from an "
            "earlier checkpoint"
        )

    def _locate(self, file: StagedFile) -> Path:
        staged = self._root / file.staged
        self._check_inside(staged.parent)
        return staged

    def _check_inside(self, directory: Path) -> None:
        """Refuse to follow a link out of the sink's directory."""
        with self._failures("find", directory):
            inside = directory.resolve().is_relative_to(self._root.resolve())
        if not inside:
            raise SinkError(
                f"{self._name}: {directory} is a link that leads out of {self._root}; remove it"
            )

    def _remove_duplicates(self, files: Sequence[StagedFile]) -> None:
        """Remove what other attempts of the same tasks have staged."""
        tasks: dict[Path, set[tuple[int, int]]] = {}
        for file in files:
            directory = (self._root / file.staged).parent
            tasks.setdefault(directory, set()).add((file.epoch, file.partition))
        for directory, done in tasks.items():
            with self._failures("clean", directory), suppress(FileNotFoundError):
                for path in list(directory.iterdir()):
                    if task_of(path.name) in done:
                        path.unlink(missing_ok=True)

    @contextmanager
    def _failures(self, what: str, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            why = getattr(error, "strerror", None) or error
            raise SinkError(f"{self._name}: cannot {what} {path}: {why}") from error


class _KnownFiles:
    """What the sinks of a job have published, against what its job directory knows of.

    Whatever they are called: a job directory that was restored from a backup may not know what they
    were called later. Without a job directory, or before the job exists, nothing is checked.
    `before` is the job that the directory belonged to until now, if it was in the same job
    directory.
    """

    def __init__(self, root: Path, ctx: CommitterContext, before: str) -> None:
        self._root = root
        self._ctx = ctx
        self._before = before
        self._published = PublishRecord(root, ctx.attempt)

    def check(self) -> None:
        """Refuse a directory with files that a restored job directory does not know of."""
        for home in self._homes():
            newest = self._newest(home)
            if newest is not None:
                attempt, epoch = newest
                require_known_attempt(self._ctx, attempt, "", str(self._root))
                require_promised(self._ctx, version_of(attempt, epoch), str(self._root))

    def forget_others(self) -> None:
        """Let the job go on with what is there: what it does not know of, it writes again."""
        for home in self._homes():
            while (newest := self._newest(home)) is not None:
                attempt, epoch = newest
                version = version_of(attempt, epoch)
                known = promised_version(self._ctx, version)
                if self._ctx.attempts is not None and self._ctx.attempts.nonce_of(attempt) is None:
                    self._cut(home, attempt, None)
                    continue
                if known < version:
                    self._cut(home, attempt, known - version_of(attempt, 0) if known else None)
                break

    def _homes(self) -> list[PurePosixPath]:
        """Where sinks of this job directory have their records."""
        if not self._ctx.directory_id or not self._ctx.job_id:
            return []
        own = SinkIdentity.of(self._ctx).home
        folders = {own.parent}
        if self._before:
            folders.add(SinkIdentity.of(replace(self._ctx, job_id=self._before)).home.parent)
        homes = {own}
        with self._errors("list"):
            for folder in folders:
                if (self._root / folder).is_dir():
                    homes |= {folder / home.name for home in (self._root / folder).iterdir()}
        return sorted(homes)

    def _newest(self, home: PurePosixPath) -> tuple[int, int] | None:
        with self._errors("read"):
            return self._published.newest(home)

    def _cut(self, home: PurePosixPath, attempt: int, epoch: int | None) -> None:
        with self._errors("change"):
            self._published.cut(home, attempt, epoch)

    def _errors(self, what: str) -> AbstractContextManager[None]:
        name = sink_label(self._ctx.job, self._ctx.uid)
        what = f"{name}: cannot {what} the record of files in {self._root}"
        return sink_errors(what, (OSError, StorageError))


def _ownership(root: Path, ctx: CommitterContext) -> Ownership:
    return Ownership(_storage(root), str(root), ctx)


def _storage(root: Path) -> LocalStorage:
    return LocalStorage(root, Access.UMASK)


def _remove_directory(directory: Path) -> None:
    """Remove a flat directory; what a dying task still adds is left to the next attempt."""
    for path in list(directory.iterdir()):
        path.unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


class FileSink(Sink):
    """Writes files into a directory, each visible once and only when its checkpoint is complete.

    Tasks write hidden files below `<path>/.turnback`; a commit renames them to
    `<prefix>-<epoch>-<partition>-<unique>.<format>`. No reader that looks for `*.parquet`,
    `*.json` or `*.csv`, however deep, and no reader that skips hidden names, as Spark and Arrow do,
    sees an unfinished or uncommitted one. A reader may move or delete what it has read.

    A directory belongs to one job, whose sinks can share it: the first job that writes there is
    recorded in it, and any other, such as a fork, is refused unless `take_over_sinks` is set; so is
    a job directory that was restored from a backup and lacks the record of what it published. The
    directory must be on a file system that the driver and all executors mount at the same path, and
    that has atomic renames and hard links.

    Formats (a stream that is not of rows has one column, `value`):

    - `parquet`: every type as it is.
    - `json`: one object per line. Dates, times and timestamps in ISO 8601 (`Z` for instants, no
      zone for local ones), bytes in base64, decimals as strings so that no digit is lost, NaN and
      the infinities as `"NaN"`, `"Infinity"`, `"-Infinity"`, rows and maps as objects.
    - `csv`: a null is empty, every string is quoted (an empty one is `""`). Text of other types as
      in `json`, except that NaN and the infinities are `nan`, `inf` and `-inf`; rows, lists and
      maps are JSON in one field. A quote inside of quotes is doubled and lines may be broken inside
      of them: for Spark's reader, `escape='"'`, `multiLine=True`, `nanValue="nan"`,
      `positiveInf="inf"`, `negativeInf="-inf"`, and `unbase64` on columns of bytes.

    With `partition_by`, files are in directories such as `day=2026-11-18/hour=7`, as Hive and Spark
    name them, and do not contain these columns. A null, and also an empty string, is
    `__HIVE_DEFAULT_PARTITION__`, which readers take for a null; special characters are escaped
    (`%3A`). Each task writes one file per directory and epoch, and more if it writes over 128 MB.
    Give readers the types of the columns, or they guess: the string `07` would be a number.

    Args:
        path: The directory, relative to the driver's working directory; created if it does not
            exist.
        format: "parquet", "json" or "csv".
        prefix: The prefix of file names.
        header: Whether each CSV file starts with the names of the columns.
        partition_by: Columns of strings, integers, booleans or dates, the outermost directory
            first.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str = "parquet",
        *,
        prefix: str = "part",
        header: bool = True,
        partition_by: str | Sequence[str] = (),
    ) -> None:
        if not isinstance(format, str) or format not in FORMATS:
            raise ConfigurationError(
                f"FileSink: unknown format {format!r}; available: {', '.join(sorted(FORMATS))}"
            )
        if not isinstance(header, bool):
            raise ConfigurationError(f"FileSink: header must be True or False, not {header!r}")
        self.path = _directory(path)
        self.format = format
        self.prefix = _prefix(prefix)
        self.header = header
        self.partition_by = partition_columns(partition_by)

    def writer(self, ctx: WriterContext) -> SinkWriter:
        if self.partition_by:
            return PartitionedFileWriter(self, ctx)
        return FileWriter(self, ctx, new_name(self.prefix, ctx, self.format))

    def check_target(self, ctx: CommitterContext) -> None:
        self._checked(ctx)

    def acquire_target(self, ctx: CommitterContext) -> None:
        known = self._checked(ctx)
        _ownership(self.path, ctx).acquire_target()
        if ctx.take_over:
            known.forget_others()

    def _checked(self, ctx: CommitterContext) -> _KnownFiles:
        _check_directory(self.path)
        if self.partition_by and ctx.type is not None:
            rest_of(ctx.type, self.partition_by)
        ownership = _ownership(self.path, ctx)
        ownership.check_target()
        known = _KnownFiles(self.path, ctx, ownership.job_before())
        known.check()
        return known

    def committer(self, ctx: CommitterContext) -> Committer:
        """Rename files into place; creates the directories, so a bad path fails at the start."""
        _check_directory(self.path)
        return FileCommitter(self.path, ctx)

    def describe(self) -> dict[str, str]:
        description = {
            "kind": KIND,
            "path": str(self.path),
            "format": self.format,
            "prefix": self.prefix,
            "header": str(self.header).lower(),
        }
        if self.partition_by:
            description["partition_by"] = json.dumps(self.partition_by)
        return description

    @classmethod
    def from_description(cls, description: Mapping[str, str]) -> FileSink:
        if "path" not in description:
            raise ConfigurationError("the description of a file sink has no path")
        try:
            columns = json.loads(description.get("partition_by", "[]"))
        except ValueError as error:
            raise ConfigurationError(
                f"the description of a file sink has no columns in partition_by: {error}"
            ) from None
        return cls(
            description["path"],
            description.get("format", "parquet"),
            prefix=description.get("prefix", "part"),
            header=description.get("header", "true") == "true",
            partition_by=columns,
        )

    def unusable_here(self) -> str | None:
        if self.path.is_dir():
            return None
        return (
            f"writes to {self.path}, which does not exist on this machine. Run the command on a "
            "machine where it is mounted"
        )

    def explain(self, transaction: bytes, ctx: CommitterContext) -> TransactionInfo:
        return explain_files(decode_files(transaction, ctx), self.path)

    def list_orphans(self, ctx: CommitterContext) -> Iterable[TransactionInfo]:
        try:
            files = list(left_files(self.path, ctx))
        except OSError as error:
            raise SinkError(
                f"cannot list its staged files in {self.path}: {error.strerror or error}"
            ) from error
        tasks: dict[str, list[LeftFile]] = {}
        for file in files:
            tasks.setdefault(writer_id(str(file.path)), []).append(file)
        return [_left_by(task, left) for task, left in tasks.items()]

    def __repr__(self) -> str:
        return f"FileSink({str(self.path)!r}, {self.format!r})"


def _left_by(task: str, files: Sequence[LeftFile]) -> TransactionInfo:
    """Describe what a task has staged."""
    first = files[0]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return TransactionInfo(
        what=f"{first.path.name}{more} of attempt {first.attempt}",
        id=task,
        epoch=first.epoch,
        bytes=sum(file.length for file in files),
        path=str(first.path),
    )


def _directory(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"FileSink: path must be a string or a Path, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ConfigurationError(f"FileSink: {text!r} is not a path")
    if "://" in text:
        url = urlsplit(text)
        if url.scheme != "file" or url.netloc not in ("", "localhost"):
            raise ConfigurationError(
                f"FileSink: {text!r} is not in a mounted file system that can rename files; use "
                "a path or file:///path"
            )
        text = unquote(url.path)
    directory = Path(text).absolute()
    _check_directory(directory)
    return directory


def _check_directory(path: Path) -> None:
    try:
        for part in (path, *path.parents):
            if part.exists() and not part.is_dir():
                raise ConfigurationError(f"FileSink: {part} is a file; it must be a directory")
    except OSError as error:
        raise ConfigurationError(f"FileSink: cannot use {path}: {error.strerror}") from error


def _prefix(prefix: str) -> str:
    if not isinstance(prefix, str):
        raise ConfigurationError(f"FileSink: prefix must be a string, not {prefix!r}")
    if not prefix or prefix[0] in "._" or "/" in prefix or not prefix.isprintable():
        raise ConfigurationError(
            f"FileSink: {prefix!r} cannot begin a file name; it must not be empty, hidden (a "
            "leading '.' or '_') or contain a '/'"
        )
    if len(prefix.encode()) > 100:
        raise ConfigurationError("FileSink: prefix is longer than 100 bytes")
    return prefix
