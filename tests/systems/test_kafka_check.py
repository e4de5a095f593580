"""What is asked of a real broker before a source is left to Spark."""

from __future__ import annotations

import json

import pytest

from turnback.core.errors import ConfigurationError
from turnback.sinks import kafka_client
from turnback.spark.kafka_check import KafkaSourceCheck


def check(servers, offset=None, **options) -> None:
    given = {key.replace("_", "."): value for key, value in options.items()}
    KafkaSourceCheck({"kafka.bootstrap.servers": servers, **given})(
        "source 'in'", None if offset is None else json.dumps(offset)
    )


def test_topics_and_positions_that_are_there_are_fine(kafka, topic):
    check(kafka.servers, {topic: {"0": 5, "2": 7}}, subscribe=topic)
    check(kafka.servers, {topic: {"0": 5}}, subscribePattern="topic-.*")
    check(kafka.servers, subscribePattern="nothing-yet-.*")


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
def test_a_position_in_a_partition_that_is_not_there_is_refused(kafka, topic, how):
    with pytest.raises(ConfigurationError, match=f"'in': it goes on in partition 3 of .*'{topic}'"):
        check(kafka.servers, {topic: {"0": 5, "3": 7}}, **{how: topic})


def test_whoever_skips_what_is_gone_is_not_refused(kafka, topic):
    check(kafka.servers, {"gone": {"0": 5}}, subscribe=topic, failondataloss="FALSE")


def test_an_encryption_that_fails_here_may_work_in_java(kafka, monkeypatch):
    monkeypatch.setattr(kafka_client, "START_S", 2.0)
    check(kafka.servers, subscribe="missing", kafka_security_protocol="SSL")
