"""What is asked of a real server before a source is left to Spark, and as Spark would ask."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from services.process import free_port
from services.rabbitmq import PASSWORD, USER, RabbitMQServer
from turnback.connectors import SimpleStringSchema
from turnback.connectors.rabbitmq import RabbitMQOffsetsInitializer, RabbitMQSource
from turnback.connectors.rabbitmq.client import FIRST, RabbitMQClient
from turnback.connectors.rabbitmq.reader import RabbitMQReader, server_of
from turnback.errors import ConfigurationError, SourceError
from turnback.plan.sources import SourceLag
from turnback.worker.message import EncodedError

WRONG = "wrong-password-of-rabbitmq"


def source(server: RabbitMQServer, *streams: str, **settings) -> RabbitMQSource:
    builder = RabbitMQSource.builder().set_host("127.0.0.1").set_streams(*streams)
    given = {"port": server.port, "user_name": USER, "password": PASSWORD} | settings
    for name, value in given.items():
        getattr(builder, f"set_{name}")(value)
    return builder.set_value_only_deserializer(SimpleStringSchema()).build()


def position(at) -> str | None:
    return None if at is None else json.dumps({"source": "rabbitmq", "next": at})


def check(server: RabbitMQServer, *streams: str, at=None, **settings) -> None:
    source(server, *streams, **settings).source_check()("source 'in'", position(at))


def test_streams_and_positions_that_are_there_are_fine(rabbitmq):
    stream, empty = rabbitmq.create_stream(), rabbitmq.create_stream()
    rabbitmq.write(stream, ["x"] * 7)
    for at in (None, {stream: 0}, {stream: 7, empty: 0}, {}):
        check(rabbitmq, stream, empty, at=at)


def test_code_inside_of_an_event_loop_can_ask(rabbitmq):
    """As all code in a notebook is."""
    stream = rabbitmq.create_stream()

    async def cell() -> None:
        check(rabbitmq, stream)
        check(rabbitmq, stream, at={stream: 0})

    # Browsers of other tests may have left a loop in this thread.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, cell()).result()


def test_a_missing_stream_is_named(rabbitmq):
    with pytest.raises(ConfigurationError, match="'in': cannot find stream 'no-such-stream'"):
        check(rabbitmq, "no-such-stream")


def test_a_server_that_does_not_answer_is_named(rabbitmq):
    port = free_port()
    with pytest.raises(SourceError, match=f"'in': RabbitMQ at 127.0.0.1:{port} does not respond"):
        check(rabbitmq, "any", port=port)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"password": WRONG}, "rejected the login of user 'turnback'"),
        ({"user_name": "nobody"}, "rejected the login of user 'nobody'"),
        ({"virtual_host": "nowhere"}, "is not allowed to read .* in virtual host 'nowhere'"),
    ],
)
def test_a_refused_login_is_told_without_the_password(rabbitmq, settings, reason):
    with pytest.raises(ConfigurationError, match=reason) as refused:
        check(rabbitmq, rabbitmq.create_stream(), **settings)
    assert WRONG not in str(refused.value)


def test_what_retention_has_taken_is_told(rabbitmq, caplog):
    stream = trimmed_stream(rabbitmq)
    with pytest.raises(
        ConfigurationError, match=f"stream '{stream}' begins at .* is at 2, so .* are lost"
    ) as refused:
        check(rabbitmq, stream, at={stream: 2})
    assert "set_fail_on_data_loss(False)" in str(refused.value)
    check(rabbitmq, stream, at={stream: 2}, fail_on_data_loss=False)
    assert "it continues with the available records" in caplog.text


def trimmed_stream(rabbitmq: RabbitMQServer) -> str:
    """A stream whose first messages are gone."""
    sizes = {"max_length_bytes": 20_000, "stream_max_segment_size_bytes": 10_000}
    stream = rabbitmq.create_stream(**sizes)
    for _ in range(10):
        rabbitmq.write(stream, ["x" * 1000] * 10)
    return stream


def test_a_stream_that_was_made_anew_is_told(rabbitmq):
    stream = rabbitmq.create_stream()
    rabbitmq.write(stream, ["x"] * 3)
    with pytest.raises(ConfigurationError, match=r"ends at 3 and the job is at 8: .* recreated"):
        check(rabbitmq, stream, at={stream: 8})


def reader(made: RabbitMQSource) -> RabbitMQReader:
    return RabbitMQReader({**made.options, "columns": '["offset"]'})


@pytest.mark.parametrize(
    ("kind", "argument", "begins"),
    [
        ("earliest", (), 0),
        ("latest", (), 2500),
        ("timestamp", (1000,), 0),
        ("timestamp", (10**13,), 2500),
        ("offsets", ({"other": 7},), 0),
    ],
)
def test_reading_starts_where_it_is_told_to(rabbitmq, kind, argument, begins):
    stream = rabbitmq.create_stream()
    rabbitmq.write(stream, ["x"] * 2500)
    start = getattr(RabbitMQOffsetsInitializer, kind)(*argument)
    found = reader(source(rabbitmq, stream, starting_offsets=start)).initialOffset()
    assert found["next"] == {stream: begins}


def test_an_epoch_begins_and_ends_inside_of_chunks_and_reads_the_same_again(rabbitmq):
    stream, other = rabbitmq.create_stream(), rabbitmq.create_stream()
    rabbitmq.write(stream, [f"{n}" for n in range(2500)])
    rabbitmq.write(other, ["other"])
    start = RabbitMQOffsetsInitializer.offsets({stream: 1234})
    settings = {"starting_offsets": start, "max_records_per_epoch": 200}
    made = source(rabbitmq, stream, other, **settings)
    first, rows = reader(made), []
    at = first.initialOffset()
    while (end := first.latestOffset(at, None)) != at:
        epoch = [read(each, at, end) for each in (first, reader(made))]
        assert len(epoch[0]) <= 200
        assert epoch[0] == epoch[1]
        rows += epoch[0]
        at = end
    assert [row for row in rows if row[1] != b"other"] == [
        (n, str(n).encode()) for n in range(1234, 2500)
    ]
    assert (0, b"other") in rows


def read(made: RabbitMQReader, start, end) -> list:
    return [
        (row["offset"], row["value"])
        for partition in made.partitions(start, end)
        for batch in made.read(partition)
        for row in batch.to_pylist()
    ]


def test_whoever_skips_what_is_gone_begins_with_a_stream_that_was_made_anew(rabbitmq):
    stream = rabbitmq.create_stream()
    rabbitmq.write(stream, ["x"] * 3)
    at = json.loads(position({stream: 8}))
    strict = reader(source(rabbitmq, stream))
    with pytest.raises(EncodedError, match="ends at 3 and the job is at 8"):
        strict.latestOffset(at, None)
    lenient = reader(source(rabbitmq, stream, fail_on_data_loss=False))
    anew = lenient.latestOffset(at, None)
    assert anew["next"] == {stream: 0}
    assert lenient.partitions(at, anew) == []
    assert lenient.latestOffset(anew, None)["next"] == {stream: 3}


class MadeAnew:
    """A stream of which 100 messages were read, and which another one has replaced since."""

    def __init__(self, rabbitmq: RabbitMQServer, **settings) -> None:
        self.stream = rabbitmq.create_stream()
        rabbitmq.write(self.stream, [f"old {n}" for n in range(100)])
        self._server = rabbitmq
        self.reader = reader(source(rabbitmq, self.stream, **settings))
        self.first = self.reader.initialOffset()
        self.at = self.reader.latestOffset(self.first, None)
        assert self.at["next"] == {self.stream: 100}

    def replace(self, messages: int) -> None:
        self._server.make_anew(self.stream)
        if messages:
            self._server.write(self.stream, [f"new {n}" for n in range(messages)])


ANEW = r"stream 'stream-\d+' was deleted and recreated: .* would continue at 100 and skip"


@pytest.fixture
def _always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnback.connectors.rabbitmq.reader._IDLE_CHECK_S", 0)


@pytest.mark.usefixtures("_always_looking")
@pytest.mark.parametrize("messages", [5, 100, 130])
def test_a_stream_that_is_made_anew_while_the_job_runs_is_told(rabbitmq, messages):
    made = MadeAnew(rabbitmq)
    assert made.reader.latestOffset(made.at, None) == made.at
    made.replace(messages)
    for each in (made.reader, reader(source(rabbitmq, made.stream))):
        with pytest.raises(EncodedError, match=ANEW) as refused:
            each.latestOffset(made.at, None)
        assert "without_sources(uid)" in str(refused.value)


@pytest.mark.parametrize("messages", [100, 130])
def test_nothing_is_read_of_a_stream_that_was_made_anew_since_the_epoch_was_planned(
    rabbitmq, messages
):
    made = MadeAnew(rabbitmq)
    made.replace(messages)
    with pytest.raises(EncodedError, match="was deleted and recreated"):
        read(made.reader, made.first, made.at)


@pytest.mark.parametrize("messages", [5, 130])
def test_a_stream_that_was_made_anew_between_two_runs_is_told(rabbitmq, messages):
    made = MadeAnew(rabbitmq)
    made.replace(messages)
    checked = source(rabbitmq, made.stream).source_check()
    with pytest.raises(ConfigurationError, match=f"source 'in': {ANEW}"):
        checked("source 'in'", json.dumps(made.at))


@pytest.mark.usefixtures("_always_looking")
def test_an_empty_stream_that_was_made_anew_is_told_with_its_first_message(rabbitmq):
    made = MadeAnew(rabbitmq)
    made.replace(0)
    assert made.reader.latestOffset(made.at, None) == made.at
    rabbitmq.write(made.stream, ["first"])
    with pytest.raises(EncodedError, match=ANEW):
        made.reader.latestOffset(made.at, None)


@pytest.mark.usefixtures("_always_looking")
@pytest.mark.parametrize("messages", [5, 130])
def test_whoever_skips_what_is_gone_reads_all_of_a_stream_that_is_made_anew(rabbitmq, messages):
    made = MadeAnew(rabbitmq, fail_on_data_loss=False)
    made.replace(messages)
    anew = made.reader.latestOffset(made.at, None)
    end = made.reader.latestOffset(anew, None)
    assert (anew["next"], end["next"]) == ({made.stream: 0}, {made.stream: messages})
    assert read(made.reader, made.at, anew) == []
    values = [value for _, value in read(made.reader, anew, end)]
    assert values == [f"new {n}".encode() for n in range(messages)]
    assert made.reader.latestOffset(end, None) == end


def test_a_position_of_an_older_version_is_gone_on_from(rabbitmq):
    stream = rabbitmq.create_stream()
    rabbitmq.write(stream, ["x"] * 3)
    made = reader(source(rabbitmq, stream))
    older = json.loads(position({stream: 3}))
    assert made.latestOffset(older, None) == older
    rabbitmq.write(stream, ["x"] * 3)
    newer = made.latestOffset(older, None)
    assert (newer["next"], list(newer["chunks"])) == ({stream: 6}, [stream])


def test_a_chunk_that_retention_has_taken_makes_no_other_stream(rabbitmq):
    stream = trimmed_stream(rabbitmq)
    client = RabbitMQClient(server_of(source(rabbitmq, stream).options), "test")
    first = client.look(stream, FIRST).first
    client.close()
    at = {"source": "rabbitmq", "next": {stream: first}, "chunks": {stream: [0, 1]}}
    assert first > 0
    source(rabbitmq, stream).source_check()("source 'in'", json.dumps(at))
    assert reader(source(rabbitmq, stream)).latestOffset(at, None)["next"] == {stream: 100}


def test_a_position_in_a_stream_that_is_not_read_is_refused(rabbitmq):
    stream = rabbitmq.create_stream()
    with pytest.raises(
        ConfigurationError, match="its position is in stream 'other', which it does not"
    ):
        check(rabbitmq, stream, at={stream: 0, "other": 5})


def test_it_tells_how_far_it_is_behind(rabbitmq):
    stream, other = rabbitmq.create_stream(), rabbitmq.create_stream()
    rabbitmq.write(stream, ["x"] * 7)
    rabbitmq.write(other, ["x"])
    lag = source(rabbitmq, stream, other).lag_reader()()
    assert lag.read(None) is None
    behind = lag.read(position({stream: 2, other: 1}))
    assert behind.records == 5
    assert 0 < behind.seconds < 600
    assert lag.read(position({stream: 7, other: 1})) == SourceLag(0, 0.0)
    lag.close()
