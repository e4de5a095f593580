"""Sources of `LocalEngine`: elements pushed by a test, lists, and directories of files."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from turnback.api.environment import StreamExecutionEnvironment
from turnback.api.stream import DataStream
from turnback.core.errors import PlanError, StateError
from turnback.spark.sources import CollectionReader
from turnback.types.columns import Batch, stream_columns, stream_schema
from turnback.types.hints import as_type
from turnback.types.typeinfo import TypeInfo

Batches = list[pa.RecordBatch]


class SourceReader(ABC):
    """Reads one stream in one attempt; positions are written as Spark writes them."""

    @abstractmethod
    def restore(self, offset: str, entries: Sequence[str]) -> None:
        """Go on from a position, with the list of files seen that belongs to it."""

    @abstractmethod
    def end_here(self) -> None:
        """Read no more than what is there now."""

    @abstractmethod
    def read(self) -> Batches:
        """The next elements; each batch becomes a task."""

    @property
    @abstractmethod
    def offset(self) -> str | None:
        """The position after what was read; None before anything was."""

    def entries(self, after: int, upto: int) -> list[str] | None:
        """What was added to its list of files seen; None if it keeps none."""
        return None


class LocalSource(ABC):
    """What `LocalEngine` reads, where Spark has a streaming DataFrame."""

    isStreaming = True  # noqa: N815 - Spark's name

    def __init__(self, type: TypeInfo) -> None:
        self.schema = type

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return [name for name, _ in stream_columns(self.schema)]

    @abstractmethod
    def reader(self) -> SourceReader:
        """A reader that begins at the beginning."""


class PushedElements(LocalSource):
    """Elements that a test has pushed so far; it outlives drivers, as a message broker does."""

    def __init__(self, uid: str, type: TypeInfo) -> None:
        super().__init__(type)
        self.uid = uid
        self._batches: Batches = []

    def push(self, elements: Sequence[Any]) -> None:
        """Add elements.

        Raises:
            ElementTypeError: One is none of the stream's type.
        """
        self._batches.append(Batch(self.schema, list(elements)).arrow)

    def batches(self) -> Batches:
        return list(self._batches)

    def reader(self) -> SourceReader:
        return _PushedReader(self)


class _PushedReader(SourceReader):
    def __init__(self, source: PushedElements) -> None:
        self._source = source
        self._next = 0
        self._end: int | None = None

    def restore(self, offset: str, entries: Sequence[str]) -> None:
        self._next = json.loads(offset)["pushes"]
        if self._next > len(self._source.batches()):
            raise StateError(
                f"source {self._source.uid!r}: {self._next} pushes were read before, and this "
                f"harness has had {len(self._source.batches())}. Push the same again, or start "
                "the job afresh"
            )

    def end_here(self) -> None:
        self._end = len(self._source.batches())

    def read(self) -> Batches:
        pushed = self._source.batches()[self._next : self._end]
        self._next += len(pushed)
        return [batch for batch in pushed if batch.num_rows]

    @property
    def offset(self) -> str | None:
        return json.dumps({"pushes": self._next})


class ListSource(LocalSource):
    """The elements of a list."""

    def __init__(self, type: TypeInfo, data: str) -> None:
        super().__init__(type)
        self._data = data

    def reader(self) -> SourceReader:
        return _ListReader(CollectionReader(self._data), stream_schema(self.schema))


class _ListReader(SourceReader):
    def __init__(self, reader: CollectionReader, schema: pa.Schema) -> None:
        self._reader = reader
        self._schema = schema
        self._at = reader.initialOffset()

    def restore(self, offset: str, entries: Sequence[str]) -> None:
        self._at = json.loads(offset)

    def end_here(self) -> None:
        pass  # it never grows

    def read(self) -> Batches:
        end = self._reader.latestOffset()
        parts = [] if end == self._at else self._reader.partitions(self._at, end)
        self._at = end
        return [batch.cast(self._schema) for part in parts for batch in self._reader.read(part)]

    @property
    def offset(self) -> str | None:
        return json.dumps(self._at)


class FileSource(LocalSource):
    """The records of all files in a directory, and of those yet to come."""

    def __init__(
        self,
        directory: Path,
        format: str,
        type: TypeInfo,
        max_files: int | None,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(type)
        if format not in _READERS:
            raise PlanError(
                f"from_files: without Spark there are {', '.join(_READERS)}, not {format!r}"
            )
        if options:
            raise PlanError(f"from_files: without Spark there are no options, got {dict(options)}")
        self.directory = directory
        self.max_files = max_files
        self._read = _READERS[format]

    def reader(self) -> SourceReader:
        return _FileReader(self)

    def read_file(self, path: Path) -> pa.RecordBatch:
        schema = stream_schema(self.schema)
        if not path.stat().st_size:
            return pa.RecordBatch.from_pylist([], schema)
        table = self._read(path, schema)
        missing = [name for name in schema.names if name not in table.column_names]
        for name in missing:
            table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
        table = table.select(schema.names).cast(schema).combine_chunks()
        return table.to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], schema)


class _FileReader(SourceReader):
    """Keeps the list of files seen as Spark's file source does: an entry per file and batch."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._seen: set[str] = set()
        self._log: list[list[str]] = []
        self._bound: list[Path] | None = None

    def restore(self, offset: str, entries: Sequence[str]) -> None:
        self._seen = {json.loads(entry)["path"] for entry in entries}
        self._log = [list(entries)]

    def end_here(self) -> None:
        self._bound = self._files()

    def read(self) -> Batches:
        files = self._files() if self._bound is None else self._bound
        new = [path for path in files if path.as_uri() not in self._seen]
        new = new[: self._source.max_files]
        if not new:
            return []
        self._log.append(
            [
                json.dumps({"path": path.as_uri(), "timestamp": _modified_ms(path), "batchId": at})
                for at, path in ((len(self._log), path) for path in new)
            ]
        )
        self._seen |= {path.as_uri() for path in new}
        return [self._source.read_file(path) for path in new]

    @property
    def offset(self) -> str | None:
        return json.dumps({"logOffset": len(self._log) - 1}) if self._log else None

    def entries(self, after: int, upto: int) -> list[str] | None:
        return [entry for batch in self._log[after + 1 : upto + 1] for entry in batch]

    def _files(self) -> list[Path]:
        found = [p for p in self._source.directory.iterdir() if p.name[0] not in "._"]
        return sorted((p for p in found if p.is_file()), key=lambda p: (_modified_ms(p), p.name))


def _modified_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def _read_json(path: Path, schema: pa.Schema) -> pa.Table:
    whole = pyarrow.json.ReadOptions(use_threads=False, block_size=path.stat().st_size + 1)
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return pyarrow.json.read_json(path, whole, parse)


def _read_csv(path: Path, schema: pa.Schema) -> pa.Table:
    read = pyarrow.csv.ReadOptions(use_threads=False, column_names=schema.names)
    convert = pyarrow.csv.ConvertOptions(column_types=schema)
    return pyarrow.csv.read_csv(path, read, convert_options=convert)


def _read_parquet(path: Path, schema: pa.Schema) -> pa.Table:
    return pyarrow.parquet.ParquetFile(path).read()


def _read_text(path: Path, schema: pa.Schema) -> pa.Table:
    return pa.table({schema.names[0]: path.read_text().splitlines()})


_READERS: dict[str, Callable[[Path, pa.Schema], pa.Table]] = {
    "csv": _read_csv,
    "json": _read_json,
    "parquet": _read_parquet,
    "text": _read_text,
}


class Pushes:
    """All sources of a harness that elements are pushed to, by uid; it outlives drivers."""

    def __init__(self) -> None:
        self.sources: dict[str, PushedElements] = {}
        self.arrived = threading.Event()

    def source(self, uid: str, type: TypeInfo) -> PushedElements:
        """The source with this uid; what was pushed to it before is still in it."""
        source = self.sources.setdefault(uid, PushedElements(uid, type))
        if source.schema != type and source.batches():
            raise PlanError(
                f"source {uid!r} has had elements of {source.schema} and is declared as {type} now"
            )
        source.schema = type
        return source


def source(env: StreamExecutionEnvironment, uid: str, type: Any) -> DataStream:
    """A stream of the elements that `JobHarness.push` is given for this uid.

    Args:
        env: The environment that the harness passes to the program.
        uid: Identity of the source.
        type: Of its elements, as in `from_files`: a DDL string, a NamedTuple, a dataclass, ...

    Raises:
        PlanError: The environment is not that of a harness.
    """
    pushes = getattr(env._engine, "pushes", None)
    if not isinstance(pushes, Pushes):
        raise PlanError(
            f"source({uid!r}) needs the environment that a JobHarness passes to the program; "
            "elsewhere, use from_files, from_dataframe, ..."
        )
    kind = as_type(type)
    stream = env.from_dataframe(pushes.source(uid, kind), uid)  # type: ignore[arg-type]
    stream._node.type = kind
    return stream
