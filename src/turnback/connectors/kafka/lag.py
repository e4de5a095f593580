"""How far a source of Kafka is behind the end of its topics, and how far it can be turned back."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from turnback.connectors.kafka.check import (
    kafka_cluster,
    known_topic_ids,
    reads_topic,
    skips_lost_data,
)
from turnback.connectors.kafka.client import Cluster, KafkaClient, confluent_kafka
from turnback.connectors.kafka.positions import kafka_positions
from turnback.connectors.kafka.topics import topic_ids
from turnback.core.clock import Clock, SystemClock
from turnback.core.extras import require
from turnback.errors import SourceError
from turnback.plan.sources import OpenLagReader, ReplayLimit, SourceLag

ANSWER_S = 5.0
"""How long Kafka may take to answer one question."""
_RECORDS_S = 5.0
_AT_ONCE = 50
"""Of so many partitions records are read together, which bounds what is held of them."""

Place = tuple[str, int]
"""A topic, and the number of a partition."""


@dataclass(frozen=True)
class TopicRetention:
    """For how long a topic keeps records, None for ever; `by_size` if there is a limit in bytes."""

    ms: int | None
    by_size: bool

    @property
    def limits(self) -> bool:
        return self.ms is not None or self.by_size


class KafkaOffsets(KafkaClient):
    """Asks where partitions begin and end, and how old a record is.

    Whatever Kafka does not answer in time is a `SourceError`. With `committed` only committed
    records count, as its readers see them.
    """

    def __init__(self, cluster: Cluster, name: str, *, committed: bool = True) -> None:
        super().__init__(cluster, name, SourceError)
        self._api = require("confluent_kafka.admin", "kafka", "KafkaSource")
        levels = confluent_kafka().IsolationLevel
        self._level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        # While a broker is away its clients would log that again and again.
        quiet = {"log_level": 0}
        self._admin = self.admin(quiet)
        own = {
            **quiet,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            # One record of each partition is wanted, and no more than comes with it.
            "queued.min.messages": 1,
            "fetch.queue.backoff.ms": 20,
            "fetch.message.max.bytes": 64 * 1024,
            "fetch.wait.max.ms": 100,
        }
        self._consumer = self.consumer("turnback.lag", own)

    def partitions(self, topics: Collection[str] | None) -> list[Place]:
        """All partitions of these topics that are there; of all topics, if none is given."""
        with self.failures("list topics"):
            if topics is None:
                found = self._admin.list_topics(timeout=ANSWER_S).topics
            else:
                found = {
                    topic: self._admin.list_topics(topic, timeout=ANSWER_S).topics[topic]
                    for topic in topics
                }
        return [(name, number) for name, topic in found.items() for number in topic.partitions]

    def begins(self, places: Iterable[Place]) -> dict[Place, int]:
        return self._list(places, self._api.OffsetSpec.earliest())

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """The offset behind the last record of each partition that its readers see."""
        return self._list(places, self._api.OffsetSpec.latest())

    def timestamps(self, positions: Mapping[Place, int]) -> dict[Place, int | None]:
        """When the next record at each position was written, in milliseconds since 1970.

        None if there is no record. Partitions that do not answer in time are left out.
        """
        found: dict[Place, int | None] = {}
        end = time.monotonic() + _RECORDS_S
        asked = list(positions.items())
        for first in range(0, len(asked), _AT_ONCE):
            with self.failures("read the next records"):
                self._read_next(dict(asked[first : first + _AT_ONCE]), end, found)
        return found

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        names = list(topics)

        def ids() -> dict[str, str]:
            return topic_ids(self._admin, names, ANSWER_S)

        return self.ask("look up topics", ids, ANSWER_S, self._admin)

    def retention(self, topics: Iterable[str]) -> dict[str, TopicRetention]:
        """For how long topics keep records; one that is only compacted keeps them for ever."""
        kind = self._api.ConfigResource.Type.TOPIC
        wanted = [self._api.ConfigResource(kind, topic) for topic in topics]

        def settings() -> dict[str, Any]:
            answers = self._admin.describe_configs(wanted, request_timeout=ANSWER_S)
            return {resource.name: answer.result() for resource, answer in answers.items()}

        found = self.ask("look up how long records are kept", settings, ANSWER_S, self._admin)
        return {topic: _retention({k: e.value for k, e in c.items()}) for topic, c in found.items()}

    def commit(self, group: str, positions: Mapping[Place, int]) -> None:
        """Commit positions to a consumer group that nobody consumes with."""
        api = confluent_kafka()
        offsets = [api.TopicPartition(*place, at) for place, at in positions.items()]
        wanted = [api.ConsumerGroupTopicPartitions(group, offsets)]

        def commit() -> None:
            answers = self._admin.alter_consumer_group_offsets(wanted, request_timeout=ANSWER_S)
            for answer in answers.values():
                for partition in answer.result().topic_partitions:
                    if partition.error is not None:
                        raise api.KafkaException(partition.error)

        self.ask(f"commit offsets of group {group!r}", commit, ANSWER_S, self._admin)

    def close(self) -> None:
        self._consumer.close()

    def _list(self, places: Iterable[Place], which: Any) -> dict[Place, int]:
        partition = confluent_kafka().TopicPartition
        wanted = {partition(*place): which for place in places}
        if not wanted:
            return {}

        def offsets() -> dict[Place, int]:
            answers = self._admin.list_offsets(
                wanted, isolation_level=self._level, request_timeout=ANSWER_S
            )
            return {(p.topic, p.partition): int(f.result().offset) for p, f in answers.items()}

        found = self.ask("look up offsets", offsets, ANSWER_S, self._admin)
        if any(offset < 0 for offset in found.values()):  # what librdkafka makes of a timeout
            raise SourceError(
                f"{self.name}: cannot look up offsets at {self.cluster.servers}: no response "
                f"within {ANSWER_S:g} s"
            )
        return found

    def _read_next(
        self, positions: Mapping[Place, int], end: float, found: dict[Place, int | None]
    ) -> None:
        api = confluent_kafka()
        self._consumer.assign([api.TopicPartition(*place, at) for place, at in positions.items()])
        try:
            left = set(positions)
            while left and time.monotonic() < end:
                for message in self._consumer.consume(500, timeout=0.1):
                    place = (message.topic(), message.partition())
                    if place in left and message.error() is None:
                        kind, timestamp = message.timestamp()
                        if kind != api.TIMESTAMP_NOT_AVAILABLE:
                            found[place] = timestamp
                        left.discard(place)
                    elif place in left and message.error().name() == "_PARTITION_EOF":
                        found[place] = None
                        left.discard(place)
        finally:
            self._consumer.unassign()


def _retention(config: Mapping[str, str | None]) -> TopicRetention:
    if "delete" not in (config.get("cleanup.policy") or "delete"):
        return TopicRetention(None, by_size=False)
    ms, size = (int(config.get(f"retention.{unit}") or -1) for unit in ("ms", "bytes"))
    return TopicRetention(ms if ms >= 0 else None, by_size=size >= 0)


_LOG = logging.getLogger(__name__)
_PARTITIONS_S = 60.0
"""After so long new partitions are looked for, and topics that were made anew."""


def kafka_lag(options: Mapping[str, str], group: str | None = None) -> OpenLagReader | None:
    """What asks Kafka for the lag of a source with these options of Spark's connector.

    It commits positions of checkpoints to a consumer group, if there is one. None without
    confluent-kafka, and for a login that it cannot do as Java's client does.
    """
    cluster = kafka_cluster(options)
    if cluster is None:
        if group is not None:
            _LOG.warning(
                "not committing offsets to the consumer group %r: that requires "
                "confluent-kafka, and a login method that both it and the Java client support",
                group,
            )
        return None
    if group is None:
        return lambda: KafkaLagReader(cluster, options)
    return lambda: KafkaGroupReader(cluster, options, group)


class KafkaLagReader:
    """Compares positions with the ends of partitions.

    Records are counted as offsets, as Kafka's own tools do: markers of transactions, records that
    were aborted, and those that compaction has removed count too, as long as the source is not
    past them.
    """

    def __init__(
        self, cluster: Cluster, options: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        self._options = options
        committed = options.get("kafka.isolation.level") == "read_committed"
        self._kafka = KafkaOffsets(cluster, "Kafka", committed=committed)
        self._clock = clock or SystemClock()
        self._places: list[Place] = []
        self._places_until = 0.0
        self._timestamps: dict[Place, tuple[int, int]] = {}
        self._retention = KafkaRetention(self._kafka, self._clock)
        self._ids: dict[str, str] = {}
        self._ids_until = 0.0

    def read(self, offset: str | None) -> SourceLag | None:
        positions = self._positions(offset)
        if positions is None:
            return None
        now_ms = self._clock.now_ms()
        ends = self._kafka.ends(positions)
        behind = {at: position for at, position in positions.items() if position < ends[at]}
        records = sum(ends[at] - position for at, position in behind.items())
        return SourceLag(records, self._age_s(behind, now_ms))

    def identity(self, offset: str, known: str | None) -> str | None:
        """Kafka's ids of the topics at a position, as JSON.

        The first that was known of a topic stays, so that a topic that is made anew while the job
        runs is found when it starts again; with `failOnDataLoss` false, the newest.
        """
        before = known_topic_ids(known)
        topics = {topic for topic, _, _ in kafka_positions(offset)}
        if time.monotonic() >= self._ids_until or not topics <= before.keys():
            self._ids = self._kafka.topic_ids(topics)
            self._ids_until = time.monotonic() + _PARTITIONS_S
            for topic in self._ids:
                if topic in before and before[topic] != self._ids[topic]:
                    _LOG.warning(
                        "topic %r was recreated while the job reads it: its new records are "
                        "skipped up to the job's offset",
                        topic,
                    )
        newest = skips_lost_data(self._options)
        ids = {**before, **self._ids} if newest else {**self._ids, **before}
        found = {topic: ids[topic] for topic in sorted(topics & ids.keys())}
        return json.dumps(found) if found else None

    def replay_limits(self, offsets: Collection[str]) -> dict[str, ReplayLimit]:
        return self._retention.limits(offsets)

    def close(self) -> None:
        self._kafka.close()

    def _positions(self, offset: str | None) -> dict[Place, int] | None:
        """Where the source goes on in each partition; None if only Spark knows."""
        known = {(topic, number): at for topic, number, at in kafka_positions(offset)}
        if offset is None and self._options.get("startingOffsets") != "earliest":
            known = self._first_positions()
            if not known:
                return None
        # Spark reads partitions that were added from their beginning.
        added = [place for place in self._partitions() if place not in known]
        return {**known, **self._kafka.begins(added)}

    def _first_positions(self) -> dict[Place, int]:
        chosen = kafka_positions(self._options.get("startingOffsets"))
        return {(topic, number): at for topic, number, at in chosen if at >= 0}

    def _partitions(self) -> list[Place]:
        if time.monotonic() >= self._places_until:
            names = self._options.get("subscribe")
            if names is not None:
                self._places = self._kafka.partitions([*map(str.strip, names.split(","))])
            else:
                found = self._kafka.partitions(None)
                self._places = [place for place in found if reads_topic(self._options, place[0])]
            self._places_until = time.monotonic() + _PARTITIONS_S
        return self._places

    def _age_s(self, behind: Mapping[Place, int], now_ms: int) -> float | None:
        """How old the oldest record is that comes next in any partition; None if not known."""
        known = {
            place: found
            for place, at in behind.items()
            if (found := self._timestamps.get(place)) is not None and found[0] == at
        }
        new = {place: at for place, at in behind.items() if place not in known}
        read = self._kafka.timestamps(new)
        for place, written_ms in read.items():
            if written_ms is not None:
                known[place] = (new[place], written_ms)
        self._timestamps = known
        if len(read) < len(new):
            return None
        oldest = min((written_ms for _, written_ms in known.values()), default=now_ms)
        return max(0, now_ms - oldest) / 1000


class KafkaGroupReader(KafkaLagReader):
    """Commits the positions of checkpoints to a consumer group, besides."""

    def __init__(self, cluster: Cluster, options: Mapping[str, str], group: str) -> None:
        super().__init__(cluster, options)
        self._group = group

    def commit(self, offset: str) -> None:
        positions = {(topic, number): at for topic, number, at in kafka_positions(offset)}
        if positions:
            self._kafka.commit(self._group, positions)


_SETTINGS_S = 600.0
_LOOK_S = 5.0


@dataclass(frozen=True)
class _Partitions:
    """What is known of some partitions now."""

    begins: dict[Place, int]
    retention: dict[str, TopicRetention]
    oldest_ms: dict[Place, int]
    """When the first record was written, where size decides what is deleted."""


class KafkaRetention:
    """Tells when records will be deleted: by age, or as fast as size has had it lately.

    Kafka deletes whole segments, so records stay for somewhat longer than this says.
    """

    def __init__(self, kafka: KafkaOffsets, clock: Clock) -> None:
        self._kafka = kafka
        self._clock = clock
        self._retention: dict[str, TopicRetention] = {}
        self._retention_until = 0.0
        self._written_ms: dict[tuple[Place, int], int] = {}

    def limits(self, offsets: Collection[str]) -> dict[str, ReplayLimit]:
        """How long what comes after each offset can be read; without those not known yet."""
        positions = {
            offset: {(topic, number): at for topic, number, at in kafka_positions(offset)}
            for offset in offsets
        }
        places = {place for of_offset in positions.values() for place in of_offset}
        if not places:
            return {}
        partitions = self._look_at(places)
        wanted = {
            (place, at)
            for of_offset in positions.values()
            for place, at in of_offset.items()
            if at >= partitions.begins[place] and partitions.retention[place[0]].limits
        }
        self._written_ms = {w: ms for w, ms in self._written_ms.items() if w in wanted}
        unwritten = self._look_up(wanted)
        found = {}
        for offset, of_offset in positions.items():
            limits = [
                self._limit(place, at, partitions, unwritten) for place, at in of_offset.items()
            ]
            known = [limit for limit in limits if limit is not None]
            if len(known) == len(limits):
                until = min((limit.until_ms for limit in known if limit.until_ms), default=None)
                found[offset] = ReplayLimit(any(limit.gone for limit in known), until)
        return found

    def _look_at(self, places: Collection[Place]) -> _Partitions:
        topics = {topic for topic, _ in places}
        if time.monotonic() >= self._retention_until or not topics <= self._retention.keys():
            self._retention = self._kafka.retention(topics)
            self._retention_until = time.monotonic() + _SETTINGS_S
        begins = self._kafka.begins(places)
        by_size = {
            place: at for place, at in begins.items() if at and self._retention[place[0]].by_size
        }
        oldest = self._kafka.timestamps(by_size) if by_size else {}
        known = {place: ms for place, ms in oldest.items() if ms is not None}
        return _Partitions(begins, self._retention, known)

    def _look_up(self, wanted: Iterable[tuple[Place, int]]) -> set[tuple[Place, int]]:
        """Find out when records were written, as far as time allows; gives those yet to come."""
        left = [each for each in wanted if each not in self._written_ms]
        unwritten: set[tuple[Place, int]] = set()
        end = time.monotonic() + _LOOK_S
        while left and time.monotonic() < end:
            asked = dict(left)  # one of each partition
            for place, written_ms in self._kafka.timestamps(asked).items():
                if written_ms is None:
                    unwritten.add((place, asked[place]))
                else:
                    self._written_ms[place, asked[place]] = written_ms
            left = [each for each in left if asked[each[0]] != each[1]]
        return unwritten

    def _limit(
        self, place: Place, at: int, partitions: _Partitions, unwritten: set[tuple[Place, int]]
    ) -> ReplayLimit | None:
        """Of one partition; None if it is not known yet."""
        retention = partitions.retention[place[0]]
        if at < partitions.begins[place]:
            return ReplayLimit(gone=True, until_ms=None)
        if not retention.limits:
            return ReplayLimit(gone=False, until_ms=None)
        now = self._clock.now_ms()
        written = now if (place, at) in unwritten else self._written_ms.get((place, at))
        if written is None:
            return None
        ages = [] if retention.ms is None else [retention.ms]
        if place in partitions.oldest_ms:
            ages.append(max(0, now - partitions.oldest_ms[place]))
        return ReplayLimit(gone=False, until_ms=written + min(ages) if ages else None)
