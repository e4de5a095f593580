"""Positions in the shards of a stream, and the records that are read ahead to learn them.

A position is JSON: ``{"source": "kinesis", "stream": "likes", "start": [...], "shards": {...}}``,
and for every shard

- ``at``: how to go on, as a kind of iterator and its value;
- ``count``: how many records of the shard were read, which numbers them;
- ``seen``: up to which time it is known that no record was missed, in milliseconds;
- ``ended``: if it was closed and all of it was read. It stays until Kinesis has forgotten it, so
  that it is not read again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import accumulate, islice, takewhile
from typing import Any

from turnback.connectors.kinesis.client import (
    EARLIEST,
    IteratorExpired,
    KinesisClient,
    KinesisRecord,
    Place,
    Shard,
    Throttled,
)

MOST_BYTES = 16 << 20
"""Of what an epoch reads of one shard: it travels in the description of a task."""
_PAUSE_S = 0.25
"""Between two questions for records of a shard that has none: Kinesis allows five in a second."""
_LONGEST_PAUSE_S = 5.0
ShardPosition = dict[str, Any]


def new_shards(
    known: Mapping[str, ShardPosition], listed: Iterable[Shard], start: Place, now_ms: int
) -> dict[str, ShardPosition]:
    """The shards to begin with now: those of which all parents were read to their ends.

    So whatever has one partition key is read in order across splits and merges. A parent that
    Kinesis does not list any more has no records left.
    """
    shards = {shard.id: shard for shard in listed}
    begin = {}
    for shard in shards.values():
        waits_for = [p for p in shard.parents if p in shards and not is_ended(known.get(p))]
        if shard.id not in known and not waits_for:
            begin[shard.id] = {"at": list(start), "count": 0, "seen": now_ms}
    return begin


def is_ended(position: ShardPosition | None) -> bool:
    """Whether all of a shard was read, and nothing will be added to it."""
    return position is not None and bool(position.get("ended"))


class ReadAhead:
    """Records of a shard that were read and not given out yet.

    Args:
        client: Whom to ask.
        shard: The shard's id.
        at: Where to go on.
    """

    def __init__(self, client: KinesisClient, shard: str, at: Place) -> None:
        self.at = at
        """Where the first of the records is, or would be."""
        self.records: deque[KinesisRecord] = deque()
        self._client = client
        self._shard = shard
        self._end: Place = at
        self._iterator: str | None = None
        self._bytes = 0
        self._not_before = 0.0
        self._pause = _PAUSE_S
        self._closed = False
        self._caught_up_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether the shard was closed, and all of it was given out."""
        return self._closed and not self.records

    def fill(self, most: int) -> None:
        """Read ahead, as far as there is something, it is not too much, and Kinesis allows it."""
        renewed = 0
        while not self._closed and len(self.records) < most and self._bytes < MOST_BYTES:
            if time.monotonic() < self._not_before:
                return
            asked_ms = int(time.time() * 1000)
            try:
                if self._iterator is None:
                    self._iterator = self._client.iterator(self._shard, self._end)
                page = self._client.page(self._iterator)
            except IteratorExpired:
                self._iterator = None
                renewed = renewed + 1
                if renewed > 1:
                    self._wait()  # one that is new should not have expired
                    return
                continue
            except Throttled:
                self._wait()
                return
            self.records.extend(page.records)
            if page.records:
                self._end = ("AFTER_SEQUENCE_NUMBER", page.records[-1].sequence_number)
                self._bytes += sum(len(record.data) for record in page.records)
            self._iterator = page.following
            self._closed = page.following is None
            self._pause = _PAUSE_S
            # A page without records is not the end: there may be more behind a gap.
            if page.behind_ms == 0:
                self._caught_up_ms = asked_ms
                self._not_before = time.monotonic() + _PAUSE_S
                return

    def fitting(self, number: int, most_bytes: int | None) -> int:
        """How many of the first records have no more bytes than that together, but one of them."""
        if most_bytes is None:
            return number
        sizes = accumulate(len(record.data) for record in islice(self.records, number))
        return min(number, max(1, sum(1 for _ in takewhile(most_bytes.__ge__, sizes))))

    def take(self, number: int) -> list[KinesisRecord]:
        """Give out the first records."""
        taken = [self.records.popleft() for _ in range(number)]
        if taken:
            self.at = ("AFTER_SEQUENCE_NUMBER", taken[-1].sequence_number)
            self._bytes -= sum(len(record.data) for record in taken)
        return taken

    def has_reached(self, stop_ms: int) -> bool:
        """Whether whatever arrived up to a time was given out."""
        if self.records:
            return self.records[0].arrived > stop_ms
        return self._closed or self._caught_up_ms >= stop_ms

    def seen(self, before: int) -> int:
        """Up to which time it is known that no record is missing from what was given out."""
        if not self.records:
            return max(before, self._caught_up_ms)
        return max(before, self.records[0].arrived - 1)

    def _wait(self) -> None:
        self._not_before = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


def lost_since(
    client: KinesisClient, shard: str, position: ShardPosition, retention_ms: int
) -> int | None:
    """Since when records of a shard may be lost to retention, in milliseconds; None if none is.

    Kinesis goes on with what is there and says nothing. The last record that was read is still
    there, or it is known that there was no other in the time of which records are gone.
    """
    kind, value = position["at"]
    gone_before = int(time.time() * 1000) - retention_ms
    if is_ended(position) or position["seen"] >= gone_before:
        return None
    first = client.first(shard, EARLIEST) if kind.endswith("SEQUENCE_NUMBER") else None
    if first is not None and int(first.sequence_number) <= int(value):
        return None
    return int(position["seen"])
