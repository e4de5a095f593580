"""One sink for several topics of a real broker: elements choose, and a transaction covers all."""

from __future__ import annotations

import json
import uuid

import confluent_kafka
import pytest
from kafka_job import ByKey, SinkJob, kafka_sink

from services.kafka import KafkaBroker
from turnback.connectors import JsonRowSerializationSchema
from turnback.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from turnback.errors import ConfigurationError

GUARANTEES = [DeliveryGuarantee.EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE]
ROWS_OF_BOTH = [(f"k{n}", n) for n in range(20)]


@pytest.fixture
def topics(kafka: KafkaBroker) -> list[str]:
    return [kafka.create_topic(2), kafka.create_topic()]


def found(kafka, topic, **options) -> list[int]:
    return sorted(json.loads(value)["n"] for _, value in kafka.read(topic, **options))


def wanted(topics) -> list[list[int]]:
    choose = ByKey(topics).apply
    return [sorted(row[1] for row in ROWS_OF_BOTH if choose(row) == topic) for topic in topics]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_each_record_goes_to_the_topic_it_chooses(kafka, topics, directory, guarantee):
    job = SinkJob(directory, kafka_sink(kafka.servers, topics, guarantee))
    committer = job.start()
    committer.commit(job.stage(1, ROWS_OF_BOTH))
    assert [found(kafka, topic) for topic in topics] == wanted(topics)
    assert all(wanted(topics))


def test_one_transaction_covers_all_topics(kafka, topics, directory, monkeypatch):
    class Dies(confluent_kafka.Producer):
        """Ends where a driver could be killed, with everything written and nothing committed."""

        has_records = False

        def produce(self, topic, *args, **options):
            super().produce(topic, *args, **options)
            self.has_records = self.has_records or topic in topics

        def send_offsets_to_transaction(self, *args):
            if not self.has_records:  # it only notes whose the prefix is
                super().send_offsets_to_transaction(*args)
                return
            assert self.flush(10) == 0
            raise KeyboardInterrupt

    job = SinkJob(directory, kafka_sink(kafka.servers, topics))
    with monkeypatch.context() as patch:
        patch.setattr(confluent_kafka, "Producer", Dies)
        committer = job.start()
        handles = job.stage(1, ROWS_OF_BOTH)
        with pytest.raises(KeyboardInterrupt):
            committer.commit(handles)
    assert [found(kafka, topic) for topic in topics] == [[], []]
    assert [found(kafka, topic, committed=False) for topic in topics] == wanted(topics)
    SinkJob(directory, kafka_sink(kafka.servers, topics), attempt=2).start(handles)
    assert [found(kafka, topic) for topic in topics] == wanted(topics)


def choosing(kafka, topic, chosen, guarantee) -> KafkaSink:
    records = KafkaRecordSerializationSchema.builder().set_topic_selector(lambda _: chosen, [topic])
    records.set_value_serialization_schema(JsonRowSerializationSchema.builder().build())
    builder = KafkaSink.builder().set_bootstrap_servers(kafka.servers)
    builder.set_record_serializer(records.build()).set_delivery_guarantee(guarantee)
    return builder.set_transactional_id_prefix(f"sink-of-{topic}").build()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_topic_that_was_not_named_may_be_chosen(kafka, topics, directory, guarantee):
    job = SinkJob(directory, choosing(kafka, *topics, guarantee))
    job.start().commit(job.stage(1, [("a", 1)]))
    assert [found(kafka, topic) for topic in topics] == [[], [1]]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_missing_topic_that_is_chosen_fails_before_anything_is_promised(
    kafka, topics, directory, guarantee
):
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    job = SinkJob(directory, choosing(kafka, topics[0], missing, guarantee))
    job.start()
    with pytest.raises(ConfigurationError, match=f"sink 'out'.*'{missing}'.*Create the topic"):
        job.stage(1, [("a", 1)])
    assert list(directory.rglob("*.arrow")) == []


def test_all_topics_that_are_named_have_to_be_there_at_the_start(kafka, topics, directory):
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    with pytest.raises(ConfigurationError, match=f"'{missing}'.*Create the topic"):
        SinkJob(directory, kafka_sink(kafka.servers, [*topics, missing])).start()
