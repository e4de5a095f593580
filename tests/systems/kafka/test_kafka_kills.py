"""A job killed at every point of the protocol writes each record exactly once, to two topics."""

from __future__ import annotations

import multiprocessing

import kafka_job
import pytest
from kafka_job import EPOCHS, KEYS, PER_EPOCH, POINTS, numbers
from ledger import CALM, Ledger
from ledger_targets import KafkaTarget
from topic_reader import TopicReader

from services.kafka import KafkaBroker
from turnback.connectors.kafka import DeliveryGuarantee

# Each process is a copy of one that has imported everything, and has no client of Kafka yet.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["kafka_job", "confluent_kafka"])
EPOCH = KEYS * PER_EPOCH
"""The records of an epoch."""
COMMITTED = ("after the commit", "after the commit is recorded")
"""Points at which readers are to see the epoch."""


@pytest.fixture
def topics(kafka: KafkaBroker) -> list[str]:
    return [kafka.create_topic(3), kafka.create_topic(2)]


def life(kafka, topics, directory, attempt, guarantee, kill=None) -> int:
    """Run one life of a job in a process; returns how it ended."""
    arguments = (kafka.servers, topics, directory, attempt, guarantee, kill)
    process = PROCESSES.Process(target=kafka_job.run_life, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode in (0, -9), process.exitcode
    return process.exitcode


def read(kafka, topics, **options) -> list:
    """What a reader of all topics sees; the records of a key are in one of them."""
    return [record for topic in topics for record in kafka.read(topic, **options)]


def check_complete(records) -> None:
    found = numbers(records)
    assert len(found) == KEYS
    assert all(one == list(range(EPOCHS * PER_EPOCH)) for one in found.values())


def kills() -> list[tuple[str, int]]:
    """Every point once, some twice, each in a later epoch than the one before."""
    points = [*POINTS, "after half of the records", "after the marker", "after the commit"]
    return [(point, epoch) for epoch, point in enumerate(points, start=2)]


def test_a_job_killed_at_every_point_is_exact_at_every_moment(kafka, topics, directory):
    guarantee = DeliveryGuarantee.EXACTLY_ONCE
    with (
        TopicReader(kafka.servers, *topics) as committed,
        TopicReader(kafka.servers, *topics, committed=False) as uncommitted,
    ):
        for attempt, (point, epoch) in enumerate(kills(), start=1):
            assert life(kafka, topics, directory, attempt, guarantee, (point, epoch)) == -9, point
            visible = EPOCH * (epoch if point in COMMITTED else epoch - 1)
            committed.until(visible)
            if point == "after half of the records":  # the other reader has them, and will again
                uncommitted.until(visible + EPOCH // 2)
            assert committed.seen == visible, point
            assert committed.problems == [], point
        assert life(kafka, topics, directory, len(kills()) + 1, guarantee) == 0
        committed.until(EPOCH * EPOCHS)
        uncommitted.until(EPOCH * EPOCHS + 1)
    assert committed.problems == []
    assert "twice" in uncommitted.problems[0]
    check_complete(read(kafka, topics))
    # Nothing is left in the job directory.
    assert list(directory.rglob("*.arrow")) == []


def test_without_transactions_the_same_kills_are_noticed(kafka, topics, directory):
    """The negative control: the checks above can fail."""
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE
    with TopicReader(kafka.servers, *topics) as reader:
        assert life(kafka, topics, directory, 1, guarantee, ("after staging", 2)) == -9
        assert life(kafka, topics, directory, 2, guarantee) == 0
        reader.until(EPOCH * (EPOCHS + 1))
    assert "twice" in reader.problems[0]
    records = read(kafka, topics)
    assert all(set(one) == set(range(EPOCHS * PER_EPOCH)) for one in numbers(records).values())
    with pytest.raises(AssertionError):
        check_complete(records)


@pytest.mark.exhaustive
def test_a_ledger_in_two_topics_adds_up_after_kills(kafka, tmp_path):
    ledger = Ledger(tmp_path, KafkaTarget(kafka), keys=20, length=30, files=40)
    try:
        with ledger.watched():
            ledger.run_with_kills([0.3, "between-sink-commits:2", "after-manifest:2"], *CALM)
        assert ledger.reads
        assert ledger.problems == []
        assert ledger.examine() == []
    finally:
        ledger.kill()
