"""What is asked of a real broker before a source is left to Spark."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from turnback.connectors.kafka import client as kafka_client
from turnback.connectors.kafka.check import KafkaSourceCheck, kafka_cluster
from turnback.connectors.kafka.lag import KafkaLagReader
from turnback.errors import ConfigurationError


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
    told = f"partition 1 of topic '{topic}' begins at 5 and the job is at 2, so 3 offsets are"
    with pytest.raises(ConfigurationError, match=told) as refused:
        check(kafka.servers, {topic: {"1": 2}}, subscribe=topic)
    assert "SavepointWriter" in str(refused.value)
    check(kafka.servers, {topic: {"1": 2}}, subscribe=topic, failOnDataLoss="false")
    assert "3 offsets are lost" in caplog.text


def test_a_topic_that_was_made_anew_is_told(kafka, topic):
    kafka.write(topic, ["x"] * 3, partition=0)
    with pytest.raises(ConfigurationError, match="ends at 3 and the job is at 8: the topic"):
        check(kafka.servers, {topic: {"0": 8, "1": 0}}, subscribe=topic)


def made_anew(kafka, topic, records: int = 0) -> None:
    """Delete a topic, and create another one of the same name."""
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.delete_topics([topic])[topic].result(30)
    end = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
            break
        except KafkaException:  # it is still being deleted
            assert time.monotonic() < end
            time.sleep(0.1)
    kafka.write(topic, ["y"] * records, partition=0)


@pytest.mark.parametrize("records", [5, 20])
def test_a_topic_that_was_made_anew_with_as_many_records_is_refused(kafka, topic, records, caplog):
    kafka.write(topic, ["x"] * 5, partition=0)
    reader, options = lag_reader(kafka, topic)
    offset = json.dumps({topic: {"0": 5, "1": 0, "2": 0}})
    before = reader.identity(offset, None)
    assert list(json.loads(before)) == [topic]
    named = KafkaSourceCheck(options)
    named.check_identity("source 'in'", before)
    made_anew(kafka, topic, records)
    named("source 'in'", offset)  # by its offsets it may be the same
    told = f"source 'in': topic '{topic}' was recreated"
    with pytest.raises(ConfigurationError, match=told) as refused:
        named.check_identity("source 'in'", before)
    assert "with_kafka_offsets" in str(refused.value)
    KafkaSourceCheck({**options, "failOnDataLoss": "false"}).check_identity("source 'in'", before)
    assert "continues at the same offsets" in caplog.text
    # A job that is running keeps the old one, so that it is refused when it starts again.
    reader._ids_until = 0.0
    assert reader.identity(offset, before) == before
    assert "was recreated while the job reads it" in caplog.text
    reader.close()
    lenient, _ = lag_reader(kafka, topic, failOnDataLoss="false")
    assert lenient.identity(offset, before) not in (before, None)
    lenient.close()


def lag_reader(kafka, topic, **options):
    options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, **options}
    return KafkaLagReader(kafka_cluster(options), options), options


def test_topics_of_a_pattern_are_identified_when_they_come(kafka, topic):
    other = kafka.create_topic()
    reader, _ = lag_reader(kafka, topic)
    one = reader.identity(json.dumps({topic: {"0": 5}}), None)
    both = reader.identity(json.dumps({topic: {"0": 5}, other: {"0": 0}}), one)
    assert json.loads(both).keys() == {topic, other}
    assert json.loads(both)[topic] == json.loads(one)[topic]
    assert reader.identity(json.dumps({"no-such-topic": {"0": 5}}), None) is None
    reader.close()


@pytest.mark.parametrize("identity", ["", "{", "[]", "null", '{"gone-topic": "abc"}'])
def test_an_identity_that_tells_nothing_is_no_obstacle(kafka, topic, identity):
    options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    KafkaSourceCheck(options).check_identity("source 'in'", identity)


def test_a_partition_that_was_added_is_told(kafka, topic):
    kafka.write(topic, ["x"] * 3, partition=0)
    options = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    (note,) = KafkaSourceCheck(options)("source 'in'", json.dumps({topic: {"0": 3, "2": 0}}))
    assert note == f"partition 1 of topic '{topic}' added since: reading from the beginning"
    everything = json.dumps({topic: {"0": 3, "1": 0, "2": 0}})
    assert KafkaSourceCheck(options)("source 'in'", everything) == []
    assert KafkaSourceCheck(options)("source 'in'", None) == []  # all of it is new
    other = kafka.create_topic()
    pattern = {**options, "subscribePattern": f"{topic}|{other}"}
    del pattern["subscribe"]
    (note,) = KafkaSourceCheck(pattern)("source 'in'", everything)
    assert note == f"partition 0 of topic '{other}' added since: reading from the beginning"


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
    with pytest.raises(
        ConfigurationError, match=f"'in': its position contains partition 3 of .*'{topic}'"
    ):
        check(kafka.servers, {topic: {"0": 0, "3": 7}}, **{how: topic})


def test_whoever_skips_what_is_gone_is_not_refused(kafka, topic):
    check(kafka.servers, {"gone": {"0": 5}}, subscribe=topic, failondataloss="FALSE")


def test_an_encryption_that_fails_here_may_work_in_java(kafka, monkeypatch):
    monkeypatch.setattr(kafka_client, "START_S", 2.0)
    check(kafka.servers, subscribe="missing", kafka_security_protocol="SSL")
