"""A job killed at every point of the protocol writes each record exactly once, to two topics."""

from __future__ import annotations

import multiprocessing

import kafka_job
import pytest
from kafka_job import EPOCHS, KEYS, PER_EPOCH, POINTS, numbers

from services.kafka import KafkaBroker
from turnback import DeliveryGuarantee

# Each process is a copy of one that has imported everything, and has no client of Kafka yet.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["kafka_job", "confluent_kafka"])


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


def check_so_far(records) -> None:
    """Each key has the numbers from 0 on, without a gap and without a duplicate."""
    for key, found in numbers(records).items():
        assert found == list(range(len(found))), key


def check_complete(records) -> None:
    found = numbers(records)
    assert len(found) == KEYS
    assert all(one == list(range(EPOCHS * PER_EPOCH)) for one in found.values())


def kills() -> list[tuple[str, int]]:
    """Every point once, some twice, each in a later epoch than the one before."""
    points = [*POINTS, "after half of the records", "after the marker", "after the commit"]
    return [(point, epoch) for epoch, point in enumerate(points, start=2)]


def test_a_job_killed_at_every_point_is_exact(kafka, topics, directory):
    guarantee = DeliveryGuarantee.EXACTLY_ONCE
    for attempt, (point, epoch) in enumerate(kills(), start=1):
        assert life(kafka, topics, directory, attempt, guarantee, (point, epoch)) == -9, point
        check_so_far(read(kafka, topics))
    assert life(kafka, topics, directory, len(kills()) + 1, guarantee) == 0
    check_complete(read(kafka, topics))
    # What was aborted is there for those who do not ask for committed records.
    uncommitted = read(kafka, topics, committed=False)
    assert len(uncommitted) > KEYS * EPOCHS * PER_EPOCH
    with pytest.raises(AssertionError):
        check_complete(uncommitted)
    # Nothing is left in the job directory.
    assert list(directory.rglob("*.arrow")) == []


def test_without_transactions_the_same_kills_are_noticed(kafka, topics, directory):
    """The negative control: the check above can fail."""
    guarantee = DeliveryGuarantee.AT_LEAST_ONCE
    assert life(kafka, topics, directory, 1, guarantee, ("after staging", 2)) == -9
    assert life(kafka, topics, directory, 2, guarantee) == 0
    records = read(kafka, topics)
    assert all(set(one) == set(range(EPOCHS * PER_EPOCH)) for one in numbers(records).values())
    with pytest.raises(AssertionError):
        check_complete(records)
