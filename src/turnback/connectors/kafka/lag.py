"""How far a source of Kafka is behind the end of its topics."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection, Mapping

from turnback.connectors.kafka.check import kafka_cluster, reads_topic, skips_lost_data, topic_ids
from turnback.connectors.kafka.client import Cluster
from turnback.connectors.kafka.offsets import KafkaOffsets, Place
from turnback.connectors.kafka.positions import kafka_positions
from turnback.connectors.kafka.retention import KafkaRetention
from turnback.core.clock import Clock, SystemClock
from turnback.plan.sources import OpenLagReader, ReplayLimit, SourceLag

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
                "no offsets are committed to the consumer group %r: that needs confluent-kafka, "
                "and a login that it can do as Java's client does",
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
        before = topic_ids(known)
        topics = {topic for topic, _, _ in kafka_positions(offset)}
        if time.monotonic() >= self._ids_until or not topics <= before.keys():
            self._ids = self._kafka.topic_ids(topics)
            self._ids_until = time.monotonic() + _PARTITIONS_S
            for topic in self._ids:
                if topic in before and before[topic] != self._ids[topic]:
                    _LOG.warning(
                        "topic %r was made anew while the job reads it: what is in it now is "
                        "skipped up to the offset where the job is",
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
