"""What is asked of a real server before a source is left to Spark, and as Spark would ask."""

from __future__ import annotations

import json

import pytest

from services.process import free_port
from services.rabbitmq import PASSWORD, USER, RabbitMQServer
from turnback import RabbitMQOffsetsInitializer, RabbitMQSource, SimpleStringSchema
from turnback.core.errors import ConfigurationError, SourceError
from turnback.program.source_lag import SourceLag
from turnback.spark.rabbitmq import RabbitMQReader
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


def test_a_missing_stream_is_named(rabbitmq):
    with pytest.raises(ConfigurationError, match="'in': cannot find stream 'no-such-stream'"):
        check(rabbitmq, "no-such-stream")


def test_a_server_that_does_not_answer_is_named(rabbitmq):
    port = free_port()
    with pytest.raises(SourceError, match=f"'in': RabbitMQ at 127.0.0.1:{port} does not answer"):
        check(rabbitmq, "any", port=port)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"password": WRONG}, "refused the login of user 'turnback'"),
        ({"user_name": "nobody"}, "refused the login of user 'nobody'"),
        ({"virtual_host": "nowhere"}, "may not read .* in virtual host 'nowhere'"),
    ],
)
def test_a_refused_login_is_told_without_the_password(rabbitmq, settings, reason):
    with pytest.raises(ConfigurationError, match=reason) as refused:
        check(rabbitmq, rabbitmq.create_stream(), **settings)
    assert WRONG not in str(refused.value)


def test_what_retention_has_taken_is_told(rabbitmq, caplog):
    stream = trimmed_stream(rabbitmq)
    with pytest.raises(
        ConfigurationError, match=f"stream '{stream}' begins at .* goes on at 2, so .* are lost"
    ) as refused:
        check(rabbitmq, stream, at={stream: 2})
    assert "set_fail_on_data_loss(False)" in str(refused.value)
    check(rabbitmq, stream, at={stream: 2}, fail_on_data_loss=False)
    assert "it goes on with what is there" in caplog.text


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
    with pytest.raises(ConfigurationError, match=r"ends at 3 and the job goes on at 8: .* anew"):
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
    assert found == json.loads(position({stream: begins}))


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
    with pytest.raises(EncodedError, match="ends at 3 and the job goes on at 8"):
        strict.latestOffset(at, None)
    lenient = reader(source(rabbitmq, stream, fail_on_data_loss=False))
    anew = lenient.latestOffset(at, None)
    assert anew == json.loads(position({stream: 0}))
    assert lenient.partitions(at, anew) == []
    assert lenient.latestOffset(anew, None) == json.loads(position({stream: 3}))


def test_a_position_in_a_stream_that_is_not_read_is_refused(rabbitmq):
    stream = rabbitmq.create_stream()
    with pytest.raises(ConfigurationError, match="goes on in stream 'other', which it does not"):
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
