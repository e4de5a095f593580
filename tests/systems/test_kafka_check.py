"""What is asked of a real broker before a source is left to Spark."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from turnback.core.errors import ConfigurationError
from turnback.sinks import kafka_client
from turnback.spark.kafka_check import KafkaSourceCheck


def check(servers, offset=None, **options) -> None:
    given = {key.replace("_", "."): value for key, value in options.items()}
    KafkaSourceCheck({"kafka.bootstrap.servers": servers, **given})(
        "source 'in'", None if offset is None else json.dumps(offset)
    )


def test_topics_and_positions_that_are_there_are_fine(kafka, topic):
    kafka.write(topic, ["x"] * 7, partition=2)
    check(kafka.servers, {topic: {"0": 0, "2": 7}}, subscribe=topic)
    check(kafka.servers, {topic: {"2": 5}}, subscribePattern="topic-.*")
    check(kafka.servers, subscribePattern="nothing-yet-.*")


def test_what_retention_has_taken_is_told(kafka, topic, caplog):
    kafka.write(topic, ["x"] * 7, partition=1)
    delete_before(kafka.servers, topic, 1, 5)
    check(kafka.servers, {topic: {"1": 5}}, subscribe=topic)
    told = f"partition 1 of topic '{topic}' begins at 5 and the job goes on at 2, so 3 offsets are"
    with pytest.raises(ConfigurationError, match=told) as refused:
        check(kafka.servers, {topic: {"1": 2}}, subscribe=topic)
    assert "SavepointWriter" in str(refused.value)
    check(kafka.servers, {topic: {"1": 2}}, subscribe=topic, failOnDataLoss="false")
    assert "3 offsets are lost" in caplog.text


def test_a_topic_that_was_made_anew_is_told(kafka, topic):
    kafka.write(topic, ["x"] * 3, partition=0)
    with pytest.raises(ConfigurationError, match="ends at 3 and the job goes on at 8: the topic"):
        check(kafka.servers, {topic: {"0": 8, "1": 0}}, subscribe=topic)


def test_a_partition_that_was_added_is_fine(kafka, topic):
    kafka.write(topic, ["x"] * 3, partition=0)
    check(kafka.servers, {topic: {"0": 3}}, subscribe=topic)


def delete_before(servers, topic, partition, offset) -> None:
    """Delete records as retention does."""
    admin, place = (
        AdminClient({"bootstrap.servers": servers}),
        TopicPartition(topic, partition, offset),
    )
    (deleted,) = admin.delete_records([place]).values()
    deleted.result(30)


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
def test_a_position_in_a_partition_that_is_not_there_is_refused(kafka, topic, how):
    with pytest.raises(ConfigurationError, match=f"'in': it goes on in partition 3 of .*'{topic}'"):
        check(kafka.servers, {topic: {"0": 0, "3": 7}}, **{how: topic})


def test_whoever_skips_what_is_gone_is_not_refused(kafka, topic):
    check(kafka.servers, {"gone": {"0": 5}}, subscribe=topic, failondataloss="FALSE")


def test_an_encryption_that_fails_here_may_work_in_java(kafka, monkeypatch):
    monkeypatch.setattr(kafka_client, "START_S", 2.0)
    check(kafka.servers, subscribe="missing", kafka_security_protocol="SSL")
