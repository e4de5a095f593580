"""`KafkaSink` in the kit for sinks of users: every crash of the protocol, against a real broker."""

import json

import pytest
from kafka_job import ROWS, kafka_sink

from turnback.testing import Promise, SinkPromiseBroken, check_sink

pytestmark = pytest.mark.exhaustive


def test_the_sink_keeps_what_all_sinks_promise(kafka):
    def make():
        return kafka_sink(kafka.servers, kafka.create_topic())

    def read(sink):
        found = kafka.read(sink.describe()["topic"])
        return [(row["key"], row["n"]) for row in (json.loads(value) for _, value in found)]

    elements = [(f"k{n}", n) for n in range(4)]
    with pytest.raises(SinkPromiseBroken) as caught:
        check_sink(make, read, type=ROWS, elements=elements)
    # The kit gives one sink object to two sinks of a job, and these must not share a prefix.
    (problem,) = caught.value.broken.items()
    assert problem[0] is Promise.OTHERS
    assert "give each sink its own" in problem[1]
