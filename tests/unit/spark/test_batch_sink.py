"""What `SparkBatchSink` remembers and sends to tasks; with DataFrames in tests/integration."""

import pickle
import threading
import uuid
from contextlib import nullcontext
from dataclasses import replace

import pytest
from sink_support import write

from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, version_of
from turnback.sinks.write_ahead import VersionRecords
from turnback.spark import SparkBatchSink, batch_sink
from turnback.spark.batch_sink import BatchEpoch
from turnback.state.files import StorageRef, storage_of


def context(attempt: int = 3, storage: StorageRef | None = None, uid: str = "out"):
    return CommitterContext("likes", "id-1", uid, attempt, storage=storage)


@pytest.fixture
def storage() -> StorageRef:
    return StorageRef(f"memory://{uuid.uuid4().hex}")


def test_a_function_is_needed():
    with pytest.raises(ConfigurationError, match="takes a function of a DataFrame"):
        SparkBatchSink("likes")


def test_the_function_stays_on_the_driver():
    lock = threading.Lock()  # cannot be pickled, as a session cannot
    sink = SparkBatchSink(lambda frame, epoch: lock.acquire())
    assert pickle.loads(pickle.dumps(sink)).describe()["kind"] == "for_each_batch"


def test_what_it_is_called():
    def into_the_warehouse(frame, epoch):
        return

    sink = SparkBatchSink(into_the_warehouse)
    assert repr(sink) == "SparkBatchSink(into_the_warehouse)"
    assert sink.describe() == {"kind": "for_each_batch", "function": "into_the_warehouse"}


def test_the_newest_record_counts_and_older_files_go(storage):
    assert VersionRecords(context(storage=storage), "published").newest() == 0
    VersionRecords(context(3, storage), "published").write(version_of(3, 7))
    VersionRecords(context(4, storage), "published").write(version_of(3, 8))
    assert len(VersionRecords(context(storage=storage), "published")._paths()) == 1
    assert SparkBatchSink(print).published(context(5, storage)) == version_of(3, 8)


def test_a_driver_that_was_replaced_does_not_turn_the_record_back(storage):
    VersionRecords(context(4, storage), "published").write(version_of(4, 9))
    VersionRecords(context(3, storage), "published").write(version_of(3, 10))
    assert VersionRecords(context(storage=storage), "published").newest() == version_of(4, 9)


def test_a_write_that_comes_late_does_not_turn_the_record_back(storage):
    records = VersionRecords(context(3, storage), "published")
    records.write(version_of(3, 7))
    (late,) = records._paths().values()
    data = storage_of(storage).get(late)
    records.write(version_of(3, 8))
    storage_of(storage).put(late, data)
    assert VersionRecords(context(storage=storage), "published").newest() == version_of(3, 8)


def test_a_record_of_an_earlier_version_of_turnback_is_read(storage):
    records = VersionRecords(context(3, storage), "published")
    records.write(version_of(3, 7))
    (path,) = records._paths().values()
    before = f"{path.rpartition('-')[0]}.json"
    storage_of(storage).put(before, storage_of(storage).get(path))
    storage_of(storage).delete(path)
    assert VersionRecords(context(storage=storage), "published").newest() == version_of(3, 7)


def test_sinks_have_records_of_their_own(storage):
    VersionRecords(context(3, storage), "published").write(version_of(3, 7))
    assert SparkBatchSink(print).published(context(3, storage, "other")) == 0


def test_nothing_is_recorded_of_a_job_in_memory():
    for storage in (None, StorageRef("memory://x", inline=True)):
        records = VersionRecords(context(storage=storage), "published")
        records.write(5)
        assert records.newest() == 0


def test_the_function_is_not_called_for_an_epoch_of_which_a_file_is_missing(
    storage, writer_ctx, committer_ctx, monkeypatch
):
    """It may write in several steps, and would leave the first of them behind."""
    called = []
    monkeypatch.setattr(batch_sink, "spark_session", lambda: None)
    monkeypatch.setattr(batch_sink, "spark_job", lambda spark, description: nullcontext())
    monkeypatch.setattr(batch_sink, "_frame", lambda spark, ctx, output: output.parts)
    sink = SparkBatchSink(lambda parts, epoch: called.append(len(parts)))
    staged = [write(sink, writer_ctx(partition=p, storage=storage), ("a", p)) for p in range(2)]
    second = storage_of(storage).list("sinks")[1]
    data = storage_of(storage).get(second)
    storage_of(storage).delete(second)
    with pytest.raises(SinkError, match="1 rows of epoch 7 are lost"):
        sink.committer(committer_ctx(storage=storage)).commit(staged)
    assert called == []
    storage_of(storage).put(second, data)
    sink.committer(committer_ctx(storage=storage)).commit(staged)
    assert called == [2]


def test_a_version_joins_attempt_and_epoch():
    assert BatchEpoch("likes", "id-1", "out", 3, 7).version == version_of(3, 7)


def test_a_writer_is_one_sink_of_one_job_in_one_place():
    epoch = BatchEpoch("likes", "id-1", "out", 3, 7, "here")
    assert replace(epoch, attempt=4, epoch=9).writer == epoch.writer
    others = {"job_id": "a fork", "sink": "another", "directory_id": "a copy"}
    writers = {replace(epoch, **{field: value}).writer for field, value in others.items()}
    assert len(writers | {epoch.writer}) == 4
