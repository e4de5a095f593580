"""Streams of a real server through Spark: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark_program import run
from test_rabbitmq_check import trimmed_stream

from services.rabbitmq import PASSWORD, USER, RabbitMQServer

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reads(rabbitmq: RabbitMQServer, tmp_path_factory: pytest.TempPathFactory, java: str):
    """What came in every way of reading, all from one Spark."""
    texts, rows, short = (
        rabbitmq.create_stream(),
        rabbitmq.create_stream(),
        trimmed_stream(rabbitmq),
    )
    rabbitmq.write(texts, [f"a{n}" for n in range(2500)])
    rabbitmq.write(rows, ['{"user": "ann", "n": 1}'], application_properties={"from": "phone"})
    rabbitmq.write(rows, ["no json", '{"user": "bob"}'])
    ahead, behind = rabbitmq.create_stream(), rabbitmq.create_stream()
    for stream, first in ((ahead, 5_000), (behind, 0)):
        numbers = range(first, first + 100)
        rabbitmq.write(stream, [json.dumps({"user": "ann", "n": n}) for n in numbers])
    server = {
        "host": "127.0.0.1",
        "port": rabbitmq.port,
        "user_name": USER,
        "password": PASSWORD,
    }
    metadata = {"metadata_columns": ["stream", "offset", "timestamp", "properties"]}
    wanted = {
        "texts": {"streams": [texts]},
        "rows": {"streams": [rows], "json": True, **metadata},
        "side": {"streams": [rows], "json": False},
        "strict": {"streams": [rows], "json": False},
        "lost": {"streams": [short], "start": ["offsets", {short: 3}], "fails": True},
        "skipped": {
            "streams": [short],
            "start": ["offsets", {short: 3}],
            "fail_on_data_loss": False,
        },
        "timed": {
            "streams": [ahead, behind],
            "json": True,
            "max_records_per_epoch": 40,
            "timed": True,
        },
        "missing": {"streams": ["no-such-stream"]},
    }
    given = {name: {**server, **settings} for name, settings in wanted.items()}
    directory = tmp_path_factory.mktemp("reads")
    lines = run(HERE / "rabbitmq_reads.py", directory, java, json.dumps(given)).splitlines()
    jobs = {path.name for path in (directory / "jobs").iterdir()}
    return {**dict(map(json.loads, lines)), "jobs": jobs, "names": (texts, rows, short)}


def test_messages_are_read_in_order(reads):
    assert reads["texts"] == [f"a{n}" for n in range(2500)]


def test_rows_come_with_what_rabbitmq_knows_of_them(reads):
    ann, bob = reads["rows"]
    assert ann.pop("timestamp") > 1_600_000_000_000
    assert ann == {
        "user": "ann",
        "n": 1,
        "stream": reads["names"][1],
        "offset": 0,
        "properties": [["from", "phone"]],
    }
    assert (bob["user"], bob["offset"], bob["properties"]) == ("bob", 2, [])


def test_malformed_records_come_with_their_place(reads):
    place = f"stream {reads['names'][1]}, offset 1"
    assert reads["side"] == [{"source": "records", "place": place, "text": "no json"}]
    assert (
        f"MalformedRecordError: source 'records': a record does not match its schema: {place}"
        in (reads["strict"])
    )


def test_a_stream_that_is_ahead_makes_no_other_late(reads):
    assert reads["timed"] == 200


def test_what_retention_has_taken_fails_the_job_or_is_left_out(reads):
    stream = reads["names"][2]
    assert "SourceError" in reads["lost"] or "JobFailedError" in reads["lost"]
    assert f"stream '{stream}' begins at" in reads["lost"]
    assert "set_fail_on_data_loss(False)" in reads["lost"]
    assert 0 < len(reads["skipped"]) < 97


def test_a_missing_stream_is_named_before_the_job_starts(reads):
    assert reads["missing"].startswith("ConfigurationError: source 'records' of job 'missing'")
    assert "cannot find stream 'no-such-stream'" in reads["missing"]
    assert "missing" not in reads["jobs"]
