"""Dead letters where a sink has written them: files, directories, Delta tables, JSON lines."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from turnback.core.errors import ConfigurationError, NotFoundError
from turnback.core.extras import require
from turnback.plan.dead_letters import decode_letter

_COLUMN = "data"
_JSON = (".json", ".jsonl", ".ndjson")
STDIN = "-"


def read_letters(places: Iterable[str], stdin: TextIO) -> list[bytes]:
    """Read dead letters, each once.

    Args:
        places: Files that end in .json, .jsonl, .ndjson, .parquet or .csv, directories with such
            files, directories of Delta tables; or "-" for lines of JSON that are piped in.
        stdin: What is piped in.

    Raises:
        ConfigurationError: Something in them is no dead letter.
        NotFoundError: A place is not there.
    """
    found: dict[bytes, None] = {}
    for place in places:
        where = "what was piped in" if place == STDIN else place
        for row, value in enumerate(_json(stdin) if place == STDIN else _values(Path(place)), 1):
            found[_letter(value, f"{where}, row {row}")] = None
    return list(found)


def _values(path: Path) -> Iterator[Any]:
    """The column `data` of what is at a path."""
    if not path.exists():
        raise NotFoundError(f"there is nothing at {path}: give what the dead letters' sink wrote")
    if (path / "_delta_log").is_dir():
        yield from _delta(path)
    elif path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        for file in files:
            inside = file.relative_to(path).parts
            if not any(part.startswith((".", "_")) for part in inside):
                yield from _values(file)
    elif path.suffix in _JSON:
        with path.open(encoding="utf-8") as lines:
            yield from _json(lines)
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".csv":
        yield from _csv(path)
    else:
        raise ConfigurationError(
            f"{path}: files with dead letters end in {', '.join(_JSON)}, .parquet or .csv; or "
            f"give them as lines of JSON: ... | turnback redrive JOB {STDIN}"
        )


def _json(lines: Iterable[str]) -> Iterator[Any]:
    for line in lines:
        if line.strip():
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError:
                row = None
            yield row.get(_COLUMN) if isinstance(row, dict) else None


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[_COLUMN]):
                yield from _column(batch, path)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{path} cannot be read as Parquet: {error}") from error


def _csv(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv

    try:
        yield from _column(csv.read_csv(path), path)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(f"{path} cannot be read as CSV: {error}") from error


def _delta(path: Path) -> Iterator[Any]:
    deltalake = require("deltalake", "delta", f"to read the Delta table {path}")
    for batch in deltalake.DeltaTable(str(path)).to_pyarrow_dataset().to_batches():
        yield from _column(batch, path)


def _column(rows: Any, path: Path) -> list[Any]:
    if _COLUMN not in rows.schema.names:
        raise ConfigurationError(f"{path} has no column {_COLUMN!r}, so it has no dead letters")
    values: list[Any] = rows.column(_COLUMN).to_pylist()
    return values


def _letter(value: Any, where: str) -> bytes:
    """The bytes of a letter; text has them in Base64."""
    try:
        data = base64.b64decode(value, validate=True) if isinstance(value, str) else value
        if not isinstance(data, bytes):
            raise ConfigurationError(f"it has no {_COLUMN!r}")
        decode_letter(data)
    except (ConfigurationError, binascii.Error) as error:
        raise ConfigurationError(
            f"{where} is no dead letter: {error}. Give rows as dead_letters() gives them; of "
            f"their columns {_COLUMN!r} is needed"
        ) from None
    return data
