"""Schemas of Iceberg tables: what becomes of a stream's types, and what PyIceberg can change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from turnback.connectors.tables.schema import (
    ChangeKind,
    ColumnChange,
    column_changes,
    partition_differences,
)
from turnback.values.columns import stream_schema
from turnback.values.typeinfo import TypeInfo

ADDITIVE = (ChangeKind.ADD, ChangeKind.WIDEN)


def iceberg_schema(type: TypeInfo) -> pa.Schema:
    """The schema of a stream in types that Iceberg has: no small integers, no nanoseconds."""
    return pa.schema([pa.field(f.name, _iceberg_type(f.type)) for f in stream_schema(type)])


def differences(table: Any, schema: pa.Schema) -> list[ColumnChange]:
    """The changes that a table needs before rows of a schema fit it."""
    return list(column_changes(schema, table.schema().as_arrow()))


def other_problems(
    table: Any, schema: pa.Schema, partition_by: tuple[str, ...], mode: str
) -> list[str]:
    """What else keeps rows from being written."""
    problems = _lost_columns(table, schema) if mode == "upsert" else []
    found = _partition_columns(table)
    if found is None:
        return [*problems, "it is partitioned by a transform; only plain columns can be written"]
    return problems + partition_differences(found, partition_by)


def evolve(table: Any, changes: list[ColumnChange], summary: dict[str, str]) -> None:
    """Add columns, and make columns wider, in one commit."""
    wanted = pa.schema([pa.field(change.column, change.here) for change in changes])
    transaction = table.transaction()
    with transaction.update_schema() as update:
        update.union_by_name(wanted)
    # PyIceberg upserts by the columns of the newest snapshot, which are those it was made with.
    with transaction.update_snapshot(snapshot_properties=summary).fast_append():
        pass
    transaction.commit_transaction()


def _lost_columns(table: Any, schema: pa.Schema) -> list[str]:
    """Columns that only the table has; PyIceberg replaces whole rows in an upsert."""
    names = [name for name in table.schema().column_names if "." not in name]
    return [
        f"column {name!r}, which only the table has, would lose its values in an upsert"
        for name in names
        if name not in schema.names
    ]


def _partition_columns(table: Any) -> tuple[str, ...] | None:
    """The columns that divide a table; None if they do so by a transform."""
    fields = table.spec().fields
    if any(str(field.transform) != "identity" for field in fields):
        return None
    return tuple(table.schema().find_column_name(field.source_id) for field in fields)


def _iceberg_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_int8(kind) or pt.is_int16(kind):
        return pa.int32()
    if pt.is_time64(kind):
        return pa.time64("us")
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, _iceberg_type(f.type)) for f in kind])
    if pt.is_map(kind):
        return pa.map_(_iceberg_type(kind.key_type), _iceberg_type(kind.item_type))
    if pt.is_list(kind):
        return pa.list_(pa.field("element", _iceberg_type(kind.value_type)))
    return kind
