"""How far a source is behind: what a real broker tells, and what an independent consumer counts."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from test_kafka_check import delete_before

from manual_clock import ManualClock
from services.kafka import PASSWORD, USER
from turnback.connectors.kafka import lag as kafka_lag
from turnback.connectors.kafka import lag as kafka_offsets
from turnback.connectors.kafka.check import kafka_cluster
from turnback.connectors.kafka.client import Cluster
from turnback.connectors.kafka.lag import KafkaLagReader
from turnback.errors import TurnbackError
from turnback.plan.sources import ReplayLimit, SourceLag

NOW = int(time.time() * 1000)


def reader(servers, **options) -> KafkaLagReader:
    given = {key.replace("_", "."): value for key, value in options.items()}
    defaults = {"kafka.isolation.level": "read_committed", "startingOffsets": "earliest"}
    all_options = {"kafka.bootstrap.servers": servers, **defaults, **given}
    return KafkaLagReader(kafka_cluster(all_options), all_options, ManualClock(NOW))


def counted(servers, topic, positions) -> int:
    """What an independent consumer of committed records finds from these positions on."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, *place) for place in positions.items()])
    left, found = set(positions), 0
    while left:
        for message in consumer.consume(1000, timeout=0.05):
            if message.error() is None:
                found += 1
            else:
                left.discard(message.partition())
    consumer.close()
    return found


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def read(lag, topic, positions) -> SourceLag:
    return lag.read(json.dumps({topic: {str(n): at for n, at in positions.items()}}))


def test_records_and_age_are_those_of_what_comes_next(kafka, topic):
    producer = Producer({"bootstrap.servers": kafka.servers})
    for partition, count in enumerate((7, 5)):
        for n in range(count):
            at = NOW - 60_000 * (partition + 1) + 1000 * n
            producer.produce(topic, "x", partition=partition, timestamp=at)
    assert producer.flush(30) == 0
    lag = reader(kafka.servers, subscribe=topic)
    for positions, age in [
        ({0: 0, 1: 0, 2: 0}, 120.0),
        ({0: 3, 1: 4, 2: 0}, 116.0),
        ({0: 3, 1: 5, 2: 0}, 57.0),
        ({0: 7, 1: 5, 2: 0}, 0.0),
    ]:
        expected = SourceLag(counted(kafka.servers, topic, positions), age)
        assert read(lag, topic, positions) == expected
        assert read(lag, topic, positions) == expected  # now from memory
    kafka.write(topic, ["x"], partition=2, timestamp=NOW + 5_000)  # a clock that is ahead
    assert read(lag, topic, {0: 7, 1: 5, 2: 0}) == SourceLag(1, 0.0)
    lag.close()


def test_topics_made_a_moment_ago_are_looked_up(kafka):
    """Their partitions may have no leader yet: then Kafka is asked again."""
    cluster = kafka_cluster({"kafka.bootstrap.servers": kafka.servers})
    offsets = kafka_offsets.KafkaOffsets(cluster, "Kafka")
    for _ in range(30):
        topic = kafka.create_topic(20)
        places = [(topic, number) for number in range(20)]
        assert offsets.ends(places) == dict.fromkeys(places, 0)
    offsets.close()


def test_records_of_an_open_transaction_are_not_behind(kafka, topic):
    lag = reader(kafka.servers, subscribe=topic)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(5):
        producer.produce(topic, "x", partition=0, timestamp=NOW - 1000 * (n + 1))
    producer.flush(30)
    start = {0: 0, 1: 0, 2: 0}
    assert read(lag, topic, start) == SourceLag(0, 0.0)
    dirty = reader(kafka.servers, subscribe=topic, kafka_isolation_level="read_uncommitted")
    assert read(dirty, topic, start).records == 5
    producer.commit_transaction(30)
    until(lambda: read(lag, topic, start).records > 0)  # the marker takes its time
    # Five records and the marker of their transaction: offsets, as Kafka's own tools count.
    assert read(lag, topic, start) == SourceLag(6, 1.0)
    assert counted(kafka.servers, topic, start) == 5
    # Nothing but the marker is left: no record is waiting.
    assert read(lag, topic, {**start, 0: 5}) == SourceLag(1, 0.0)
    assert read(lag, topic, {**start, 0: 6}) == SourceLag(0, 0.0)
    lag.close()
    dirty.close()


def test_partitions_that_are_added_are_read_from_their_beginning(kafka, topic, monkeypatch):
    lag = reader(kafka.servers, subscribePattern=f"{topic}|none")
    kafka.write(topic, ["x"] * 3, partition=0)
    assert read(lag, topic, {0: 1, 1: 0, 2: 0}).records == 2
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(30)
    monkeypatch.setattr(kafka_lag, "_PARTITIONS_S", 0.0)
    lag._places_until = 0.0
    kafka.write(topic, ["x"] * 4, partition=3)
    until(lambda: read(lag, topic, {0: 1, 1: 0, 2: 0}).records == 6)
    lag.close()


@pytest.mark.parametrize(
    ("starting", "records"),
    [("earliest", 5), ('{"T": {"0": 4, "1": 0, "2": 0}}', 1), ("latest", None), (None, None)],
)
def test_a_source_without_an_epoch_is_behind_from_where_it_begins(kafka, topic, starting, records):
    kafka.write(topic, ["x"] * 5, partition=0)
    options = {} if starting is None else {"startingOffsets": starting.replace("T", topic)}
    if starting is None:
        options = {"startingOffsets": "", "startingTimestamp": "5"}
    lag = reader(kafka.servers, subscribe=topic, **options)
    found = lag.read(None)
    assert (found.records if found else None) == records
    lag.close()


def test_a_login_with_a_password(kafka, topic):
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    options = {
        "subscribe": topic,
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_mechanism": "PLAIN",
        "kafka_sasl_jaas_config": f'{module} required username="{USER}" password="{PASSWORD}";',
    }
    kafka.write(topic, ["x"] * 2, partition=0)
    lag = reader(kafka.secured, **options)
    assert lag.read(None).records == 2
    lag.close()


def test_what_cannot_be_asked_is_not_asked():
    servers = {"kafka.bootstrap.servers": "nowhere:1", "subscribe": "t"}
    assert kafka_lag.kafka_lag(servers) is not None
    kerberos = {**servers, "kafka.security.protocol": "SASL_SSL"}
    assert kafka_lag.kafka_lag(kerberos) is None


def test_a_broker_that_does_not_answer_is_an_error_in_time(kafka, topic, monkeypatch):
    monkeypatch.setattr(kafka_offsets, "ANSWER_S", 1.0)
    lag = reader(kafka.servers, subscribe=topic)
    start = {0: 0, 1: 0, 2: 0}
    assert read(lag, topic, start).records == 0
    with kafka.paused(), pytest.raises(TurnbackError, match="cannot look up offsets"):
        read(lag, topic, start)

    def answers() -> bool:
        try:
            return read(lag, topic, start).records == 0
        except TurnbackError:
            return False

    until(answers)  # over the same connections, or new ones, but by itself
    lag.close()


def test_a_topic_that_is_gone_is_an_error(kafka):
    lag = reader(kafka.servers, subscribe="no-such-topic")
    with pytest.raises(TurnbackError, match="cannot look up offsets"):
        lag.read(json.dumps({"no-such-topic": {"0": 5}}))
    lag.close()


# -- consumer groups


def group_offsets(servers, group) -> dict[int, int]:
    """As any tool sees them."""
    admin = AdminClient({"bootstrap.servers": servers})
    (found,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {p.partition: p.offset for p in found.result(30).topic_partitions}


def test_positions_are_committed_to_a_group(kafka, topic):
    group, options = (
        uuid.uuid4().hex,
        {"subscribe": topic, "kafka.bootstrap.servers": kafka.servers},
    )
    reader = kafka_lag.kafka_lag(options, group)()
    for at in (3, 7, 5):  # back again, as after a restore
        until(lambda at=at: committed(reader, json.dumps({topic: {"0": at, "2": 1}})))
        assert group_offsets(kafka.servers, group) == {0: at, 2: 1}
    reader.commit("no offset of Kafka")
    reader.close()


def committed(reader, offset) -> bool:
    try:
        reader.commit(offset)
    except TurnbackError:  # the broker has just started
        return False
    return True


def test_a_group_that_somebody_consumes_with_is_left_alone(kafka, topic):
    group = uuid.uuid4().hex
    settings = {"bootstrap.servers": kafka.servers, "group.id": group}
    member = Consumer({**settings, "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    kafka.write(topic, ["x"], partition=0)
    until(lambda: member.consume(1, timeout=0.2))
    options = {"subscribe": topic, "kafka.bootstrap.servers": kafka.servers}
    reader = kafka_lag.kafka_lag(options, group)()
    with pytest.raises(TurnbackError, match=f"cannot commit offsets of group '{group}'"):
        reader.commit(json.dumps({topic: {"0": 1}}))
    reader.close()
    member.close()


def test_a_login_that_cannot_commit_is_said(caplog):
    options = {"kafka.bootstrap.servers": "x:1", "kafka.security.protocol": "SASL_SSL"}
    assert kafka_lag.kafka_lag(options, "likes") is None
    assert "not committing offsets to the consumer group 'likes'" in caplog.text


# -- how long it can be replayed


def limits(servers, *positions) -> list[ReplayLimit | None]:
    """How long what comes after each of these positions can be read."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": "any"}
    lag = KafkaLagReader(kafka_cluster(options), options, ManualClock(NOW))
    offsets = [json.dumps(position) for position in positions]
    found = lag.replay_limits(offsets)
    assert lag.replay_limits(offsets) == found  # now from memory
    lag.close()
    return [found.get(offset) for offset in offsets]


def test_records_are_kept_for_as_long_as_the_topic_says(kafka):
    day = 86_400_000
    topic = kafka.create_topic(2, retention_ms=str(3 * day))
    producer = Producer({"bootstrap.servers": kafka.servers})
    for n in range(6):
        producer.produce(topic, "x", partition=0, timestamp=NOW - day + 1000 * n)
    assert producer.flush(30) == 0
    delete_before(kafka.servers, topic, 0, 2)
    assert limits(
        kafka.servers,
        {topic: {"0": 1, "1": 0}},
        {topic: {"0": 2, "1": 0}},
        {topic: {"0": 5, "1": 0}},
        {topic: {"0": 6, "1": 0}},  # nothing comes after it yet
    ) == [
        ReplayLimit(True, NOW + 3 * day),
        ReplayLimit(False, NOW + 2 * day + 2000),
        ReplayLimit(False, NOW + 2 * day + 5000),
        ReplayLimit(False, NOW + 3 * day),
    ]


def test_where_size_decides_records_go_as_fast_as_they_have_gone(kafka):
    topic = kafka.create_topic(1, retention_ms="-1", retention_bytes="1000000")
    producer = Producer({"bootstrap.servers": kafka.servers})
    for n in range(6):
        producer.produce(topic, "x", timestamp=NOW - 10_000 + 1000 * n)
    assert producer.flush(30) == 0
    assert limits(kafka.servers, {topic: {"0": 5}}) == [ReplayLimit(False, None)]
    delete_before(kafka.servers, topic, 0, 2)  # now the oldest record is eight seconds old
    assert limits(kafka.servers, {topic: {"0": 5}}) == [ReplayLimit(False, NOW - 5_000 + 8_000)]


def test_topics_that_keep_everything_need_no_warning(kafka, topic):
    compacted = kafka.create_topic(1, cleanup_policy="compact", retention_ms="1000")
    kafka.write(topic, ["x"], partition=0)
    position = {topic: {"0": 0}, compacted: {"0": 0}}
    assert limits(kafka.servers, position) == [ReplayLimit(False, None)]
    assert limits(kafka.servers) == []


def test_positions_of_other_systems_have_no_limit(kafka):
    lag = reader(kafka.servers, subscribe="any")
    assert lag.replay_limits(['{"files": 7}', "no json"]) == {}
    lag.close()


def test_a_broker_that_was_restarted_is_asked_by_who_knew_it_before(kafka, topic):
    """A client remembers for minutes who leads a partition, and since when."""
    kafka.write(topic, ["x"], partition=0)
    places = [(topic, 0), (topic, 1), (topic, 2)]
    known = kafka_offsets.KafkaOffsets(Cluster(kafka.servers), "source")
    ends = {(topic, 0): 1, (topic, 1): 0, (topic, 2): 0}
    assert known.ends(places) == ends
    for _ in range(2):
        kafka.restart()
        assert known.ends(places) == ends
    known.close()
