"""What a Kafka sink does when the broker fails, refuses, or remembers something else."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import uuid
from contextlib import nullcontext, suppress
from dataclasses import replace

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka_job import SinkJob, kafka_sink, values

from services.kafka import PASSWORD, USER
from services.process import free_port
from turnback.connectors.kafka import DeliveryGuarantee
from turnback.connectors.kafka import client as kafka_client
from turnback.connectors.kafka import sink as kafka_memory
from turnback.connectors.kafka import sink as kafka_transactions
from turnback.connectors.kafka.client import TransactionalProducer
from turnback.connectors.kafka.sink import TransactionalDelivery
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import version_of
from turnback.storage.local import LocalStorage

# -- failures of the broker


@pytest.mark.exhaustive
def test_a_broker_restarted_between_staging_and_publishing(kafka, topic, directory):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    handles = job.stage(1, [("a", 1)])
    kafka.restart()
    committer.commit(handles)
    assert values(kafka, topic) == [1]


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_a_broker_that_dies_within_a_transaction_holds_nobody_up_for_ever(
    kafka, topic, directory, monkeypatch
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    committer.commit(job.stage(1, [("a", 1)]))
    handles = job.stage(2, [("a", 2)])
    real = kafka_client.send_all

    def send_all(producer, records, on_delivery):
        real(producer, records, on_delivery)
        kafka.crash()

    monkeypatch.setattr(kafka_client, "START_S", 1.0)
    monkeypatch.setattr(kafka_client, "PATIENCE_S", 1.0)
    monkeypatch.setattr(kafka_client, "send_all", send_all)
    try:
        with pytest.raises(SinkError, match=kafka.servers):
            committer.commit(handles)
    finally:
        kafka.start()
    monkeypatch.undo()
    committer.commit(handles)
    assert values(kafka, topic) == [1, 2]


def test_a_commit_whose_answer_does_not_come_leaves_one_copy(
    kafka, topic, directory, monkeypatch, caplog
):
    commits = []  # of records, not of notes

    class Unanswered(confluent_kafka.Producer):
        def produce(self, to, *args, **options):
            super().produce(to, *args, **options)
            commits.extend([to] if to == topic else [])

        def commit_transaction(self, timeout):
            with kafka.paused() if len(commits) == 1 else nullcontext():
                super().commit_transaction(timeout)

    monkeypatch.setattr(confluent_kafka, "Producer", Unanswered)
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    monkeypatch.setattr(kafka_client, "_COMMIT_S", 1.0)
    with caplog.at_level(logging.WARNING):
        committer.commit(job.stage(1, [("a", 1)]))
    assert "retrying" in caplog.text
    assert values(kafka, topic) == [1]


@pytest.mark.exhaustive
def test_a_transaction_that_takes_longer_than_its_timeout_is_written_again(
    kafka, topic, directory, monkeypatch, caplog
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic, transaction_timeout_ms="1000"))
    committer = job.start()
    handles = job.stage(1, [("a", 1)])
    real, slow = kafka_client.send_all, iter([True])

    def send_all(producer, records, on_delivery):
        sent = list(records)
        real(producer, sent, on_delivery)
        if any(to == topic for to, _, _ in sent) and next(slow, False):
            producer.flush(10)
            time.sleep(4)

    monkeypatch.setattr(kafka_client, "send_all", send_all)
    with caplog.at_level(logging.WARNING):
        committer.commit(handles)
    assert "retrying" in caplog.text
    assert values(kafka, topic) == [1]
    assert values(kafka, topic, committed=False) == [1, 1]


def forget(kafka, *groups):
    """Let Kafka forget consumer groups, as it does after offsets.retention.minutes."""
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for group in groups:
        admin.delete_consumer_groups([group])[group].result(10)


def test_what_kafka_has_forgotten_is_found_in_the_compacted_topic(
    kafka, topic, directory, tmp_path
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    handles = job.stage(1, [("a", 1)])
    committer = job.start()
    committer.commit(handles)
    forget(kafka, f"turnback.sink-of-{topic}", f"turnback.sink-of-{topic}.{job.ctx.job_id}.out")
    (tmp_path / "intruder").mkdir()
    intruder = SinkJob(tmp_path / "intruder", kafka_sink(kafka.servers, topic))
    with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
        intruder.start()
    committer.commit([*handles, *job.stage(2, [("a", 2)])])
    committer.close()
    assert values(kafka, topic) == [1, 2]
    forget(kafka, f"turnback.sink-of-{topic}", f"turnback.sink-of-{topic}.{job.ctx.job_id}.out")
    later = job.stage(3, [("a", 3)])
    again = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    again.start([*job.stage(2, [("a", 2)]), *later])
    assert values(kafka, topic) == [1, 2, 3]


@pytest.fixture
def no_memory(monkeypatch):
    """A cluster where the compacted topic cannot be created."""
    monkeypatch.setattr(kafka_memory, "TOPIC", "not/a/topic")


def test_without_that_topic_what_is_forgotten_is_not_published_twice(
    kafka, topic, directory, no_memory, caplog
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    handles = job.stage(1, [("a", 1)])
    committer = job.start()
    assert "cleanup.policy=compact" in caplog.text
    committer.commit(handles)
    committer.close()
    group = f"turnback.sink-of-{topic}.{job.ctx.job_id}.out"
    forget(kafka, group)
    again = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    new = job.stage(2, [("a", 2)])
    with pytest.raises(ConfigurationError, match=f"no longer has the progress.*{group}"):
        again.start(new)
    assert values(kafka, topic) == [1]
    # What the message says to do if it was not published.
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    offsets = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 0)])
    admin.alter_consumer_group_offsets([offsets])[group].result(10)
    SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=3).start(new)
    assert values(kafka, topic) == [1, 2]


def test_a_job_that_was_killed_while_it_claimed_starts_again_at_once(
    kafka, topic, directory, monkeypatch
):
    """Its own transaction hides what it noted in the compacted topic; only a start ends that."""
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    job.sink.acquire_target(replace(job.ctx, attempt=0))
    group = f"turnback.sink-of-{topic}"
    forget(kafka, group)
    left = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.servers, "transactional.id": f"sink-of-{topic}"}
    )
    left.init_transactions(10)
    left.begin_transaction()
    left.produce(kafka_memory.TOPIC, b'[1, ""]', group.encode())
    assert left.flush(10) == 0
    monkeypatch.setattr(kafka_client, "PATIENCE_S", 3.0)
    job.start(job.stage(1, [("a", 1)]))
    assert values(kafka, topic) == [1]


def test_what_is_about_to_change_is_no_reason_to_refuse(
    kafka, topic, directory, tmp_path, monkeypatch
):
    """A transaction shows a moment after its commit: until then somebody else is the owner."""
    other = tmp_path / "other"
    other.mkdir()
    SinkJob(other, kafka_sink(kafka.servers, topic)).start()
    read = kafka_memory.GroupOffsetStore.get_anywhere
    late = []

    def get_anywhere(register, *, settled=True):
        found = read(register, settled=settled)
        if register.group == f"turnback.sink-of-{topic}":
            late.append(found)
        return late[0] if late and not settled else found

    monkeypatch.setattr(kafka_memory.GroupOffsetStore, "get_anywhere", get_anywhere)
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    job.sink.acquire_target(replace(job.ctx, attempt=0, take_over=True))
    job.start(job.stage(1, [("a", 1)]))
    assert values(kafka, topic) == [1]


def test_a_copy_of_a_job_is_not_one_that_kafka_has_forgotten(kafka, topic, directory, tmp_path):
    """The copy has the mark of the job that it was copied from, and has published nothing."""
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    committer.commit(job.stage(1, [("a", 1)]))
    committer.close()
    copied = tmp_path / "copied"
    shutil.copytree(directory, copied)
    identity = {"job": job.ctx.job, "job_id": job.ctx.job_id}
    copy = SinkJob(copied, kafka_sink(kafka.servers, topic), 2, **identity)
    copy.sink.acquire_target(replace(copy.ctx, attempt=0, take_over=True))
    copy.start().close()
    promised = copy.stage(1, [("a", 2)])
    SinkJob(copied, kafka_sink(kafka.servers, topic), 3, **identity).start(promised)
    assert values(kafka, topic) == [1, 2]


def goes_on_in(place, kafka, topic, job, attempt):
    """The same job in another place."""
    same = {"job": job.ctx.job, "job_id": job.ctx.job_id}
    elsewhere = SinkJob(place, kafka_sink(kafka.servers, topic), attempt, **same)
    elsewhere.sink.acquire_target(replace(elsewhere.ctx, attempt=0, take_over=True))
    return elsewhere


def test_a_moved_job_does_not_publish_again_what_it_had_published(
    kafka, topic, directory, tmp_path
):
    """It was killed before it had recorded that; Kafka remembers the place that staged it."""
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    promised = job.stage(1, [("a", 1)])
    left = job.stage(2, [("a", 2)])
    job.start().commit(promised)
    elsewhere = tmp_path / "elsewhere"
    directory.rename(elsewhere)
    goes_on_in(elsewhere, kafka, topic, job, 2).start([*promised, *left])
    again = goes_on_in(elsewhere, kafka, topic, job, 3)
    again.start([*promised, *left]).commit(again.stage(3, [("a", 3)]))
    assert values(kafka, topic) == [1, 2, 3]


def test_a_copy_does_not_publish_what_the_original_has_published_since(
    kafka, topic, directory, tmp_path
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    promised = job.stage(1, [("a", 1)])
    copied = tmp_path / "copied"
    shutil.copytree(directory, copied)
    committer.commit(promised)
    copy = goes_on_in(copied, kafka, topic, job, 2)
    copy.start(promised).commit(copy.stage(2, [("a", 2)]))
    assert values(kafka, topic) == [1, 2]


def test_what_kafka_has_learned_again_is_not_forgotten(kafka, topic, directory, no_memory):
    """A driver that publishes and restarts knows what Kafka knows by then."""
    sink = kafka_sink(kafka.servers, topic)
    first = SinkJob(directory, sink)
    first.start(first.stage(1, [("a", 1)])).close()
    forget(kafka, f"turnback.sink-of-{topic}.{first.ctx.job_id}.out")
    second = SinkJob(directory, sink, attempt=2)
    committer = second.start()
    committer.commit(second.stage(2, [("a", 2)]))
    promised = second.stage(3, [("a", 3)])
    committer.close()
    SinkJob(directory, sink, attempt=3).start(promised)
    assert values(kafka, topic) == [1, 2, 3]


def test_a_kill_before_the_mark_is_made_does_not_hide_that_kafka_has_forgotten(
    kafka, topic, directory, no_memory, monkeypatch
):
    class Killed(BaseException):
        pass

    real = LocalStorage.put

    def put(storage, path, data):
        if "/kafka-" in path:
            raise Killed
        real(storage, path, data)

    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    handles = job.stage(1, [("a", 1)])
    committer = job.start()
    monkeypatch.setattr(LocalStorage, "put", put)
    with pytest.raises(Killed):
        committer.commit(handles)
    monkeypatch.setattr(LocalStorage, "put", real)
    second = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    committer = second.start(handles)
    committer.close()
    assert values(kafka, topic) == [1]
    group = f"turnback.sink-of-{topic}.{job.ctx.job_id}.out"
    forget(kafka, group)
    third = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=3)
    with pytest.raises(ConfigurationError, match=f"no longer has the progress.*{group}"):
        third.start(second.stage(1, [("a", 1)]))
    assert values(kafka, topic) == [1]


@pytest.mark.exhaustive
def test_an_open_transaction_of_another_sink_makes_nobody_wait(
    kafka, topic, directory, monkeypatch
):
    other = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.servers, "transactional.id": f"hung-{topic}"}
    )
    SinkJob(directory, kafka_sink(kafka.servers, topic)).start().close()  # makes the topic
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(kafka_memory.TOPIC, b'[1,""]', b"turnback.of-another-sink")
    assert other.flush(30) == 0
    new_topic = kafka.create_topic()
    job = SinkJob(directory, kafka_sink(kafka.servers, new_topic), uid="new")
    job.start().commit(job.stage(1, [("a", 1)]))
    assert values(kafka, new_topic) == [1]
    # What it hides is waited for, if it may be about the sink itself.
    forget(kafka, f"turnback.sink-of-{new_topic}")
    monkeypatch.setattr(kafka_client, "PATIENCE_S", 1.0)
    again = SinkJob(directory, kafka_sink(kafka.servers, new_topic), uid="new", attempt=2)
    with pytest.raises(SinkError, match="hides the record of"):
        again.start()
    other.abort_transaction(30)
    again.start()


# -- records that a topic refuses


@pytest.mark.parametrize("several", [False, True])
def test_a_record_that_is_too_large_is_refused_in_the_task(kafka, directory, several):
    topic = kafka.create_topic(max_message_bytes="1000")
    topics = [topic, topic] if several else topic
    job = SinkJob(directory, kafka_sink(kafka.servers, topics))
    committer = job.start()
    told = rf"record for topic '{topic}' has 50\d\d bytes, but the topic accepts at most 1000"
    with pytest.raises(ConfigurationError, match=told):
        job.stage(1, [("ok", 1), ("a" * 2500, 1)])
    committer.commit(job.stage(1, [("a" * 400, 1)]))
    assert values(kafka, topic) == [1]


def test_a_record_above_what_the_client_takes_is_refused_in_the_task(kafka, directory):
    topic = kafka.create_topic(max_message_bytes="10000000")
    row = ("a" * 600_000, 1)
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    with pytest.raises(
        ConfigurationError, match=r"the client accepts at most 1000000.*message\.max\.bytes"
    ):
        job.stage(1, [row])
    larger = SinkJob(directory, kafka_sink(kafka.servers, topic, message_max_bytes="3000000"))
    larger.start().commit(larger.stage(1, [row]))
    assert values(kafka, topic) == [1]


def test_records_that_fit_one_by_one_are_published(kafka, directory):
    topic = kafka.create_topic(max_message_bytes="1000")
    job = SinkJob(directory, kafka_sink(kafka.servers, topic, compression_type="none"))
    rows = [(f"{n:0200d}", n) for n in range(100)]
    job.start().commit(job.stage(1, rows))
    assert values(kafka, topic) == list(range(100))


def test_what_the_broker_refuses_is_known_whatever_call_meets_it(kafka, directory, monkeypatch):
    """The refusal may come while offsets are sent: librdkafka then calls the state erroneous."""
    topic = kafka.create_topic(max_message_bytes="1000")
    job = SinkJob(directory, kafka_sink(kafka.servers, topic, compression_type="none"))
    send = TransactionalProducer._send_offsets

    def send_late(self, group):
        time.sleep(1)
        try:
            send(self, group)
        except confluent_kafka.KafkaException as error:
            state = confluent_kafka.KafkaError(confluent_kafka.KafkaError._STATE)
            raise confluent_kafka.KafkaException(state) from error

    committer = job.start()
    monkeypatch.setattr(TransactionalProducer, "_send_offsets", send_late)
    committer.commit(job.stage(1, [(f"{n:0200d}", n) for n in range(100)]))
    assert values(kafka, topic) == list(range(100))


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(kafka, directory):
    topic = kafka.create_topic(cleanup_policy="compact")
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    with pytest.raises(ConfigurationError, match=f"'{topic}' is compacted"):
        job.stage(1, [("a", 1), (None, 2)])


# -- whose the prefix is


def test_a_prefix_belongs_to_one_job(kafka, topic, directory, tmp_path):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    (tmp_path / "fork").mkdir()
    fork = SinkJob(tmp_path / "fork", kafka_sink(kafka.servers, topic))
    with pytest.raises(ConfigurationError, match=r"belongs to job 'likes'.*take_over_sinks"):
        fork.start()
    fork.sink.acquire_target(replace(fork.ctx, attempt=0, take_over=True))
    fork.start().commit(fork.stage(1, [("a", 1)]))
    with pytest.raises(ConfigurationError, match=r"belongs to job 'fork'"):
        committer.commit(job.stage(1, [("a", 2)]))
    assert values(kafka, topic, committed=False) == [1]


def with_prefix(kafka, topic, prefix):
    """A sink for another topic, with the prefix of a first one."""
    sink = kafka_sink(kafka.servers, topic)
    sink._delivery.prefix = prefix
    return sink


@pytest.mark.parametrize("memory", [True, False])
def test_a_prefix_is_guarded_whatever_the_topic(
    kafka, topic, directory, tmp_path, memory, monkeypatch
):
    if not memory:
        monkeypatch.setattr(kafka_memory, "TOPIC", "not/a/topic")
    prefix, other = f"sink-of-{topic}", kafka.create_topic()
    SinkJob(directory, kafka_sink(kafka.servers, topic), uid="first").start()
    second = SinkJob(directory, with_prefix(kafka, other, prefix), uid="second")
    with pytest.raises(ConfigurationError, match="sink 'first' of this job"):
        second.start()
    (tmp_path / "fork").mkdir()
    with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
        SinkJob(tmp_path / "fork", with_prefix(kafka, other, prefix)).start()


class Promised:
    """Another job, with so many promised transactions."""

    def __init__(self, *counts):
        self._counts = list(counts)

    def promised_by(self, directory):
        assert directory.endswith("/likes")
        return self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]


def test_a_prefix_is_not_taken_over_while_its_owner_has_promised_output(
    kafka, topic, directory, tmp_path
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    job.start().close()
    promised = job.stage(1, [("a", 1)])
    (tmp_path / "fork").mkdir()
    fork = SinkJob(tmp_path / "fork", kafka_sink(kafka.servers, topic))
    taking = replace(fork.ctx, attempt=0, take_over=True, other_jobs=Promised(1))
    for step in (fork.sink.check_target, fork.sink.acquire_target):
        with pytest.raises(ConfigurationError, match=r"taken over from .* transactions commit"):
            step(taking)
    again = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    again.start(promised).close()
    assert values(kafka, topic) == [1]
    fork.sink.acquire_target(replace(taking, other_jobs=Promised(0)))
    fork.start().commit(fork.stage(1, [("a", 2)]))
    assert values(kafka, topic) == [1, 2]


def test_a_driver_that_lost_the_prefix_while_it_published_writes_nothing(
    kafka, topic, directory, tmp_path, monkeypatch
):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    (tmp_path / "fork").mkdir()
    fork = SinkJob(tmp_path / "fork", kafka_sink(kafka.servers, topic))
    real, taken = kafka_client.send_all, []

    def send_all(producer, records, on_delivery):
        real(producer, records, on_delivery)
        if not taken:
            taken.append(True)
            fork.sink.acquire_target(replace(fork.ctx, attempt=0, take_over=True))

    handles = job.stage(1, [("a", 1)])
    committer.commit(job.stage(0, [("a", 0)]))
    monkeypatch.setattr(kafka_client, "send_all", send_all)
    with pytest.raises(ConfigurationError, match="belongs to job 'fork'"):
        committer.commit(handles)
    assert values(kafka, topic) == [0]


@pytest.mark.exhaustive
def test_a_publish_that_outlives_its_attempt_is_not_doubled_by_the_next(
    kafka, topic, directory, monkeypatch
):
    sink = kafka_sink(kafka.servers, topic)
    former, successor = (SinkJob(directory, sink, attempt=n) for n in (1, 2))
    committer = former.start()
    handles = former.stage(1, [("a", 1)])
    hangs, wakes, has_tried, may_end = (threading.Event() for _ in range(4))
    write, publish = kafka_transactions._write, TransactionalDelivery.publish

    def hang_once(producer, records, notes):
        if threading.current_thread() is late and not hangs.is_set():
            hangs.set()
            wakes.wait(60)
            error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._TIMED_OUT)
            raise confluent_kafka.KafkaException(error)
        write(producer, records, notes)

    def publish_at_once(self, ctx, output):
        if threading.current_thread() is not late:
            # How far Kafka is was asked before; now the former attempt wakes up.
            wakes.set()
            has_tried.wait(60)
            publish(self, ctx, output)
            return
        try:
            publish(self, ctx, output)
        finally:
            has_tried.set()
            may_end.wait(60)

    def commit_late():
        with suppress(SinkError):
            committer.commit(handles)

    late = threading.Thread(target=commit_late)
    monkeypatch.setattr(kafka_transactions, "_write", hang_once)
    monkeypatch.setattr(TransactionalDelivery, "publish", publish_at_once)
    late.start()
    hangs.wait(60)
    sink.acquire_target(successor.ctx)
    sink.committer(successor.ctx).commit(handles)
    may_end.set()
    late.join(60)
    assert values(kafka, topic) == [1]


class Attempts(dict):
    nonce_of = dict.get


def test_a_restored_job_directory_is_refused_and_doubles_only_if_allowed(kafka, topic, directory):
    def life(attempt, attempts):
        job = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt)
        job.ctx = replace(job.ctx, attempts=attempts, nonce=attempts[attempt])
        return job

    first = life(1, Attempts({1: "a"}))
    promised = first.stage(1, [("a", 1)])
    backup = {p: p.read_bytes() for p in directory.rglob("*") if p.is_file()}

    def restore():
        for path, data in backup.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    first.start(promised).close()
    life(2, Attempts({1: "a", 2: "b"})).start().close()
    restore()
    restored = life(2, Attempts({1: "a", 2: "c"}))
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        restored.start(promised)
    restored.sink.acquire_target(replace(restored.ctx, attempt=0, take_over=True))
    committer = restored.start(promised)
    committer.commit(restored.stage(2, [("a", 2)]))
    # The first attempt is known, and with it what it has published.
    assert values(kafka, topic) == [1, 2]
    restore()
    anew = life(1, Attempts({1: "d"}))
    with pytest.raises(ConfigurationError, match="restored from a backup"):
        anew.start(promised)
    anew.sink.acquire_target(replace(anew.ctx, attempt=0, take_over=True))
    anew.start(promised)
    assert values(kafka, topic) == [1, 1, 2]


class Checkpoints(dict):
    newest_epoch = dict.get


def test_a_restored_job_whose_sink_is_renamed_is_refused(kafka, topic, directory):
    """The backup was made in the middle of an attempt, after its first epoch."""
    first = SinkJob(directory, kafka_sink(kafka.servers, topic))
    first.ctx = replace(first.ctx, attempts=Attempts({1: "a"}), nonce="a")
    committer = first.start()
    promised = first.stage(1, [("a", 1)])
    committer.commit(promised)
    committer.commit(first.stage(2, [("a", 2)]))
    committer.close()
    renamed = SinkJob(directory, kafka_sink(kafka.servers, topic), 2, "renamed")
    known = Attempts({1: "a", 2: "b"})
    renamed.ctx = replace(
        renamed.ctx, attempts=known, nonce="b", promised=Checkpoints({1: 1}), other_uids=("out",)
    )
    start = replace(renamed.ctx, attempt=0, nonce="")
    with pytest.raises(ConfigurationError, match=r"attempt 1 .*restored from a backup"):
        renamed.sink.check_target(start)
    accepted = replace(start, take_over=True)
    renamed.sink.check_target(accepted)
    renamed.sink.acquire_target(accepted)
    renamed.start().commit(renamed.stage(2, [("a", 3)]))
    assert values(kafka, topic) == [1, 2, 3]
    renamed.sink.check_target(replace(start, promised=Checkpoints({2: 2})))


def test_a_backup_from_before_a_fresh_start_is_refused(kafka, topic, directory):
    first = SinkJob(directory, kafka_sink(kafka.servers, topic))
    first.ctx = replace(first.ctx, attempts=Attempts({1: "a"}), nonce="a")
    first.start().close()
    afresh = SinkJob(directory, kafka_sink(kafka.servers, topic), 2, job_id="fresh")
    afresh.ctx = replace(afresh.ctx, attempts=Attempts({1: "a", 2: "b"}), nonce="b")
    afresh.start().close()
    restored = replace(first.ctx, attempt=0, nonce="")
    with pytest.raises(ConfigurationError, match=r"attempt 2 .*restored from a backup"):
        first.sink.check_target(restored)
    first.sink.check_target(replace(restored, take_over=True))


def test_a_job_whose_directory_was_deleted_is_not_taken_for_restored(kafka, topic, directory):
    """Not even if its first driver dies before it has claimed the prefix for the new job."""
    old = SinkJob(directory, kafka_sink(kafka.servers, topic), 3)
    old.ctx = replace(old.ctx, attempts=Attempts({3: "x"}), nonce="x")
    old.start().close()
    created = replace(old.ctx, job_id="", attempt=0, nonce="", attempts=Attempts({}))
    old.sink.check_target(created)
    old.sink.acquire_target(created)
    new = SinkJob(directory, kafka_sink(kafka.servers, topic), 2, job_id="new")
    new.ctx = replace(new.ctx, attempts=Attempts({1: "killed", 2: "z"}), nonce="z")
    start = replace(new.ctx, attempt=0, nonce="", attempts=Attempts({1: "killed"}))
    new.sink.check_target(start)
    new.sink.acquire_target(start)
    new.start().commit(new.stage(1, [("a", 1)]))
    assert values(kafka, topic) == [1]


def test_what_a_job_has_published_does_not_count_for_its_copy(kafka, topic, directory, tmp_path):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic))
    committer = job.start()
    copy = SinkJob(tmp_path / "copy", kafka_sink(kafka.servers, topic), job_id=job.ctx.job_id)
    (tmp_path / "copy").mkdir()
    committer.commit([*job.stage(1, [("a", 1)]), *job.stage(2, [("a", 2)])])
    with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
        copy.start()
    copy.sink.acquire_target(replace(copy.ctx, attempt=0, take_over=True))
    copy.start().commit(copy.stage(1, [("a", 7)]))
    assert values(kafka, topic) == [1, 2, 7]


def test_notes_of_older_versions_of_turnback(kafka, topic, directory, tmp_path):
    job = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=2)
    group = f"turnback.sink-of-{topic}"
    owner = {"job": "likes", "directory": directory.as_uri(), "uid": "out"}
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    notes = {
        group: TopicPartition(topic, 0, 1, json.dumps(owner)),
        f"{group}.{job.ctx.job_id}.out": TopicPartition(topic, 0, version_of(1, 3)),
    }
    for name, note in notes.items():
        noted = ConsumerGroupTopicPartitions(name, [note])
        admin.alter_consumer_group_offsets([noted])[name].result(10)
    (tmp_path / "fork").mkdir()
    with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
        SinkJob(tmp_path / "fork", kafka_sink(kafka.servers, topic)).start()
    old = SinkJob(directory, kafka_sink(kafka.servers, topic), attempt=1)
    job.start([*old.stage(3, [("a", 3)]), *old.stage(4, [("a", 4)])])
    assert values(kafka, topic) == [4]


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
        pytest.raises(ConfigurationError, match="rejected the login") as caught,
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
