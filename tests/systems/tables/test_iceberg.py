"""What only Iceberg tables have: catalogs, snapshots, and types of their own."""

import json
from datetime import time

import pyarrow as pa
import pytest
from table_support import A, B, IcebergPlace, Job

from turnback import Types
from turnback.connectors.registry import sink_from_description
from turnback.connectors.tables import IcebergSink
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import directory_digest, version_of


@pytest.fixture
def job(tmp_path):
    return Job(IcebergPlace(tmp_path))


def test_the_snapshot_names_job_and_sink(job):
    job.start().commit([job.write(A)])
    summary = job.place.table().current_snapshot().summary.additional_properties
    assert (summary["turnback.job"], summary["turnback.sink"]) == ("likes", "out")
    place = directory_digest(job.directory)
    told = {"directory": place, "job-id": "id-1", "attempt": "3", "version": str(version_of(3, 7))}
    assert {key: summary[f"turnback.{key}"] for key in told} == told


def test_data_and_number_are_one_commit(job):
    committer = job.start()
    before = len(job.place.table().metadata.metadata_log)
    committer.commit([job.write(A)])
    assert len(job.place.table().metadata.metadata_log) == before + 1
    assert job.place.remembered() == [version_of(3, 7)]


def test_partitions_are_pruned_by_readers(tmp_path):
    job = Job(IcebergPlace(tmp_path), partition_by=["day"])
    job.start().commit([job.write(A, B, ("c", 3, None))])
    tasks = list(job.place.table().scan(row_filter="day = 'mon'").plan_files())
    assert [task.file.record_count for task in tasks] == [1]


def test_times_of_day_and_small_integers(tmp_path):
    type_ = Types.ROW_NAMED(
        ["at", "tiny", "many"], [Types.SQL_TIME(), Types.BYTE(), Types.LIST(Types.SHORT())]
    )
    job = Job(IcebergPlace(tmp_path), type_)
    row = (time(1, 2, 3, 456789), -5, [1, None])
    job.start().commit([job.write(row)])
    assert job.rows() == [row]


def test_a_table_that_is_divided_by_a_transform_is_refused(job):
    job.place.create(pa.schema([("post", pa.string()), ("n", pa.int64()), ("day", pa.string())]))
    with job.place.table().update_spec() as spec:
        spec.add_field("post", "bucket[4]")
    with pytest.raises(ConfigurationError, match="partitioned by a transform"):
        job.sink.check_target(job.context())


def test_a_namespace_that_is_missing_is_named(tmp_path):
    place = IcebergPlace(tmp_path)
    sink = IcebergSink(place.properties, "nowhere.posts")
    ctx = Job(place).context()
    sink.check_target(ctx)
    with pytest.raises(ConfigurationError, match="the catalog has no namespace 'nowhere'"):
        sink.acquire_target(ctx)


def test_a_catalog_that_does_not_answer_and_no_password_is_told(tmp_path):
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/missing/catalog.db?password=hunter22",
        "warehouse": f"file://{tmp_path}",
        "s3.secret-access-key": "hunter22",
    }
    sink = IcebergSink(properties, "db.posts")
    with pytest.raises(SinkError) as failed:
        sink.check_target(Job(IcebergPlace(tmp_path)).context())
    assert "db.posts" in str(failed.value)
    assert "hunter22" not in str(failed.value)


def test_no_password_is_described(job):
    described = json.dumps(job.sink.describe()) + repr(job.sink)
    assert "sqlite" not in described
    assert sink_from_description(job.sink.describe()) is None


def test_a_named_catalog_is_rebuilt_from_its_description():
    sink = IcebergSink("prod", "db.posts", partition_by=["day"])
    again = sink_from_description(sink.describe())
    assert isinstance(again, IcebergSink)
    assert again.describe() == sink.describe()


@pytest.mark.parametrize(
    ("catalog", "table"),
    [({}, "db.t"), ("", "db.t"), (3, "db.t"), ("c", "t"), ("c", "db."), ("c", 3)],
)
def test_arguments_that_cannot_be_used(catalog, table):
    with pytest.raises(ConfigurationError, match="IcebergSink"):
        IcebergSink(catalog, table)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyiceberg", None)
    with pytest.raises(ConfigurationError, match=r"turnback\[iceberg\]"):
        IcebergSink("prod", "db.posts")
