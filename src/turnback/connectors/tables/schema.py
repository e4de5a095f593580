"""What keeps the rows of a stream from being written to a table, and what would change that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa
import pyarrow.types as pt

from turnback.core.errors import TableChangedError


class ChangeKind(Enum):
    """What a table would have to change."""

    ADD = auto()
    """A column that the stream has and the table does not."""
    WIDEN = auto()
    """A column of a type that holds fewer values than that of the stream."""
    NULLABLE = auto()
    """A column that must not be null in the table."""
    OTHER = auto()
    """A column of another type."""


@dataclass(frozen=True)
class ColumnChange:
    """A change that a table needs before the rows of a stream fit it."""

    kind: ChangeKind
    column: str
    here: pa.DataType
    there: pa.DataType | None = None

    def describe(self) -> str:
        """Say what is different."""
        if self.kind is ChangeKind.ADD:
            return f"the table has no column {self.column!r} ({self.here})"
        if self.kind is ChangeKind.NULLABLE:
            return f"column {self.column!r} must not be null in the table, but may be here"
        return f"column {self.column!r} is {self.there} in the table, {self.here} here"

    def remedy(self, table: str) -> str:
        """The statement that makes the table fit, or what to do where there is none."""
        column = f"`{self.column}`"
        if self.kind is ChangeKind.ADD:
            return f"ALTER TABLE {table} ADD COLUMN {column} {sql_type(self.here)}"
        if self.kind is ChangeKind.WIDEN:
            return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {sql_type(self.here)}"
        if self.kind is ChangeKind.NULLABLE:
            return f"ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"
        wanted = sql_type(self.there) if self.there is not None else "its type"
        return f"convert {self.column!r} to {wanted} before the sink, or give it another name"


def column_changes(stream: pa.Schema, table: pa.Schema) -> Iterator[ColumnChange]:
    """Find what keeps rows of a stream from being written to a table; any order of columns is fine.

    Columns that only the table has are filled with null.
    """
    for field in stream:
        index = table.get_field_index(field.name)
        if index < 0:
            yield ColumnChange(ChangeKind.ADD, field.name, field.type)
            continue
        there = table.field(index).type
        if plain_type(there) != plain_type(field.type):
            wider = _holds_all(field.type, there)
            kind = ChangeKind.WIDEN if wider else ChangeKind.OTHER
            yield ColumnChange(kind, field.name, field.type, there)
    for field in table:
        if not field.nullable:
            yield ColumnChange(ChangeKind.NULLABLE, field.name, field.type, field.type)


def partition_differences(table: tuple[str, ...], stream: tuple[str, ...]) -> list[str]:
    """Say if a table is divided by other columns than a sink wants."""
    if table == stream:
        return []
    found = f"by {', '.join(table)}" if table else "not at all"
    return [f"the table is partitioned {found}; give partition_by={table!r}, not {stream!r}"]


def describe_problems(changes: list[ColumnChange], others: list[str], table: str) -> str:
    """Say what is different, and what to do about each column."""
    found = "; ".join([*(change.describe() for change in changes), *others])
    if not changes:
        return found
    return f"{found}. What is needed: {'; '.join(change.remedy(table) for change in changes)}"


def changed_table(name: str, kind: str, place: str, problems: str) -> TableChangedError:
    """The error of a job whose table was changed while it runs."""
    return TableChangedError(
        f"{name}: the {kind} table {place} was changed while the job ran, and its rows do not fit "
        f"any more: {problems}. Then start the job again: its checkpoint has promised what is not "
        "in the table yet"
    )


def plain_type(kind: pa.DataType) -> str:
    """A type as text, without the names and widths that do not matter to Parquet."""
    if pt.is_struct(kind):
        return f"struct<{','.join(f'{f.name}:{plain_type(f.type)}' for f in kind)}>"
    if pt.is_map(kind):
        return f"map<{plain_type(kind.key_type)},{plain_type(kind.item_type)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"list<{plain_type(kind.value_type)}>"
    return str(kind).removeprefix("large_")


def _holds_all(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether a type holds every value of another of its family."""
    if pt.is_signed_integer(wide) and pt.is_signed_integer(narrow):
        return bool(wide.bit_width > narrow.bit_width)
    if pt.is_floating(wide) and pt.is_floating(narrow):
        return bool(wide.bit_width > narrow.bit_width)
    if pt.is_decimal(wide) and pt.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision > narrow.precision)
    return False


_SQL = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
}


def sql_type(kind: pa.DataType) -> str:
    """A type as statements of Spark have it."""
    if pt.is_struct(kind):
        return f"STRUCT<{', '.join(f'`{f.name}`: {sql_type(f.type)}' for f in kind)}>"
    if pt.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    if pt.is_list(kind) or pt.is_large_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    if pt.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _SQL.get(plain_type(kind), str(kind).upper())
