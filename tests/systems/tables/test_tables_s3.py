"""Tables in an object store: the same promises where nothing can be renamed or synced."""

import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from table_support import A, B, C, Job

from services.s3 import S3Server, s3_server
from turnback.connectors.tables import DeltaSink, IcebergSink
from turnback.storage.open import open_storage


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("gateway")) as running:
        running.create_bucket("bucket")
        yield running


class DeltaOnS3:
    def __init__(self, server, tmp_path):
        self.location = f"s3://bucket/{uuid.uuid4().hex}"
        self.options = server.options

    def sink(self, **arguments):
        return DeltaSink(self.location, storage_options=self.options, **arguments)

    def read(self) -> pa.Table:
        return DeltaTable(self.location, storage_options=self.options).to_pyarrow_table()


class IcebergOnS3:
    def __init__(self, server, tmp_path):
        self.location = f"s3://bucket/{uuid.uuid4().hex}/db/posts"
        self.options = server.options
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": self.location.removesuffix("/db/posts"),
            "s3.endpoint": server.endpoint,
            "s3.access-key-id": server.options["access_key_id"],
            "s3.secret-access-key": server.options["secret_access_key"],
            "s3.region": "us-east-1",
        }
        load_catalog("default", **self.catalog).create_namespace("db")

    def sink(self, **arguments):
        return IcebergSink(self.catalog, "db.posts", storage_options=self.options, **arguments)

    def read(self) -> pa.Table:
        return load_catalog("default", **self.catalog).load_table("db.posts").scan().to_arrow()


@pytest.fixture(params=[DeltaOnS3, IcebergOnS3], ids=["delta", "iceberg"])
def place(request, server, tmp_path):
    return request.param(server, tmp_path)


def names(place):
    return open_storage(place.location, place.options).list()


def test_rows_are_there_once_and_what_dead_attempts_wrote_is_gone(place):
    job = Job(place, partition_by=["day"])
    committer = job.start()
    done, promised = job.write(A, B, C), job.write(A, epoch=8)
    committer.commit([done])
    committer.commit([done])
    job.write(B, epoch=9)
    before = {name for name in names(place) if name.endswith(".inprogress")}
    assert len(before) == 2
    job.start(4, [promised]).commit([done, promised])
    assert job.rows() == [A, A, B, C]
    assert not [name for name in names(place) if name.endswith(".inprogress")]
    assert len([name for name in names(place) if name.endswith(".parquet")]) == 4


def test_rows_are_replaced(place):
    job = Job(place, mode="upsert", key=["post"])
    committer = job.start()
    committer.commit([job.write(A, B)])
    committer.commit([job.write(("a", 9, "wed"), epoch=8)])
    assert job.rows() == [("a", 9, "wed"), B]
