"""The compaction of an Iceberg table: one snapshot that replaces small files by joined ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from turnback.connectors.tables.compaction import Compaction
from turnback.connectors.tables.join import ROW_GROUP_BYTES, TARGET_BYTES
from turnback.core.extras import require
from turnback.storage.base import Storage


def plan(table: Any) -> list[list[Any]]:
    """Choose the tasks of a scan whose files are to be joined, each list into one file.

    Files that rows were deleted from are left alone, and so are those of an older partition spec.
    """
    small: dict[str, list[Any]] = {}
    for task in table.scan().plan_files():
        file = task.file
        if (
            not task.delete_files
            and file.file_size_in_bytes < TARGET_BYTES // 2
            and file.spec_id == table.spec().spec_id
            and str(file.file_format).upper().endswith("PARQUET")
        ):
            small.setdefault(repr(file.partition), []).append(task)
    return [bin for tasks in small.values() for bin in _bins(tasks) if len(bin) > 1]


def _bins(tasks: list[Any]) -> Iterator[list[Any]]:
    bin: list[Any] = []
    held = 0
    for task in sorted(tasks, key=lambda task: task.file.file_path):
        bin.append(task)
        held += task.file.file_size_in_bytes
        if held >= TARGET_BYTES:
            yield bin
            bin = []
            held = 0
    yield bin


def describe(table: Any, bins: list[list[Any]], version: str) -> Compaction:
    """Say what `replace_files` would do."""
    files = sum(1 for _ in table.scan().plan_files())
    joined = sum(map(len, bins))
    return Compaction(
        files_before=files,
        files_after=files - joined + len(bins),
        joined=joined,
        bytes=sum(task.file.file_size_in_bytes for bin in bins for task in bin),
        version=version,
    )


class JoinedFiles:
    """Files that are joined and not part of the table yet.

    They are kept when a commit meets another one, and are of use for as long as the table has the
    files they were made of, as they were.
    """

    def __init__(self, table: Any, storage: Storage) -> None:
        self._schema_id = table.schema().schema_id
        self._arrow_io = require("pyiceberg.io.pyarrow", "iceberg", "IcebergSink")
        self._made: list[tuple[str, list[str]]] = []
        name = secrets.token_hex(8)
        for number, bin in enumerate(plan(table)):
            path = f"data/compacted-{name}-{number}.parquet"
            storage.put(path, _joined(self._arrow_io, table, bin))
            self._made.append((path, [task.file.file_path for task in bin]))

    def commit(self, table: Any, summary: dict[str, str]) -> tuple[Any, int]:
        """Commit them in place of the old files; returns the table and how many went.

        PyIceberg must not rebase the commit: rows may have been deleted from the old files
        meanwhile. None go if the table has changed so much that everything has to begin again.
        """
        location = table.location().rstrip("/")
        there = _whole_files(table)
        usable = [
            (path, old)
            for path, old in self._made
            if table.schema().schema_id == self._schema_id and all(one in there for one in old)
        ]
        if not usable:
            return table, 0
        transaction = table.transaction()
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
            for path, old in usable:
                uri = f"{location}/{path}"
                snapshot.append_data_file(
                    self._arrow_io.parquet_file_to_data_file(table.io, table.metadata, uri)
                )
                for one in old:
                    snapshot.delete_data_file(there[one])
        return transaction.commit_transaction(), sum(len(old) for _, old in usable)


def _whole_files(table: Any) -> dict[str, Any]:
    """The files of a table from which no rows were deleted, by path."""
    tasks = table.scan().plan_files()
    return {task.file.file_path: task.file for task in tasks if not task.delete_files}


def _joined(arrow_io: Any, table: Any, tasks: list[Any]) -> bytes:
    """The rows of some files as one, in the columns that the table has now."""
    always = require("pyiceberg.expressions", "iceberg", "IcebergSink").AlwaysTrue()
    scan = arrow_io.ArrowScan(table.metadata, table.io, table.schema(), always)
    schema = table.schema().as_arrow()
    target = pa.BufferOutputStream()
    held: list[pa.Table] = []
    held_bytes = 0
    with pq.ParquetWriter(target, schema) as writer:
        for batch in scan.to_record_batches(tasks):
            held.append(pa.Table.from_batches([batch]).cast(schema))  # files differ in string types
            held_bytes += batch.nbytes
            if held_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.concat_tables(held))
                held = []
                held_bytes = 0
        if held:
            writer.write_table(pa.concat_tables(held))
    return bytes(target.getvalue().to_pybytes())
