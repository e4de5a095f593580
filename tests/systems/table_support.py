"""Delta and Iceberg tables in a directory, written by sinks and read by other libraries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from turnback import Types
from turnback.connectors.tables import DeltaSink, IcebergSink
from turnback.connectors.tables.sink import Mark, TableSink
from turnback.sinks.base import CommitterContext, WriterContext, directory_digest
from turnback.sinks.ownership import SinkIdentity
from turnback.values.columns import Batch
from turnback.values.typeinfo import TypeInfo

POSTS = Types.ROW_NAMED(["post", "n", "day"], [Types.STRING(), Types.LONG(), Types.STRING()])
A, B, C = ("a", 1, "mon"), ("b", None, "tue"), ("c", 3, None)


def posts(*rows: tuple[Any, ...]) -> pa.Table:
    """Rows as another program would write them."""
    return pa.Table.from_batches([Batch(POSTS, list(rows)).arrow])


class Place(Protocol):
    """One table and what it can be asked from outside."""

    format: str
    root: Path

    def sink(self, **arguments: Any) -> TableSink: ...

    def read(self) -> pa.Table: ...

    def append(self, rows: pa.Table) -> None:
        """Write to the table as another program would."""

    def create(self, schema: pa.Schema) -> None: ...

    def versions(self) -> int:
        """How many commits with data or markers there were."""

    def remembered(self) -> list[int]:
        """The numbers that sinks have left in the table."""

    def referenced(self) -> set[str]:
        """Names of the data files that the current version has."""

    def ever_referenced(self) -> set[str]:
        """Names of the data files that any version has, which compactions leave to its readers."""


class DeltaPlace:
    format = "delta"

    def __init__(self, base: Path) -> None:
        self.root = base / "posts"

    def sink(self, **arguments: Any) -> DeltaSink:
        return DeltaSink(self.root, **arguments)

    def exists(self) -> bool:
        """Whether the table is there; its directory is, a moment before."""
        return bool(DeltaTable.is_deltatable(str(self.root)))

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.root))

    def read(self) -> pa.Table:
        return self.table().to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        write_deltalake(str(self.root), rows, mode="append")

    def create(self, schema: pa.Schema) -> None:
        write_deltalake(str(self.root), schema.empty_table())

    def versions(self) -> int:
        return self.table().version()

    def remembered(self) -> list[int]:
        entries = sorted((self.root / "_delta_log").glob("*.json"))
        lines = [line for path in entries for line in path.read_text().splitlines()]
        marks = [json.loads(line).get("txn") for line in lines]
        others = (".driver", ".fence", ".owner")
        return [mark["version"] for mark in marks if mark and not mark["appId"].endswith(others)]

    def referenced(self) -> set[str]:
        return {Path(uri).name for uri in self.table().file_uris()}

    def ever_referenced(self) -> set[str]:
        entries = [path.read_text() for path in (self.root / "_delta_log").glob("*.json")]
        actions = [json.loads(line) for entry in entries for line in entry.splitlines()]
        return {Path(a["add"]["path"]).name for a in actions if "add" in a}


class IcebergPlace:
    format = "iceberg"

    def __init__(self, base: Path) -> None:
        self.root = base / "warehouse" / "db" / "posts"
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{base}/catalog.db",
            "warehouse": f"file://{base}/warehouse",
        }
        if not (base / "catalog.db").exists():
            self.catalog().create_namespace("db")

    def catalog(self) -> Catalog:
        return load_catalog("default", **self.properties)

    def sink(self, **arguments: Any) -> IcebergSink:
        return IcebergSink(self.properties, "db.posts", **arguments)

    def exists(self) -> bool:
        """Whether the table is there; its directory is, a moment before."""
        return bool(self.catalog().table_exists("db.posts"))

    def table(self) -> Any:
        return self.catalog().load_table("db.posts")

    def read(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        self.table().append(rows)

    def create(self, schema: pa.Schema) -> None:
        self.catalog().create_table("db.posts", schema)

    def versions(self) -> int:
        try:
            return len(self.table().snapshots())
        except NoSuchTableError:
            return 0

    def remembered(self) -> list[int]:
        properties = self.table().properties.items()
        marks = [value for key, value in properties if key.startswith("turnback.version.")]
        return [int(mark.split()[0]) for mark in marks]

    def referenced(self) -> set[str]:
        return {Path(task.file.file_path).name for task in self.table().scan().plan_files()}

    def ever_referenced(self) -> set[str]:
        files = self.table().inspect.all_data_files()["file_path"].to_pylist()
        return {Path(path).name for path in files}


PLACES = {"delta": DeltaPlace, "iceberg": IcebergPlace}


class Job:
    """One job's driver and tasks, as far as a sink sees them."""

    def __init__(self, place: Place, type: TypeInfo = POSTS, **arguments: Any) -> None:
        self.place, self.type = place, type
        self.sink = place.sink(**arguments)
        self.directory: str | None = "file:///jobs/likes"

    def context(self, attempt: int = 3, **changes: Any) -> CommitterContext:
        values: dict[str, Any] = {"job": "likes", "job_id": "id-1", "uid": "out"}
        values |= {"type": self.type, "job_directory": self.directory}
        return CommitterContext(**{**values, **changes}, attempt=attempt)

    def start(self, attempt: int = 3, pending: Sequence[bytes] = ()) -> Any:
        """Claim the table and recover, as an attempt does; returns its committer."""
        ctx = self.context(attempt)
        self.sink.check_target(ctx)
        self.sink.acquire_target(ctx)
        committer = self.sink.committer(ctx)
        committer.recover(pending)
        return committer

    def write(self, *rows: Any, **changes: Any) -> bytes:
        """The prepared output of one task."""
        writer = self.writer(**changes)
        writer.write(Batch(self.type, list(rows)))
        prepared = writer.prepare()
        assert prepared is not None
        return prepared

    def writer(self, **changes: Any) -> Any:
        values: dict[str, Any] = {"attempt": 3, "epoch": 7, "partition": 0, "task_attempt_id": 40}
        values |= {"job": "likes", "job_id": "id-1", "uid": "out"}
        values |= {"directory_id": directory_digest(self.directory) if self.directory else ""}
        return self.sink.writer(WriterContext(**{**values, **changes}, type=self.type))

    def mark(self, version: int) -> Mark:
        """What the table remembers of the sink when it has this."""
        return Mark(SinkIdentity.of(self.context()), version, 3)

    def rows(self) -> list[tuple[Any, ...]]:
        """What readers see, sorted."""
        columns = self.place.read().select(list(self.type.names)).to_pydict()
        return sorted(zip(*columns.values(), strict=True), key=repr)

    def files(self) -> set[str]:
        """Names of the Parquet files that sinks have written below the table."""
        return {path.name for path in self.place.root.rglob("part-*.parquet")}

    def notes(self) -> list[str]:
        return sorted(path.name for path in self.place.root.rglob("*.inprogress"))
