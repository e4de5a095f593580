"""File formats: each writes record batches to an open binary file."""

from collections.abc import Callable
from typing import BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from turnback.sinks.cells import json_column, text_column, text_type

_ROW_GROUP_BYTES = 64 * 1024 * 1024
_ROW_GROUP_ROWS = 1_000_000


class Encoder(Protocol):
    """Writes one file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    def finish(self) -> None:
        """Write what is buffered and the format's end, if it has one; leaves the file open."""

    def abandon(self) -> None:
        """Forget the file: it is about to be removed."""


class ParquetEncoder:
    """Parquet, with batches gathered into row groups of a useful size."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, header: bool) -> None:
        self._writer = pq.ParquetWriter(file, schema)
        self._held: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._held.append(batch)
        self._bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._bytes >= _ROW_GROUP_BYTES or self._rows >= _ROW_GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        """Write the last row group and the footer."""
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


class JsonEncoder:
    """One JSON object per line, in UTF-8."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, header: bool) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode_lines

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        names = batch.schema.names
        columns = [json_column(c) for c in batch.columns]
        rows = [dict(zip(names, r, strict=True)) for r in zip(*columns, strict=True)]
        self._file.write(self._encode(rows))

    def finish(self) -> None:
        """Nothing is buffered."""

    def abandon(self) -> None:
        """Nothing is held."""


class CsvEncoder:
    """CSV in UTF-8, every string quoted so that an empty one differs from a null."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, header: bool) -> None:
        self._schema = pa.schema([(f.name, text_type(f.type)) for f in schema])
        options = pacsv.WriteOptions(include_header=header, quoting_style="needed")
        self._writer = pacsv.CSVWriter(file, self._schema, write_options=options)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        columns = [text_column(c) for c in batch.columns]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def finish(self) -> None:
        """Write what is buffered."""
        self._writer.close()

    def abandon(self) -> None:
        """Nothing is held."""


FORMATS: dict[str, Callable[[BinaryIO, pa.Schema, bool], Encoder]] = {
    "parquet": ParquetEncoder,
    "json": JsonEncoder,
    "csv": CsvEncoder,
}
