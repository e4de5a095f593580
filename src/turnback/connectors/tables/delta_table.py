"""What a Delta table is like: does a stream fit it, and which of its files are small."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from turnback.connectors.tables.compaction import Compaction
from turnback.connectors.tables.join import TARGET_BYTES
from turnback.connectors.tables.schema import ColumnChange, column_changes, partition_differences

_ENFORCED = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""What makes a column depend on its writer; delta-rs does not check it in files it is handed."""


def differences(
    table: Any, schema: pa.Schema, partition_by: tuple[str, ...]
) -> tuple[list[ColumnChange], list[str]]:
    """The changes that a table needs before rows of a schema fit it, and what else is wrong."""
    changes = list(column_changes(schema, pa.schema(table.schema().to_arrow())))
    found = tuple(table.metadata().partition_columns)
    return changes, _unsupported(table) + partition_differences(found, partition_by)


def _unsupported(table: Any) -> list[str]:
    """What a table asks of its writers that a sink cannot do."""
    configuration = table.metadata().configuration
    problems = [
        f"it has the constraint {key.removeprefix('delta.constraints.')!r}, which is not checked"
        for key in configuration
        if key.startswith("delta.constraints.")
    ]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        problems.append("its columns are mapped to other names (delta.columnMapping.mode)")
    for field in table.schema().fields:
        if any(key in _ENFORCED for key in field.metadata):
            problems.append(f"column {field.name!r} is generated or constrained by the table")
    return problems


def compaction_of(actions: pa.Table, version: str) -> Compaction:
    """Say what a compaction would do with the files of a table; `actions` has one row for each."""
    by = [name for name in actions.column_names if name.startswith("partition.")]
    small: dict[str, list[int]] = {}
    for row in actions.select([*by, "size_bytes"]).to_pylist():
        if row["size_bytes"] < TARGET_BYTES:
            small.setdefault(repr([row[name] for name in by]), []).append(row["size_bytes"])
    groups = [sizes for sizes in small.values() if len(sizes) > 1]
    joined = sum(map(len, groups))
    made = sum(1 + sum(sizes) // TARGET_BYTES for sizes in groups)
    return Compaction(
        files_before=actions.num_rows,
        files_after=actions.num_rows - joined + made,
        joined=joined,
        bytes=sum(map(sum, groups)),
        version=version,
    )
