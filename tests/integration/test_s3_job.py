"""A whole job with its directory on S3: the storage seam holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from services.s3 import s3_server
from turnback import (
    FileSink,
    KeyedProcessFunction,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.checkpoint.log import CheckpointLog
from turnback.job.directory import JobDirectory
from verification import verify


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield Row(value.key, self.count.value())


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def by_value():
    # Workers cannot import this module, so its classes travel by value.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def run(session, server, root: str, place: Path):
    env = StreamExecutionEnvironment.get_execution_environment(spark=session, root=root)
    env.set_storage_options(**server.options).set_parallelism(2).enable_checkpointing(10)
    events = env.from_files(place / "in", "json", "key string", uid="in", max_files_per_epoch=1)
    counts = events.key_by("key").process(Count(), output_type="key string, n bigint").uid("count")
    counts.sink_to(FileSink(place / "out", "json")).uid("out")
    return env.execute("on-s3", bounded=True)


def publish(place: Path, name: str) -> None:
    lines = [json.dumps({"key": f"k{i % 3}"}) for i in range(30)]
    (place / "in" / f"{name}.json").write_text("\n".join(lines))


def test_a_job_keeps_its_state_on_s3(session, server, tmp_path, by_value):
    root = f"{server.create_bucket('turnback')}/jobs"
    (tmp_path / "in").mkdir()
    publish(tmp_path, "a")
    publish(tmp_path, "b")
    first = run(session, server, root, tmp_path)
    publish(tmp_path, "c")
    second = run(session, server, root, tmp_path)
    assert first.checkpoints == 2
    assert second.restored_from == f"chk-{first.last_checkpoint}"
    files = (tmp_path / "out").glob("*.json")
    rows = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    expected = [{"key": f"k{k}", "n": n} for k in range(3) for n in range(1, 31)]
    assert sorted(rows, key=lambda r: (r["key"], r["n"])) == expected
    directory = JobDirectory.locate(root, "on-s3", server.options)
    assert CheckpointLog(directory.storage).latest().number == second.last_checkpoint
    assert verify(directory.storage) == []
