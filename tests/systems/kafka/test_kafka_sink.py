"""Exactly-once output to a real broker, as an independent consumer sees it."""

from __future__ import annotations

import pytest
from kafka_job import SinkJob, kafka_sink, numbers, values

from turnback.connectors.kafka import DeliveryGuarantee
from turnback.errors import SinkError


def test_an_epoch_that_is_published_again_writes_nothing(kafka, topic, directory):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    handles = job.stage(1, [("a", 1)])
    committer.commit(handles)
    committer.commit(handles)
    SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2).start(handles)
    assert values(kafka, topic, committed=False) == [1]


def test_epochs_are_published_in_order_and_of_a_job_turned_back_too(kafka, topic, directory):
    first = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = first.start()
    committer.commit([*first.stage(1, [("a", 1)]), *first.stage(2, [("a", 2)])])
    committer.commit(first.stage(9, [("a", 9)]))
    # Turned back to epoch 2: epoch 3 of attempt 2 comes after epoch 9 of attempt 1.
    second = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    second.start().commit(second.stage(3, [("a", 3)]))
    found = numbers(kafka.read(topic))
    assert found["a"] == [1, 2, 9, 3]


def test_a_driver_that_was_replaced_publishes_nothing(kafka, topic, directory):
    zombie = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=1)
    asleep = zombie.start()
    newer = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    committer = newer.start()
    with pytest.raises(SinkError, match="attempt 2 of the job now publishes"):
        asleep.commit(zombie.stage(2, [("a", 1)]))
    committer.commit(newer.stage(2, [("a", 2)]))
    assert values(kafka, topic, committed=False) == [2]


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE])
def test_without_transactions_tasks_write_at_once(kafka, topic, directory, guarantee):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic, guarantee))
    committer = job.start()
    assert job.stage(1, [("a", n) for n in range(1000)]) == []
    if guarantee is DeliveryGuarantee.NONE:
        job.stage(2, [])
        from turnback.connectors.kafka.sink import _process_producer

        assert _process_producer(kafka.servers, ()).flush(10) == 0
    assert values(kafka, topic) == list(range(1000))
    committer.commit([])
    committer.recover([])
