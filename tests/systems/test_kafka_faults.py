"""What a Kafka sink does when the broker fails, refuses, or remembers something else."""

from __future__ import annotations

import logging
import time
import uuid
from contextlib import nullcontext
from dataclasses import replace

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_job import SinkJob, kafka_sink, values

from services.kafka import PASSWORD, USER
from services.process import free_port
from turnback import DeliveryGuarantee
from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks import kafka_client

# -- failures of the broker


def test_a_broker_restarted_between_staging_and_publishing(kafka, topic, directory):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    handles = job.stage(1, [("a", 1)])
    kafka.restart()
    committer.commit(handles)
    assert values(kafka, topic) == [1]


def test_an_outage_at_the_commit_is_tried_again_by_the_next_start(
    kafka, topic, directory, monkeypatch
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    handles = job.stage(1, [("a", 1)])
    monkeypatch.setattr(kafka_client, "START_S", 1.0)
    monkeypatch.setattr(kafka_client, "PATIENCE_S", 1.0)
    kafka.stop()
    try:
        with pytest.raises(SinkError, match=kafka.servers):
            committer.commit(handles)
    finally:
        kafka.start()
    monkeypatch.undo()
    SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2).start(handles)
    assert values(kafka, topic) == [1]


def test_a_commit_whose_answer_does_not_come_leaves_one_copy(
    kafka, topic, directory, monkeypatch, caplog
):
    monkeypatch.setattr(kafka_client, "_COMMIT_S", 1.0)
    commits = []

    class Unanswered(confluent_kafka.Producer):
        def commit_transaction(self, timeout):
            commits.append(timeout)
            with kafka.paused() if len(commits) == 1 else nullcontext():
                super().commit_transaction(timeout)

    monkeypatch.setattr(confluent_kafka, "Producer", Unanswered)
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    with caplog.at_level(logging.WARNING):
        committer.commit(job.stage(1, [("a", 1)]))
    assert "trying again" in caplog.text
    assert values(kafka, topic) == [1]


def test_a_transaction_that_takes_longer_than_its_timeout_is_written_again(
    kafka, topic, directory, monkeypatch, caplog
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic, transaction_timeout_ms="1000"))
    committer = job.start()
    handles = job.stage(1, [("a", 1)])
    real, slow = kafka_client.send_all, iter([True])

    def send_all(producer, records, on_delivery):
        real(producer, records, on_delivery)
        if next(slow, False):
            producer.flush(10)
            time.sleep(4)

    monkeypatch.setattr(kafka_client, "send_all", send_all)
    with caplog.at_level(logging.WARNING):
        committer.commit(handles)
    assert "trying again" in caplog.text
    assert values(kafka, topic) == [1]
    assert values(kafka, topic, committed=False) == [1, 1]


def test_what_kafka_has_forgotten_is_not_published_twice(kafka, topic, directory):
    sink = kafka_sink(kafka.servers, topic)
    job = SinkJob(directory, sink)
    handles = job.stage(1, [("a", 1)])
    committer = job.start()
    committer.commit(handles)
    committer.close()
    group = f"turnback.sink-of-{topic}.{job.ctx.job_id}.out"
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.delete_consumer_groups([group])[group].result(10)
    again = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    new = job.stage(2, [("a", 2)])
    with pytest.raises(ConfigurationError, match=f"forgotten.*{group}"):
        again.start(new)
    assert values(kafka, topic) == [1]
    # What the message says to do if it was not published.
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([offsets])[group].result(10)
    SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=3).start(new)
    assert values(kafka, topic) == [1, 2]


def test_a_record_that_is_too_large_fails_with_what_to_change(kafka, directory):
    topic = kafka.create_topic(max_message_bytes="1000", compression_type="uncompressed")
    job = SinkJob(directory, kafka_sink(kafka.servers, topic, compression_type="none"))
    committer = job.start()
    with pytest.raises(ConfigurationError, match=r"max\.message\.bytes"):
        committer.commit(job.stage(1, [("a" * 5000, 1)]))
    assert values(kafka, topic) == []


# -- whose the prefix is


def test_a_prefix_belongs_to_one_job(kafka, topic, directory, tmp_path):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    (tmp_path / "fork").mkdir()
    fork = SinkJob(tmp_path / "fork", kafka_sink(kafka.servers, topic))
    with pytest.raises(ConfigurationError, match=r"belongs to job 'likes'.*take_over_sinks"):
        fork.start()
    fork.sink.claim(replace(fork.ctx, attempt=0, take_over=True))
    fork.start().commit(fork.stage(1, [("a", 1)]))
    with pytest.raises(ConfigurationError, match=r"belongs to job 'fork'"):
        committer.commit(job.stage(1, [("a", 2)]))
    assert values(kafka, topic, committed=False) == [1]


def test_two_sinks_of_a_job_do_not_share_a_prefix(kafka, topic, directory):
    SinkJob(directory, kafka_sink(kafka.servers, topic), uid="first").start()
    second = SinkJob(directory, kafka_sink(kafka.servers, topic), uid="second")
    with pytest.raises(ConfigurationError, match="sink 'first' of this job"):
        second.start()
    # A sink that was renamed comes with a later attempt.
    SinkJob(directory, kafka_sink(kafka.servers, topic), uid="second", attempt=2).start()


# -- what is found when a job starts


@pytest.mark.parametrize("guarantee", list(DeliveryGuarantee))
def test_a_missing_topic_is_found_at_the_start(kafka, directory, guarantee):
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    job = SinkJob(directory, kafka_sink(kafka.servers, missing, guarantee))
    with pytest.raises(ConfigurationError, match=f"'{missing}'.*Create the topic"):
        job.start()


@pytest.mark.parametrize("guarantee", list(DeliveryGuarantee))
def test_an_unreachable_broker_is_found_at_the_start(directory, guarantee, monkeypatch):
    monkeypatch.setattr(kafka_client, "START_S", 1.0)
    nowhere = f"127.0.0.1:{free_port()}"
    with pytest.raises(SinkError, match=f"sink 'out' of job 'likes'.*{nowhere}"):
        SinkJob(directory, kafka_sink(nowhere, "topic", guarantee)).start()


def test_a_transaction_timeout_above_the_brokers_is_refused(kafka, topic, directory):
    sink = kafka_sink(kafka.servers, topic, transaction_timeout_ms="3600000")
    with pytest.raises(ConfigurationError, match=r"transaction\.max\.timeout\.ms"):
        SinkJob(directory, sink).start()


def test_an_unknown_property_is_refused(kafka, topic, directory):
    with pytest.raises(ConfigurationError, match=r"no\.such\.thing"):
        SinkJob(directory, kafka_sink(kafka.servers, topic, no_such_thing="1")).start()


LOGIN = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": USER}


def test_a_wrong_password_is_refused_and_not_shown(kafka, topic, directory, monkeypatch, caplog):
    monkeypatch.setattr(kafka_client, "START_S", 3.0)
    sink = kafka_sink(kafka.secured, topic, **LOGIN, sasl_password="wrong-one")
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(ConfigurationError, match="refused the login") as caught,
    ):
        SinkJob(directory, sink).start()
    assert "wrong-one" not in f"{caught.value} {caught.value.__cause__!r} {caplog.text}"


def test_the_right_password_is_accepted_and_kept_nowhere(kafka, topic, directory, caplog):
    with caplog.at_level(logging.DEBUG):
        job = SinkJob(directory, kafka_sink(kafka.secured, topic, **LOGIN, sasl_password=PASSWORD))
        job.start().commit(job.stage(1, [("a", 1)]))
    assert values(kafka, topic) == [1]
    assert PASSWORD not in caplog.text
    assert all(PASSWORD.encode() not in p.read_bytes() for p in directory.rglob("*") if p.is_file())
