"""What goes into a job under test, and what comes out: its sources, its output and its state."""

from __future__ import annotations

import base64
import csv
import json
import re
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from turnback.api.environment import StreamExecutionEnvironment
from turnback.api.lookup import value_reader
from turnback.api.streams import DataStream
from turnback.checkpoint.log import CheckpointLog
from turnback.config.option import positive
from turnback.driver.collection import GivenElements
from turnback.driver.positions import SIZE
from turnback.errors import ConfigurationError, PlanError, StateError
from turnback.job.directory import JobDirectory
from turnback.plan.bad_records import MALFORMED_COLUMN, PLACED_TEXT, with_malformed
from turnback.plan.graph import StreamGraph
from turnback.plan.sources import PARTITION_COLUMN, EpochLimit, partition_number
from turnback.sinks.memory import CollectSink
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef
from turnback.values.columns import Batch, stream_columns, stream_schema
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

Converter = Callable[[Any], Any]
"""Takes a value of JSON, or a text of CSV; raises `ValueError` if it does not fit."""

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "-Infinity": "-inf"}
_NOT_FINITE |= {"INF": "inf", "+INF": "inf", "-INF": "-inf", "Inf": "inf", "-Inf": "-inf"}


def read_json(path: Path, schema: pa.Schema) -> pa.Table:
    """The records of lines of JSON, and in the column `MALFORMED_COLUMN` what is none."""
    lines = _lines(path)
    try:
        table = _read_at_once(path, schema)
    except (pa.ArrowException, ValueError):
        table = None
    if table is not None and len(table) == len(lines):
        return _placed([None] * len(lines), table, path)
    decode = json.JSONDecoder(parse_float=Decimal).raw_decode
    convert = _struct_converter(schema)

    def parse(line: str) -> list[Any]:
        value, _ = decode(line.strip())
        return [convert(each) for each in (value if isinstance(value, list) else [value])]

    return _parsed(lines, parse, schema, path)


def _read_at_once(path: Path, schema: pa.Schema) -> pa.Table:
    """The same by Arrow, many times faster; it refuses a file that has something malformed."""
    whole = pyarrow.json.ReadOptions(use_threads=False, block_size=path.stat().st_size + 1)
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = pyarrow.json.read_json(path, whole, parse)
    for name in schema.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
    return table.select(schema.names).cast(schema)


def read_csv(path: Path, schema: pa.Schema) -> pa.Table:
    """The records of lines of CSV, and in the column `MALFORMED_COLUMN` what is none."""
    converters = [_text_converter(field.type) for field in schema]

    def parse(line: str) -> list[Any]:
        texts = next(csv.reader([line]))
        values = [
            None if text == "" else convert(text)
            for text, convert in zip(texts, converters, strict=True)
        ]
        return [dict(zip(schema.names, values, strict=True))]

    return _parsed(_lines(path), parse, schema, path)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text(errors="replace").split("\n") if line.strip()]


def _parsed(
    lines: Iterable[str], parse: Callable[[str], list[Any]], schema: pa.Schema, path: Path
) -> pa.Table:
    rows: list[Any] = []
    malformed: list[str | None] = []
    for line in lines:
        try:
            found: list[Any] = parse(line)
            texts: list[str | None] = [None] * len(found)
        except (ValueError, ArithmeticError, csv.Error, RecursionError):
            found = [{}]
            texts = [line.rstrip("\r")]
        rows += found
        malformed += texts
    return _placed(malformed, pa.Table.from_pylist(rows, schema), path)


def _placed(texts: list[str | None], records: pa.Table, path: Path) -> pa.Table:
    """Records with the column that tells which of them are malformed."""
    placed = [None if text is None else {"place": str(path), "text": text} for text in texts]
    return records.append_column(MALFORMED_COLUMN, pa.array(placed, PLACED_TEXT.arrow()))


def _unless(is_wrong: bool, value: Any) -> Any:
    if is_wrong:
        raise ValueError("it does not fit")
    return value


def _struct_converter(fields: Iterable[pa.Field]) -> Converter:
    converters = {field.name: _converter(field.type) for field in fields}

    def convert(value: Any) -> dict[str, Any]:
        _unless(not isinstance(value, dict), value)
        given = {name: value.get(name) for name in converters}
        return {n: None if v is None else converters[n](v) for n, v in given.items()}

    return convert


def _converter(type: pa.DataType) -> Converter:
    """How a value of JSON becomes one of a type."""
    if pa.types.is_string(type):
        return lambda v: (
            v if isinstance(v, str) else json.dumps(v, separators=(",", ":"), default=str)
        )
    if pa.types.is_integer(type):
        least = -(1 << (type.bit_width - 1))
        most = (1 << (type.bit_width - 1)) - 1
        return lambda v: _unless(not (_is(v, int) and least <= v <= most), v)
    if pa.types.is_floating(type):
        return _float
    if pa.types.is_boolean(type):
        return lambda v: _unless(not isinstance(v, bool), v)
    if pa.types.is_binary(type):
        return lambda v: base64.b64decode(_unless(not isinstance(v, str), v), validate=True)
    if pa.types.is_list(type):
        convert = _converter(type.value_type)
        return lambda v: [
            None if each is None else convert(each) for each in _unless(not isinstance(v, list), v)
        ]
    if pa.types.is_map(type):
        convert = _converter(type.item_type)
        return lambda v: [
            (key, None if each is None else convert(each))
            for key, each in _unless(not isinstance(v, dict), v).items()
        ]
    if pa.types.is_struct(type):
        return _struct_converter(type)
    return _text_or_number(type)


def _text_converter(type: pa.DataType) -> Converter:
    convert = _converter(type)
    if pa.types.is_integer(type):
        return lambda v: convert(int(_unless(not _WHOLE.fullmatch(v), v)))
    if pa.types.is_floating(type):
        return lambda v: _float(v if v in _NOT_FINITE else Decimal(_unless(v != v.strip(), v)))
    if pa.types.is_boolean(type):
        return lambda v: _unless(v.lower() not in ("true", "false"), v.lower() == "true")
    return convert


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _float(value: Any) -> float:
    if isinstance(value, str):
        return float(_NOT_FINITE[_unless(value not in _NOT_FINITE, value)])
    return float(
        _unless(isinstance(value, bool) or not isinstance(value, int | float | Decimal), value)
    )


def _text_or_number(type: pa.DataType) -> Converter:
    """How a text or a number becomes a date, a time stamp or a decimal."""
    if pa.types.is_date(type):
        return lambda v: date.fromisoformat(_unless(not isinstance(v, str), v))
    if pa.types.is_timestamp(type):
        return lambda v: _timestamp(v, type)
    if pa.types.is_decimal(type):
        return lambda v: _decimal(v, type)
    return lambda v: pa.scalar(v).cast(type).as_py()


def _timestamp(value: Any, type: pa.DataType) -> datetime:
    if _is(value, int):
        found = datetime.fromtimestamp(value, UTC)
    else:
        found = datetime.fromisoformat(_unless(not isinstance(value, str), value))
    if type.tz is None:
        return found.replace(tzinfo=None)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _decimal(value: Any, type: pa.DataType) -> Decimal:
    number = Decimal(_unless(not isinstance(value, str | Decimal) and not _is(value, int), value))
    rounded = number.quantize(Decimal(1).scaleb(-type.scale), ROUND_HALF_UP)
    _unless(len(rounded.as_tuple().digits) > type.precision, rounded)
    return rounded


Batches = list[pa.RecordBatch]


class LocalSource(ABC):
    """What `LocalEngine` reads, where Spark has a streaming DataFrame.

    Every attempt reads a copy of it, from the beginning or from a position, which is written as
    Spark writes it.
    """

    isStreaming = True  # noqa: N815 - Spark's name
    partitions: tuple[str, ...] = ()
    """The names of those that have watermarks of their own."""

    def __init__(self, type: TypeInfo) -> None:
        self.schema = type

    @property
    def columns(self) -> list[str]:
        own = [PARTITION_COLUMN] if self.partitions else []
        return [*(name for name, _ in stream_columns(self.schema)), *own]

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


class PushedElements(LocalSource):
    """Elements that a test has pushed so far; it outlives drivers, as a message broker does."""

    def __init__(self, uid: str, type: TypeInfo) -> None:
        super().__init__(type)
        self.uid = uid
        self.batches: Batches = []
        self._next = 0
        self._end: int | None = None

    def push(self, elements: Sequence[Any], partition: int = 0) -> None:
        """Add elements; raises `ElementTypeError` if one is not of the stream's type."""
        batch = Batch(self.schema, list(elements)).arrow
        if partition not in range(len(self.partitions) or 1):
            raise ConfigurationError(
                f"source {self.uid!r} has no partition {partition!r}; declare it with "
                f"source(..., partitions=N), where they are counted from 0"
            )
        if self.partitions:
            number = partition_number(self.partitions[partition])
            column = pa.array([number] * batch.num_rows, pa.int64())
            batch = batch.append_column(PARTITION_COLUMN, column)
        self.batches.append(batch)

    def restore(self, offset: str, entries: Sequence[str]) -> None:
        self._next = json.loads(offset)["pushes"]
        if self._next > len(self.batches):
            raise StateError(
                f"source {self.uid!r}: {self._next} pushes were read before, but this harness "
                f"has had {len(self.batches)}. Push the same again, or start the job fresh"
            )

    def end_here(self) -> None:
        self._end = len(self.batches)

    def read(self) -> Batches:
        pushed = self.batches[self._next : self._end]
        self._next += len(pushed)
        return [batch for batch in pushed if batch.num_rows]

    @property
    def offset(self) -> str | None:
        return json.dumps({"pushes": self._next})


class ListSource(LocalSource):
    """The elements of a list."""

    def __init__(self, type: TypeInfo, data: str) -> None:
        super().__init__(type)
        self._elements = GivenElements(data)
        self._read = 0

    def restore(self, offset: str, entries: Sequence[str]) -> None:
        self._read = json.loads(offset)["index"]

    def end_here(self) -> None:
        pass  # it never grows

    def read(self) -> Batches:
        self._elements.check(self._read)
        start = self._read
        self._read = len(self._elements)
        schema = stream_schema(self.schema)
        return [batch.cast(schema) for batch in self._elements.between(start, self._read)]

    @property
    def offset(self) -> str | None:
        return json.dumps({"index": self._read})


class FileSource(LocalSource):
    """The records of a file, or of all files in a directory, and of those yet to come.

    It keeps the list of files seen as Spark's file source does: an entry per file and batch.
    """

    def __init__(
        self,
        path: Path,
        format: str,
        type: TypeInfo,
        limit: EpochLimit,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(type)
        if format not in _READERS:
            raise PlanError(
                f"from_files: without Spark, only {', '.join(_READERS)} are supported, not "
                f"{format!r}"
            )
        if options:
            raise PlanError(
                f"from_files: options are not supported without Spark, got {dict(options)}"
            )
        self._path = path
        self._limit = limit
        self._parse = _READERS[format]
        self._seen: frozenset[str] = frozenset()
        self._log: tuple[Sequence[str], ...] = ()
        self._bound: list[Path] | None = None

    def restore(self, offset: str, entries: Sequence[str]) -> None:
        self._seen = frozenset(json.loads(entry)["path"] for entry in entries)
        self._log = (entries,)

    def end_here(self) -> None:
        self._bound = self._files()

    def read(self) -> Batches:
        files = self._files() if self._bound is None else self._bound
        new = self._limited([path for path in files if path.as_uri() not in self._seen])
        if not new:
            return []
        self._log += (list(map(self._entry, new)),)
        self._seen |= {path.as_uri() for path in new}
        return [self._read_file(path) for path in new]

    def _entry(self, path: Path) -> str:
        """What is known of a file before it is read."""
        changed_ms = _modified_ms(path)
        fields = {"path": path.as_uri(), "timestamp": changed_ms, "batchId": len(self._log)}
        return json.dumps({**fields, SIZE: path.stat().st_size})

    @property
    def offset(self) -> str | None:
        return json.dumps({"logOffset": len(self._log) - 1}) if self._log else None

    def entries(self, after: int, upto: int) -> list[str] | None:
        return [entry for batch in self._log[after + 1 : upto + 1] for entry in batch]

    def _limited(self, new: list[Path]) -> list[Path]:
        """As many of the new files as an epoch may read."""
        if self._limit.bytes is None:
            return new[: self._limit.files]
        sizes = accumulate(path.stat().st_size for path in new)
        fitting = sum(size <= self._limit.bytes for size in sizes)
        return new[: max(fitting, 1)]

    def _files(self) -> list[Path]:
        if self._path.is_file():
            return [self._path.absolute()]
        visible = [p for p in self._path.iterdir() if p.name[0] not in "._"]
        return sorted((p for p in visible if p.is_file()), key=lambda p: (_modified_ms(p), p.name))

    def _read_file(self, path: Path) -> pa.RecordBatch:
        schema = stream_schema(self.schema)
        whole = stream_schema(with_malformed(self.schema))
        table = self._parse(path, schema) if path.stat().st_size else schema.empty_table()
        missing = [name for name in whole.names if name not in table.column_names]
        for name in missing:
            table = table.append_column(name, pa.nulls(len(table), whole.field(name).type))
        table = table.select(whole.names).cast(whole).combine_chunks()
        return table.to_batches()[0] if len(table) else pa.RecordBatch.from_pylist([], whole)


def _modified_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


_READERS: dict[str, Callable[[Path, pa.Schema], pa.Table]] = {
    "csv": read_csv,
    "json": read_json,
    "parquet": lambda path, schema: pyarrow.parquet.ParquetFile(path).read(),
    "text": lambda path, schema: pa.table({schema.names[0]: path.read_text().splitlines()}),
}


class Pushes:
    """All sources of a harness that elements are pushed to, by uid; it outlives drivers."""

    def __init__(self) -> None:
        self.sources: dict[str, PushedElements] = {}
        self.arrived = threading.Event()

    def source(self, uid: str, type: TypeInfo, partitions: int) -> PushedElements:
        """The source with this uid; what was pushed to it before is still in it."""
        source = self.sources.setdefault(uid, PushedElements(uid, type))
        if source.schema != type and source.batches:
            raise PlanError(
                f"source {uid!r} had elements of {source.schema} but is now declared as {type}"
            )
        source.schema = type
        source.partitions = tuple(f"{uid}-{number}" for number in range(partitions))
        return source


def source(
    env: StreamExecutionEnvironment, uid: str, type: Any, *, partitions: int = 0
) -> DataStream:
    """A stream of the elements that `JobHarness.push` is given for this uid.

    Args:
        env: The environment that the harness passes to the program.
        uid: Identity of the source.
        type: Of its elements, as in `from_files`: a DDL string, a NamedTuple, a dataclass, ...
        partitions: How many partitions it has that have no order among them and watermarks of their
            own, as a topic of Kafka has.

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
    if partitions:
        positive("partitions", partitions)
    pushed = pushes.source(uid, kind, partitions)
    stream = env.from_dataframe(pushed, uid)  # type: ignore[arg-type]
    stream._node.type = kind
    return stream


class Outputs:
    """Collects the output in place of the program's sinks; it outlives drivers."""

    def __init__(self, real: Collection[str]) -> None:
        self._real = frozenset(real)
        self._sinks: dict[str, CollectSink] = {}

    def collect_from(self, graph: StreamGraph) -> None:
        """Put a collecting sink in the place of each sink of a program."""
        uids = {node.uid for node in graph.sinks()}
        for uid in self._real - uids:
            raise unknown("sink", uid, [known for known in uids if known])
        for number, node in enumerate(graph.sinks()):
            if node.uid not in self._real:
                uid = node.uid or f"sink {number}"
                node.function = self._sinks.setdefault(uid, CollectSink())

    def of(self, uid: str) -> list[Any]:
        if uid not in self._sinks:
            raise unknown("sink", uid, self._sinks)
        return self._sinks[uid].results


def newest_state(directory: JobDirectory, uid: str, name: str) -> dict[Any, Any]:
    """A state in the newest checkpoint of a job, by key; raises `StateError` if there is none."""
    manifest = CheckpointLog(directory.storage).latest()
    if manifest is None:
        raise StateError(f"job {directory.name!r} has no checkpoint yet; push something first")
    snapshot = Snapshot(manifest, StorageRef(directory.storage.uri))
    state = snapshot.state(uid, name)
    stored: defaultdict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
    for table in snapshot.rows(state).rows(0, snapshot.max_parallelism - 1):
        for row in table.select(["key", "sub", "value"]).to_pylist():
            stored[row["key"]].append((row["sub"] or b"", row["value"]))
    key_of = state.schema.key.codec().decode
    read = value_reader(state.schema)
    # Sorted, because positions are the order of a list.
    return {key_of(k): read(*zip(*sorted(rows), strict=True)) for k, rows in stored.items()}


def unknown(what: str, given: object, names: Collection[str]) -> ConfigurationError:
    """The error for an unknown name, with the nearest known one."""
    near = get_close_matches(str(given), names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"available: {', '.join(sorted(names))}"
    return ConfigurationError(f"there is no {what} {given!r}; {hint if names else 'there is none'}")
