"""What a source reads of Kinesis, as Spark would ask it: shards that come and go, and faults."""

from __future__ import annotations

import json
import time
from collections import defaultdict

import pytest

from services.kinesis import KEYS, MIDDLE, REGION, KinesisServer
from services.process import free_port
from turnback.checkpoint.source_offsets import open_partitions
from turnback.connectors import SimpleStringSchema
from turnback.connectors.kinesis import KinesisOffsetsInitializer, KinesisSource
from turnback.connectors.kinesis import client as kinesis_shards
from turnback.connectors.kinesis.positions import kinesis_position
from turnback.connectors.kinesis.reader import KinesisReader
from turnback.errors import ConfigurationError, SourceError
from turnback.plan.sources import OFFSET_COLUMN, PARTITION_COLUMN, partition_number
from turnback.worker.message import EncodedError


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(kinesis_shards, "_PAUSE_S", 0.0)


def source(server: KinesisServer, stream: str, **settings) -> KinesisSource:
    builder = KinesisSource.builder().set_stream(stream).set_region(REGION)
    builder.set_endpoint(settings.pop("endpoint", server.url))
    builder.set_credentials(*settings.pop("credentials", KEYS))
    for name, value in settings.items():
        getattr(builder, f"set_{name}")(value)
    return builder.set_value_only_deserializer(SimpleStringSchema()).build()


class Query:
    """Reads a stream epoch by epoch, and each epoch once more by a process that knows nothing."""

    def __init__(self, source: KinesisSource) -> None:
        self.options = {**source.options, "columns": '["shard", "sequence_number"]'}
        self.reader = KinesisReader(self.options)
        self.at = self.reader.initialOffset()
        self.found: dict[str, list[str]] = defaultdict(list)
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self.order: list[str] = []

    def epoch(self, *, twice: bool = True) -> int:
        """Read an epoch; return how many records it had."""
        end = json.loads(json.dumps(self.reader.latestOffset(self.at, None)))
        batches = list(read(self.reader, self.at, end))
        if twice:
            assert list(read(KinesisReader(self.options), self.at, end)) == batches
        for batch in batches:
            for row in batch:
                self.found[row["shard"]].append(row["value"].decode())
                self.numbers[row["shard"]].append(row[OFFSET_COLUMN])
                name = f"{self.options['stream']}/{row['shard']}"
                assert row[PARTITION_COLUMN] == partition_number(name)
                self.order.append(row["value"].decode())
        self.at = end
        return sum(map(len, batches))

    def all(self) -> dict[str, list[str]]:
        """Read until nothing new comes."""
        before = None
        while self.at != before:
            before = self.at
            self.epoch()
        return dict(self.found)

    def restart(self) -> None:
        """Go on in another process."""
        self.reader = KinesisReader(self.options)


def read(reader: KinesisReader, start, end):
    for partition in reader.partitions(start, end):
        yield [row for batch in reader.read(partition) for row in batch.to_pylist()]


def test_shards_are_read_in_order_and_numbered(kinesis):
    stream = kinesis.create_stream(2)
    kinesis.write(stream, [f"a{n}" for n in range(600)])
    kinesis.write(stream, [f"b{n}" for n in range(30)], MIDDLE)
    query = Query(source(kinesis, stream, max_records_per_epoch=100))
    assert query.epoch() == 100
    query.restart()
    first, second = kinesis.shards(stream)
    assert query.all() == {
        first: [f"a{n}" for n in range(600)],
        second: [f"b{n}" for n in range(30)],
    }
    assert query.numbers[first] == list(range(600))
    assert open_partitions(json.dumps(query.at)) == (f"{stream}/{first}", f"{stream}/{second}")


def test_an_epoch_has_no_more_bytes_than_it_may(kinesis):
    stream = kinesis.create_stream(1)
    texts = [f"{n:010d}" for n in range(30)] + ["x" * 500, "y" * 10]
    kinesis.write(stream, texts)
    query = Query(source(kinesis, stream, max_bytes_per_epoch=100))
    assert [query.epoch() for _ in range(5)] == [10, 10, 10, 1, 1]  # one record always
    assert query.order == texts


def test_children_are_read_after_their_parents_have_ended(kinesis):
    stream = kinesis.create_stream(1)
    client, (parent,) = kinesis.client(), kinesis.shards(stream)
    kinesis.write(stream, [f"p{n}" for n in range(50)])
    query = Query(source(kinesis, stream, max_records_per_epoch=20))
    query.epoch()
    client.split_shard(StreamName=stream, ShardToSplit=parent, NewStartingHashKey=str(MIDDLE))
    kinesis.write(stream, [f"l{n}" for n in range(30)])
    kinesis.write(stream, [f"r{n}" for n in range(30)], MIDDLE)
    query.restart()
    query.epoch()
    _, left, right = kinesis.shards(stream)
    client.merge_shards(StreamName=stream, ShardToMerge=left, AdjacentShardToMerge=right)
    kinesis.write(stream, [f"m{n}" for n in range(30)])
    query.restart()
    merged = kinesis.shards(stream)[-1]
    assert query.all() == {
        parent: [f"p{n}" for n in range(50)],
        left: [f"l{n}" for n in range(30)],
        right: [f"r{n}" for n in range(30)],
        merged: [f"m{n}" for n in range(30)],
    }
    # Whatever has one key is in order across all of them.
    assert [v for v in query.order if v[0] in "plm"] == [
        f"{shard}{n}" for shard, count in (("p", 50), ("l", 30), ("m", 30)) for n in range(count)
    ]
    ends = kinesis_position(json.dumps(query.at))["shards"]
    assert [id for id, at in ends.items() if at.get("ended")] == [parent, left, right]
    # Shards that have ended hold nobody's event time back.
    assert open_partitions(json.dumps(query.at)) == (f"{stream}/{merged}",)


def test_nothing_new_is_no_epoch(kinesis):
    stream = kinesis.create_stream(2)
    query = Query(source(kinesis, stream))
    assert query.epoch() == 0
    before = json.dumps(query.at)
    query.epoch()
    query.restart()
    query.epoch()
    assert json.dumps(query.at) == before


@pytest.mark.parametrize("start", ["latest", "timestamp", "sequence_numbers"])
def test_reading_starts_where_it_is_told_to(kinesis, start):
    stream = kinesis.create_stream(1)
    old = kinesis.write(stream, ["old"])
    time.sleep(0.05)
    now, (shard,) = int(time.time() * 1000), kinesis.shards(stream)
    argument = {"latest": (), "timestamp": (now,), "sequence_numbers": ({shard: old[0]},)}[start]
    begin = getattr(KinesisOffsetsInitializer, start)(*argument)
    query = Query(source(kinesis, stream, starting_offsets=begin))
    time.sleep(0.05)
    kinesis.write(stream, ["new"])
    query.restart()
    expected = ["old", "new"] if start == "sequence_numbers" else ["new"]
    assert query.all() == {shard: expected}


def test_a_bounded_job_reads_what_is_there_when_it_starts(kinesis):
    stream = kinesis.create_stream(1)
    kinesis.write(stream, ["a", "b", "c"])
    query = Query(source(kinesis, stream, max_records_per_epoch=2))
    query.reader.prepareForTriggerAvailableNow()
    time.sleep(0.05)
    kinesis.write(stream, ["later"])
    assert [query.epoch(), query.epoch(), query.epoch()] == [2, 1, 0]


def test_expired_iterators_and_refused_questions_lose_and_double_nothing(kinesis):
    stream = kinesis.create_stream(1)
    (shard,), query = kinesis.shards(stream), Query(source(kinesis, stream))
    expected = []
    for number in range(4):
        values = [f"{number}-{n}" for n in range(5)]
        kinesis.write(stream, values)
        expected += values
        kinesis.order(**({"expire": True} if number % 2 else {"throttle": 4}))
        query.all()
    query.all()
    assert query.found[shard] == expected


# -- what is gone


def test_an_epoch_that_cannot_be_read_again_is_refused_with_what_is_lost(kinesis):
    stream = kinesis.create_stream(1)
    kinesis.write(stream, ["a", "b", "c", "d"])
    (shard,), query = kinesis.shards(stream), Query(source(kinesis, stream))
    end = query.reader.latestOffset(query.at, None)
    kinesis.order(trim=[stream, shard, 3])
    with pytest.raises(EncodedError, match=r"has 1 of the 4 records .* so 3 are lost to retention"):
        list(read(KinesisReader(query.options), query.at, end))
    lenient = KinesisReader({**query.options, "fail_on_data_loss": "false"})
    assert [row["value"] for rows in read(lenient, query.at, end) for row in rows] == [b"d"]


def old_position(kinesis: KinesisServer, stream: str, number: str) -> str:
    (shard,) = kinesis.shards(stream)
    at = {"at": ["AFTER_SEQUENCE_NUMBER", number], "count": 1, "seen": 1_000_000}
    return json.dumps(
        {
            "source": "kinesis",
            "stream": stream,
            "start": ["TRIM_HORIZON", None],
            "shards": {shard: at},
        }
    )


def test_a_position_that_retention_has_passed_is_refused(kinesis, caplog):
    stream = kinesis.create_stream(1)
    numbers = kinesis.write(stream, ["a", "b", "c"])
    (shard,), made = kinesis.shards(stream), source(kinesis, stream)
    position = old_position(kinesis, stream, numbers[1])
    made.source_check()("source 'in'", position)  # its last record is still there
    kinesis.order(trim=[stream, shard, 2])
    lost = f"'in': shard '{shard}' no longer has .* arrived after 1970-01-01T00:16:40"
    with pytest.raises(ConfigurationError, match=lost) as refused:
        made.source_check()("source 'in'", position)
    assert "set_fail_on_data_loss(False)" in str(refused.value)
    query = Query(made)
    query.at = json.loads(position)
    with pytest.raises(EncodedError, match="no longer has the record"):
        query.epoch()
    lenient = source(kinesis, stream, fail_on_data_loss=False)
    lenient.source_check()("source 'in'", position)
    assert "it continues with the available records" in caplog.text
    query = Query(lenient)
    query.at = json.loads(position)
    assert query.all() == {shard: ["c"]}


def test_a_position_in_another_stream_is_refused(kinesis):
    one, other = kinesis.create_stream(1), kinesis.create_stream(1)
    position = old_position(kinesis, one, "1")
    with pytest.raises(
        ConfigurationError, match=f"position is in stream '{one}', but it reads '{other}'"
    ):
        source(kinesis, other).source_check()("source 'in'", position)


# -- what is refused at the start


def test_a_missing_stream_is_named(kinesis):
    with pytest.raises(ConfigurationError, match="'in': cannot find stream 'none'"):
        source(kinesis, "none").source_check()("source 'in'", None)


def test_wrong_and_missing_credentials_are_told_without_them(kinesis, monkeypatch, tmp_path):
    made = source(kinesis, kinesis.create_stream(), credentials=("wrong", "secret-of-aws"))
    with pytest.raises(ConfigurationError, match="rejected the login") as refused:
        made.source_check()("source 'in'", None)
    assert "secret-of-aws" not in str(refused.value) + repr(made) + repr(made.source_check())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    builder = KinesisSource.builder().set_stream("s").set_endpoint(kinesis.url)
    builder.set_value_only_deserializer(SimpleStringSchema())
    with pytest.raises(ConfigurationError, match=r"no region for Kinesis.*set_region"):
        builder.build().source_check()("source 'in'", None)
    with pytest.raises(ConfigurationError, match=r"no credentials for Kinesis.*set_credentials"):
        builder.set_region(REGION).build().source_check()("source 'in'", None)


def test_a_server_that_does_not_answer_is_named(kinesis):
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(SourceError, match=f"'in': Kinesis at {url} does not respond"):
        source(kinesis, "any", endpoint=url).source_check()("source 'in'", None)


def test_it_tells_how_old_the_oldest_unread_record_is(kinesis):
    stream = kinesis.create_stream(1)
    query = Query(source(kinesis, stream))
    reader = source(kinesis, stream).lag_reader()()
    assert reader.read(None) is None
    assert reader.read(json.dumps(query.at)).seconds == 0
    kinesis.write(stream, ["a"])
    time.sleep(0.05)
    behind = reader.read(json.dumps(query.at))
    assert behind.records is None
    assert 0.03 < behind.seconds < 600
    query.all()
    assert reader.read(json.dumps(query.at)).seconds == 0
