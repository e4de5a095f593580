"""Columns that a stream or a table gets: added when asked for, else refused with what is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from table_support import POSTS, A, DeltaPlace, IcebergPlace, Job

from job_support import Jobs, eventually
from turnback import Types
from turnback.connectors.registry import sink_from_description
from turnback.connectors.tables import DeltaSink
from turnback.connectors.tables.files import ChangeKind, column_changes, sql_type
from turnback.errors import ConfigurationError, TableChangedError
from turnback.snapshot.find import load_savepoint
from turnback.views.snapshots import describe

MORE = Types.ROW_NAMED(
    ["post", "n", "day", "likes"], [Types.STRING(), Types.LONG(), Types.STRING(), Types.LONG()]
)


def test_a_new_column_is_refused_with_the_statement_it_needs(job: Job) -> None:
    job.start()
    table = f"delta.`{job.place.root}`" if job.place.format == "delta" else "db.posts"
    with pytest.raises(ConfigurationError) as refused:
        Job(job.place, MORE).start(4)
    assert "the table has no column 'likes' (int64)" in str(refused.value)
    assert f"ALTER TABLE {table} ADD COLUMN `likes` BIGINT" in str(refused.value)


def test_a_new_column_is_added_when_asked_for(job: Job) -> None:
    job.start().commit([job.write(A)])
    promised = [job.write(("b", 2, "tue"), epoch=8)]
    more = Job(job.place, MORE, evolve_table=True)
    committer = more.start(4, promised)  # rows without the column are written before
    number = job.place.remembered()[-1]
    committer.commit([more.write(("c", 3, "wed", 30), attempt=4, epoch=9)])
    assert more.rows() == [(*A, None), ("b", 2, "tue", None), ("c", 3, "wed", 30)]
    assert job.place.remembered()[-1] > number
    versions = job.place.versions()
    more.start(5)
    assert job.place.versions() == versions  # there is nothing left to add


def test_a_new_column_of_an_upsert(place: Any) -> None:
    how = {"mode": "upsert", "key": ["post"]}
    old = Job(place, **how)
    old.start().commit([old.write(A, ("b", 2, "tue"))])
    promised = [old.write(("b", 3, "tue"), epoch=8)]
    new = Job(place, MORE, **how, evolve_table=True)
    committer = new.start(4, promised)
    committer.commit([new.write(("a", 9, "mon", 1), attempt=4, epoch=9)])
    assert new.rows() == [("a", 9, "mon", 1), ("b", 3, "tue", None)]


def test_a_wider_column(job: Job) -> None:
    """Iceberg can, delta-rs cannot: then the statement is named."""
    narrow = Types.ROW_NAMED(["post", "n", "day"], [Types.STRING(), Types.INT(), Types.STRING()])
    small = Job(job.place, narrow)
    small.start().commit([small.write(A)])
    promised = [small.write(("b", 2, "tue"), epoch=8)]
    wide = Job(job.place, POSTS, evolve_table=True)
    if job.place.format == "delta":
        with pytest.raises(ConfigurationError, match="ALTER COLUMN `n` TYPE BIGINT"):
            wide.start(4, promised)
        return
    committer = wide.start(4, promised)
    committer.commit([wide.write(("c", 2**40, "wed"), attempt=4, epoch=9)])
    assert wide.rows() == [A, ("b", 2, "tue"), ("c", 2**40, "wed")]


@pytest.mark.parametrize("evolve", [False, True])
def test_another_type_is_refused_in_any_case(job: Job, evolve: bool) -> None:
    job.start()
    text = Types.ROW_NAMED(["post", "n", "day"], [Types.STRING()] * 3)
    before = job.place.versions()
    with pytest.raises(ConfigurationError, match="convert 'n' to BIGINT before the sink"):
        Job(job.place, text, evolve_table=evolve).start(4)
    assert job.place.versions() == before


# -- while the job runs


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.close()


def altered(place: Any) -> None:
    """Another program gives column `n` another type, or takes it away."""
    if isinstance(place, DeltaPlace):
        empty = pa.table({"post": ["z"], "n": ["text"], "day": ["mon"]})
        write_deltalake(str(place.root), empty, mode="overwrite", schema_mode="overwrite")
    else:
        with place.table().update_schema() as update:
            update.rename_column("n", "number")


def test_a_table_that_is_altered_meanwhile(job: Job) -> None:
    committer = job.start()
    committer.commit([job.write(A)])
    promised = [job.write(("b", 2, "tue"), epoch=8)]
    altered(job.place)
    before = job.place.versions()
    with pytest.raises(TableChangedError) as stopped:
        committer.commit(promised)
    needed = {
        "delta": "column 'n' is string in the table, int64 here.*convert 'n' to STRING",
        "iceberg": "ALTER TABLE db.posts ADD COLUMN `n` BIGINT.*start the job again",
    }
    assert stopped.match(needed[job.place.format])
    assert job.place.versions() == before


def test_what_was_promised_is_written_once_the_table_fits(tmp_path: Path) -> None:
    place = IcebergPlace(tmp_path)
    job = Job(place)
    committer = job.start()
    promised = [job.write(("b", 2, "tue"), epoch=8)]
    altered(place)
    with pytest.raises(TableChangedError):
        committer.commit(promised)
    with pytest.raises(ConfigurationError, match="does not match"):
        job.start(4, promised)
    with place.table().update_schema() as update:
        update.rename_column("number", "n")
    job.start(5, promised)
    assert job.rows() == [("b", 2, "tue")]


def test_a_job_whose_table_is_altered_stops_with_a_savepoint(jobs: Jobs) -> None:
    place = IcebergPlace(jobs.directory)
    schema = "post string, n bigint, day string"

    def start(**options: Any) -> Any:
        saved = {"state.savepoints.dir": str(jobs.directory / "saved")}
        # A restart would not help, so none of these is used up.
        env = jobs.env(**saved, **{"restart-strategy.type": "fixed-delay"})
        jobs.files(env, "in", schema).sink_to(place.sink()).uid("out")
        return jobs.start(env, "posts", **options)

    jobs.feed("in", {"post": "a", "n": 1, "day": "mon"})
    client = start()
    eventually(lambda: place.exists() and place.read().num_rows == 1)
    altered(place)
    jobs.feed("in", {"post": "b", "n": 2, "day": "tue"})
    with pytest.raises(TableChangedError) as failed:
        client.result(60)
    assert "ALTER TABLE db.posts ADD COLUMN `n` BIGINT" in str(failed.value)
    (saved,) = (jobs.directory / "saved").iterdir()
    assert saved.name in str(failed.value)
    (version,) = describe(load_savepoint(str(saved), {})).targets.values()
    assert place.table().scan(snapshot_id=int(version)).to_arrow().num_rows == 1
    with place.table().update_schema() as update:
        update.rename_column("number", "n")
    start(bounded=True).result(60)
    assert sorted(place.read()["post"].to_pylist()) == ["a", "b"]


def test_columns_that_others_add_are_no_hindrance(job: Job) -> None:
    committer = job.start()
    if isinstance(job.place, DeltaPlace):
        rows = pa.table({"post": ["z"], "extra": [1]})
        write_deltalake(str(job.place.root), rows, mode="append", schema_mode="merge")
    else:
        with job.place.table().update_schema() as update:
            update.union_by_name(pa.schema([("extra", pa.int64())]))
    committer.commit([job.write(A)])
    assert A in job.rows()


def test_the_option_is_true_or_false_and_recorded(tmp_path: Path) -> None:
    for value in (None, "yes", 1):
        with pytest.raises(ConfigurationError, match="evolve_table must be True or False"):
            DeltaSink(tmp_path, evolve_table=value)
    for wanted in (True, False):
        again: Any = sink_from_description(DeltaSink(tmp_path, evolve_table=wanted).describe())
        assert again.evolve_table is wanted


def test_what_counts_as_wider() -> None:
    pairs = {
        (pa.int64(), pa.int32()): ChangeKind.WIDEN,
        (pa.int32(), pa.int64()): ChangeKind.OTHER,
        (pa.float64(), pa.float32()): ChangeKind.WIDEN,
        (pa.float64(), pa.int32()): ChangeKind.OTHER,
        (pa.decimal128(9, 2), pa.decimal128(5, 2)): ChangeKind.WIDEN,
        (pa.decimal128(9, 3), pa.decimal128(5, 2)): ChangeKind.OTHER,
    }
    for (here, there), kind in pairs.items():
        (change,) = column_changes(pa.schema([("c", here)]), pa.schema([("c", there)]))
        assert change.kind is kind


def test_types_as_statements_have_them() -> None:
    nested = pa.map_(pa.string(), pa.list_(pa.struct([("a", pa.decimal128(5, 2))])))
    assert sql_type(nested) == "MAP<STRING, ARRAY<STRUCT<`a`: DECIMAL(5, 2)>>>"
    assert sql_type(pa.timestamp("us", "UTC")) == "TIMESTAMP"
    assert sql_type(pa.timestamp("us")) == "TIMESTAMP_NTZ"
    assert sql_type(pa.large_string()) == "STRING"
