"""Topics of a real broker through Spark's connector: what is read, and from Kafka to Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from spark_program import WRONG_PASSWORD, run

from services.kafka import PASSWORD, USER, KafkaBroker
from services.process import free_port

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def reads(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory, java: str):
    """What came in every way of reading, all from one Spark."""
    texts, rows, parts = kafka.create_topic(), kafka.create_topic(), kafka.create_topic(2)
    kafka.write(texts, ["a", "b"])
    _write_and_abort(kafka, texts, "aborted")
    kafka.write(texts, ["c"])
    headers = [("from", b"phone")]
    kafka.write(
        rows, ['{"user": "ann", "n": 1, "more": 2}'], key="k", timestamp=5000, headers=headers
    )
    kafka.write(rows, ["no json", b"\xff\xfe", '{"user": "bob"}'], timestamp=6000)
    kafka.write(rows, [None], key="k")
    for partition in (0, 1):
        values = [f"{partition}{n}" for n in range(3)]
        for number, value in enumerate(values):
            kafka.write(parts, [value], partition=partition, timestamp=1000 * (number + 1))
    nowhere, other = f"127.0.0.1:{free_port()}", kafka.create_topic()
    moved = kafka.create_topic(2)
    for partition in (0, 1):
        kafka.write(moved, ["x"] * 3, partition=partition)
    kafka.write(other, ["x"] * 4)
    wanted = {
        "texts": (texts, "text", None),
        "uncommitted": (texts, "uncommitted", None),
        "rows": (rows, "json", None),
        "malformed": (rows, "malformed", "dead_letter"),
        "refused-record": (rows, "malformed", "fail"),
        "offsets": (parts, "offsets", {"0": 1, "1": 3}),
        "timestamp": (parts, "timestamp", 3000),
        "pattern": (f"{parts}|{texts}", "pattern", None),
        "missing": ("no-such-topic", "text", None),
        "unreachable": (texts, "elsewhere", [nowhere]),
        "login": (texts, "login", [kafka.secured, USER, PASSWORD]),
        "refused": (texts, "login", [kafka.secured, USER, WRONG_PASSWORD]),
    }
    directory = tmp_path_factory.mktemp("reads")
    arguments = (kafka.servers, json.dumps(wanted), moved, other)
    lines = run(HERE / "kafka_reads.py", directory, java, *arguments).splitlines()
    jobs = {path.name for path in (directory / "jobs").iterdir()}
    names = {"topics": (moved, other), "at": nowhere, "rows-topic": rows}
    return {**dict(map(json.loads, lines)), "jobs": jobs, **names}


def _write_and_abort(kafka: KafkaBroker, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(30)
    producer.abort_transaction(30)


def test_committed_records_are_read_in_order(reads):
    assert reads["texts"] == ["a", "b", "c"]
    assert reads["uncommitted"] == ["a", "b", "aborted", "c"]


def test_rows_come_with_what_kafka_knows_of_them(reads):
    ann, bob = reads["rows"]
    assert ann == {
        "user": "ann",
        "n": 1,
        "key": "k",
        "partition": 0,
        "offset": 0,
        "timestamp": 5000,
        "headers": [["from", "phone"]],
    }
    assert (bob["user"], bob["n"], bob["headers"], bob["offset"]) == ("bob", None, [], 3)


def test_malformed_records_come_with_their_place(reads):
    places = [f"topic {reads['rows-topic']}, partition 0, offset {offset}" for offset in (1, 2)]
    found = reads["malformed"]
    assert [(row["source"], row["place"]) for row in found] == [("records", p) for p in places]
    assert found[0]["text"] == "no json"
    text = (
        f"MalformedRecordError: source 'records': a record does not match its schema: {places[0]}"
    )
    assert reads["refused-record"].startswith(f"{text}: 'no json'. Fix")


def test_reading_starts_where_it_is_told_to(reads):
    assert sorted(reads["offsets"]) == ["01", "02"]
    assert sorted(reads["timestamp"]) == ["02", "12"]


def test_all_topics_of_a_pattern_are_read(reads):
    assert sorted(reads["pattern"]) == ["00", "01", "02", "10", "11", "12", "a", "b", "c"]


def test_a_missing_topic_is_named_before_the_job_starts(reads):
    assert reads["missing"].startswith("ConfigurationError: source 'records' of job 'missing'")
    assert "cannot find topic 'no-such-topic'" in reads["missing"]
    assert "Create the topic" in reads["missing"]
    assert "missing" not in reads["jobs"]


def test_servers_that_do_not_answer_are_named_before_the_job_starts(reads):
    assert reads["unreachable"].startswith("SourceError: source 'records'")
    assert reads["at"] in reads["unreachable"]
    assert "unreachable" not in reads["jobs"]


def test_a_wrong_password_is_refused_before_the_job_starts_and_never_shown(reads):
    assert reads["login"] == ["a", "b", "c"]
    assert reads["refused"].startswith("ConfigurationError")
    assert "Kafka rejected the login" in reads["refused"]
    assert "refused" not in reads["jobs"]


# -- positions in savepoints


def test_a_job_goes_on_from_the_offsets_of_a_changed_savepoint(reads):
    a, b = reads["topics"]
    places = [tuple(row[:3]) for row in reads["back"]]
    assert set(places) == {(a, 0, 1), (a, 0, 2), (a, 1, 3), (b, 0, 2), (b, 0, 3)}
    assert sorted(row[3] for row in reads["back"]) == [7, 8, 9, 10, 11]  # its state went on


def test_a_topic_can_be_dropped_from_a_savepoint(reads):
    assert reads["dropped"] == [[reads["topics"][1], 0, 3, 7]]


@pytest.mark.parametrize("name", ["gone", "unknown"])
def test_a_position_in_a_topic_that_is_not_read_is_refused_by_name(reads, name):
    topic = reads["topics"][0] if name == "gone" else "no-such-topic"
    assert reads[name].startswith("ConfigurationError")
    assert f"partition 0 of topic {topic!r}" in reads[name]
    assert "with_kafka_offsets" in reads[name]
    assert name not in reads["jobs"]


# -- from Kafka to Kafka


@pytest.mark.exhaustive
def test_likes_are_counted_once_across_restarts(kafka, tmp_path, java):
    likes, totals = kafka.create_topic(2), kafka.create_topic(2)
    example = ROOT / "examples" / "kafka_likes.py"
    arguments = (kafka.servers, "--likes", likes, "--totals", totals, "--bounded")
    for _ in range(2):
        posts = [json.dumps({"post": f"p{i % 7}", "n": 1}) for i in range(700)]
        kafka.write(likes, [*posts, "no json"])
        run(example, tmp_path, java, *arguments)
    found = [json.loads(value) for _, value in kafka.read(totals)]
    assert Counter((row["post"], row["total"]) for row in found) == {
        (f"p{post}", total): 1 for post in range(7) for total in range(1, 201)
    }
    # Where it goes on, by topic and partition.
    shown = subprocess.run(
        [sys.executable, "-m", "turnback.cli.main", "inspect", "kafka-likes@latest"],
        env=os.environ | {"TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(tmp_path / "jobs")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    ends = [_end_of(kafka, likes, partition) for partition in (0, 1)]
    for partition, end in enumerate(ends):
        assert f"{likes} {partition}: {end}" in shown.stdout, shown.stdout + shown.stderr


def _end_of(kafka: KafkaBroker, topic: str, partition: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "ends"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
    consumer.close()
    return end
