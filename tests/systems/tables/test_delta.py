"""What only Delta tables have: their log, statistics, other readers, and what cannot be written."""

import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from table_support import POSTS, A, B, C, DeltaPlace, Job

from turnback import Types
from turnback.connectors.registry import sink_from_description
from turnback.connectors.tables import DeltaSink
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import directory_digest, version_of


@pytest.fixture
def job(tmp_path):
    return Job(DeltaPlace(tmp_path))


def test_duckdb_reads_the_same_rows(job):
    """By the files that the log lists: the extension for Delta cannot be had everywhere."""
    job.start().commit([job.write(A, B, C)])
    files = [str(Path(uri)) for uri in job.place.table().file_uris()]
    found = duckdb.sql(f"SELECT post, n, day FROM read_parquet({files}) ORDER BY post").fetchall()
    assert found == [A, B, C]


def test_readers_skip_files_by_statistics(job):
    committer = job.start()
    committer.commit([job.write(A), job.write(("z", 100, None), partition=1)])
    actions = pa.table(job.place.table().get_add_actions(flatten=True)).to_pylist()
    assert sorted((one["num_records"], one["min.n"], one["max.n"]) for one in actions) == [
        (1, 1, 1),
        (1, 100, 100),
    ]
    assert sorted(one["null_count.day"] for one in actions) == [0, 1]


def test_the_number_outlives_checkpoints_of_the_log(job):
    committer = job.start()
    transactions = [job.write(A)]
    committer.commit(transactions)
    job.place.table().create_checkpoint()
    for path in (job.place.root / "_delta_log").glob("*.json"):
        path.unlink()
    committer = job.sink.committer(job.context(4))
    committer.commit(transactions)
    assert job.rows() == [A]


def test_what_others_have_rewritten_is_not_written_again(job):
    committer = job.start()
    transactions = [job.write(A), job.write(B, partition=1)]
    committer.commit(transactions)
    job.place.table().optimize.compact()
    job.place.table().delete("post = 'a'")
    job.start(4, transactions)
    assert job.rows() == [B]


def test_the_log_names_job_and_sink(job):
    job.start().commit([job.write(A)])
    (newest,) = job.place.table().history(1)
    assert (newest["turnback.job"], newest["turnback.sink"]) == ("likes", "out")
    place = directory_digest(job.directory)
    told = {"directory": place, "job-id": "id-1", "attempt": "3", "version": str(version_of(3, 7))}
    assert {key: newest[f"turnback.{key}"] for key in told} == told
    marked = job.place.table().transaction_version(f"turnback-{place}-id-1-out")
    assert marked == version_of(3, 7)


def test_an_empty_string_in_a_partition_column_is_null(tmp_path):
    job = Job(DeltaPlace(tmp_path), partition_by=["day"])
    job.start().commit([job.write(("a", 1, ""))])
    assert job.rows() == [("a", 1, None)]


def test_a_type_that_delta_does_not_have_is_named(tmp_path):
    type_ = Types.ROW_NAMED(["n", "at"], [Types.LONG(), Types.SQL_TIME()])
    job = Job(DeltaPlace(tmp_path), type_)
    with pytest.raises(ConfigurationError, match="Delta has no type for column 'at'"):
        job.sink.check_target(job.context())


def test_a_table_with_constraints_is_refused(job):
    job.start()
    job.place.table().alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(ConfigurationError, match="has the constraint 'positive'"):
        job.start(4)


def test_a_schema_that_changes_meanwhile(job):
    committer = job.start()
    committer.commit([job.write(A)])
    wider = pa.table({"post": ["x"], "n": [1], "day": ["wed"], "more": [1.5]})
    write_deltalake(str(job.place.root), wider, mode="append", schema_mode="merge")
    committer.commit([job.write(B, epoch=8)])
    assert job.rows() == [A, B, ("x", 1, "wed")]


def test_a_table_that_is_gone_is_a_loud_error(job):
    committer = job.start()
    transaction = job.write(A)
    (job.place.root / "_delta_log").rename(job.place.root / "_elsewhere")
    with pytest.raises(SinkError, match="'out' of job 'likes'"):
        committer.commit([transaction])


def test_a_path_that_cannot_be_written(tmp_path):
    (tmp_path / "posts").write_text("a file")
    job = Job(DeltaPlace(tmp_path))
    with pytest.raises((SinkError, ConfigurationError), match="posts"):
        job.start()


@pytest.mark.parametrize("path", ["", "gs://bucket/table", "memory://x", 7, "a\0b"])
def test_paths_that_are_none(path):
    with pytest.raises(ConfigurationError, match="DeltaSink"):
        DeltaSink(path)


def test_it_is_rebuilt_from_its_description(tmp_path):
    options = {"secret_access_key": "hidden", "access_key_id": "me"}
    sink = DeltaSink(
        tmp_path / "t",
        partition_by=["day"],
        mode="upsert",
        key=["post", "n"],
        storage_options=options,
    )
    described = sink.describe()
    assert "hidden" not in json.dumps(described) + repr(sink)
    again = sink_from_description(described)
    assert isinstance(again, DeltaSink)
    assert again.describe() == described
    remote = DeltaSink("s3://bucket/table/").describe()
    assert remote["uri"] == "s3://bucket/table"
    assert "path" not in remote


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match=r"turnback\[delta\]"):
        DeltaSink(tmp_path)


def test_an_old_version_is_what_its_checkpoint_had(job):
    committer, told = job.start(), []
    for epoch, row in ((7, A), (8, B), (9, C)):
        committer.commit([job.write(row, epoch=epoch)])
        told.append(committer.target_version())
    for count, version in enumerate(told, 1):
        table = DeltaTable(str(job.place.root), version=int(version))
        assert table.to_pyarrow_table().num_rows == count


def test_columns_that_only_the_type_names(tmp_path):
    job = Job(DeltaPlace(tmp_path), POSTS)
    job.start()
    assert [field.name for field in job.place.table().schema().fields] == ["post", "n", "day"]
