"""How long Kafka keeps what comes after a position."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from turnback.connectors.kafka.offsets import KafkaOffsets, Place, TopicRetention
from turnback.connectors.kafka.positions import kafka_positions
from turnback.core.clock import Clock
from turnback.plan.sources import ReplayLimit

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
