"""How far a source of Kafka is behind the end of its topics."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from importlib.util import find_spec

from turnback.checkpoint.manifest import kafka_positions
from turnback.core.clock import Clock, SystemClock
from turnback.program.source_lag import OpenLagReader, SourceLag
from turnback.sinks.kafka_client import Cluster
from turnback.sinks.kafka_offsets import KafkaOffsets, Place
from turnback.spark.kafka_check import client_properties

_PARTITIONS_S = 60.0
"""After so long new partitions are looked for."""


def kafka_lag(options: Mapping[str, str]) -> OpenLagReader | None:
    """What asks Kafka for the lag of a source with these options of Spark's connector.

    None without confluent-kafka, and for a login that it cannot do as Java's client does.
    """
    if find_spec("confluent_kafka") is None or client_properties(options) is None:
        return None
    return lambda: KafkaLagReader(options)


class KafkaLagReader:
    """Compares positions with the ends of partitions.

    Records are counted as offsets, as Kafka's own tools do: markers of transactions, records that
    were aborted, and those that compaction has removed count too, as long as the source is not
    past them.
    """

    def __init__(self, options: Mapping[str, str], clock: Clock | None = None) -> None:
        self._options = options
        servers, login = options["kafka.bootstrap.servers"], client_properties(options) or {}
        committed = options.get("kafka.isolation.level") == "read_committed"
        self._kafka = KafkaOffsets(Cluster(servers, login), "Kafka", committed=committed)
        self._clock = clock or SystemClock()
        self._places: list[Place] = []
        self._places_until = 0.0
        self._timestamps: dict[Place, tuple[int, int]] = {}

    def read(self, offset: str | None) -> SourceLag | None:
        positions = self._positions(offset)
        if positions is None:
            return None
        now_ms = self._clock.now_ms()
        ends = self._kafka.ends(positions)
        behind = {at: position for at, position in positions.items() if position < ends[at]}
        records = sum(ends[at] - position for at, position in behind.items())
        return SourceLag(records, self._age_s(behind, now_ms))

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
                wanted = re.compile(self._options["subscribePattern"])
                found = self._kafka.partitions(None)
                self._places = [place for place in found if wanted.fullmatch(place[0])]
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
