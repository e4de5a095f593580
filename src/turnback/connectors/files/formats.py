"""What tasks write for a `FileSink`: a hidden file each, as Parquet, JSON lines or CSV."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from turnback.connectors.files.staging import StagedFile, attempt_directory, new_name
from turnback.core.errors import SinkError
from turnback.sinks.base import (
    SinkWriter,
    WriterContext,
    aborted_on_failure,
    name_sink,
    require_open,
)
from turnback.sinks.ownership import SUFFIX
from turnback.storage.directory import Access, make_directories, sync_upwards
from turnback.values.columns import Batch
from turnback.values.plain_values import json_column, text_column

_ROW_GROUP_BYTES = 64 * 1024 * 1024
_ROW_GROUP_ROWS = 1_000_000


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


class FileWriter(SinkWriter):
    """Writes one hidden file, created with the first element."""

    def __init__(
        self, root: Path, format_name: str, prefix: str, header: bool, ctx: WriterContext
    ) -> None:
        self._root = root
        self._format = format_name
        self._header = header
        self._ctx = ctx
        self._name = name_sink(ctx.job, ctx.uid)
        self._final = new_name(prefix, ctx, format_name)
        self._staged = attempt_directory(root, ctx) / (self._final + SUFFIX)
        self._file: BinaryIO | None = None
        self._encoder: Encoder | None = None
        self._rows = 0
        self._closed = False

    def write(self, batch: Batch) -> None:
        require_open(self._closed, self._name)
        if not len(batch):
            return
        with self._failures():
            arrow = batch.arrow
            if self._encoder is None:
                make_directories(self._staged.parent, Access.UMASK)
                self._file = self._staged.open("xb")
                self._encoder = FORMATS[self._format](self._file, arrow.schema, self._header)
            self._encoder.write(arrow)
        self._rows += len(batch)

    def prepare(self) -> bytes | None:
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
            sync_upwards(self._staged.parent, self._root)
        epoch = self._ctx.epoch
        partition = self._ctx.partition
        staged = self._staged.relative_to(self._root).as_posix()
        return StagedFile(staged, self._final, length, self._rows, epoch, partition).encode()

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
                f"{self._name}: {self._ctx.type} cannot be written as {self._format}: {error}"
            ) from error
