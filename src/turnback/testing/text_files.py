"""Text files as Spark parses them: records that fit a schema, and the text of those that do not."""

from __future__ import annotations

import base64
import csv
import json
import re
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json

from turnback.plan.malformed import MALFORMED_COLUMN, PLACED_TEXT

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
    """How a text of CSV becomes a value of a type."""
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
