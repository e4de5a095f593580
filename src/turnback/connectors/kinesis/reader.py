"""A stream of Kinesis as a source of Spark: the position in a shard is a sequence number.

Sequence numbers have gaps, and nobody can tell the next one: to say where an epoch ends, its
records have to be read. They are read once. The process beside the driver that reads ahead gives
them to tasks with their orders, at most `MOST_BYTES` of each shard in an epoch. An epoch that is
run again by another driver has no such records; then its tasks read those between the two positions
from Kinesis, which are the same. To read all of them twice would halve what a shard gives: it
allows two megabytes and five questions in a second, to all who read it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from turnback.connectors.kinesis.client import (
    EARLIEST,
    IteratorExpired,
    KinesisClient,
    KinesisRecord,
    Place,
    ReadAhead,
    Shard,
    ShardPosition,
    is_ended,
    lost_since,
    new_shards,
)
from turnback.connectors.kinesis.source import gone_text, lost_text
from turnback.connectors.record_source import report_loss
from turnback.connectors.records import ddl_of, errors_encoded, record_batch, shares
from turnback.errors import SourceError
from turnback.plan.sources import OFFSET_COLUMN

_TYPES = {
    "stream": "string",
    "shard": "string",
    "sequence_number": "string",
    "partition_key": "string",
    "timestamp": "timestamp",
}
_NAME = "KinesisSource"
_LISTED_S = 10.0
_THREADS = 16
_MOST_AHEAD = 50_000
_BATCH = 10_000
_WAIT_S = 0.1
_RENEWALS = 100


class KinesisRecords(DataSource):
    """Records of a stream."""

    @classmethod
    def name(cls) -> str:
        return "turnback-kinesis"

    def schema(self) -> str:
        return ddl_of(json.loads(self.options["columns"]), _TYPES)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return KinesisReader(dict(self.options))


@dataclass(frozen=True)
class _Range:
    """What a task reads: `number` records of a shard from a place on, the last of which is known.

    `first` is the number of the first of them in the shard; `data` has them in Arrow's format, if
    they were read already.
    """

    shard: str
    at: Place
    first: int
    number: int
    last: str
    data: bytes | None = field(default=None, repr=False)


class KinesisReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream; all but `read` runs in one process beside the driver."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._most = int(options["max_records"]) if "max_records" in options else None
        self._most_bytes = int(options["max_bytes"]) if "max_bytes" in options else None
        self._columns: list[str] = json.loads(options["columns"])
        self._made: KinesisClient | None = None
        self._ahead: dict[str, ReadAhead] = {}
        self._given: dict[tuple[str, str], list[KinesisRecord]] = {}
        self._listed: list[Shard] = []
        self._list_at = 0.0
        self._retention_ms = 0
        self._stop_ms: int | None = None

    # -- beside the driver

    @errors_encoded
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        kind, value = json.loads(self._options["start"])
        start = EARLIEST
        now_ms = int(time.time() * 1000)
        if kind in ("latest", "timestamp"):
            start = ("AT_TIMESTAMP", now_ms if kind == "latest" else value)
        shards = new_shards({}, self._list(), start, now_ms)
        for shard, number in (value if kind == "sequence_numbers" else {}).items():
            shards[shard] = {"at": ["AT_SEQUENCE_NUMBER", number], "count": 0, "seen": 0}
        return self._position(start, shards)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._stop_ms = int(time.time() * 1000)

    @errors_encoded
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        now_ms = int(time.time() * 1000)
        known = self._there(start["shards"])
        self._follow(known)
        self._fill()
        chosen = shares({id: self._available(id) for id in self._ahead}, self._most)
        share = None
        if self._most_bytes is not None:
            share = self._most_bytes // max(1, sum(number > 0 for number in chosen.values()))
        self._given.clear()
        found = dict(known)
        changed = len(known) < len(start["shards"])
        for id, ahead in self._ahead.items():
            records = ahead.take(ahead.fitting(chosen[id], share))
            before = known[id]
            found[id] = {
                "at": list(ahead.at) if records else before["at"],
                "count": before["count"] + len(records),
                "seen": ahead.seen(before["seen"]),
            }
            if records:
                self._given[id, records[-1].sequence_number] = records
            if ahead.is_done:
                found[id]["ended"] = True
            changed |= bool(records) or ahead.is_done
        listed = self._list(again=any(ahead.is_done for ahead in self._ahead.values()))
        begin = new_shards(found, listed, tuple(start["start"]), now_ms)
        stale = any(
            now_ms - position["seen"] > self._retention_ms / 4
            for position in found.values()
            if not is_ended(position)
        )
        if not (changed or begin or stale):
            return start
        return self._position(tuple(start["start"]), found | begin)

    @errors_encoded
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        ranges = []
        for id, position in end["shards"].items():
            before = start["shards"].get(id)
            if before is None or position["count"] == before["count"]:
                continue
            number = position["count"] - before["count"]
            last = position["at"][1]
            given = self._given.get((id, last), [])
            data = None
            if len(given) == number:
                data = _packed(self._batches(id, given, before["count"]))
            place = tuple(before["at"])
            ranges.append(_Range(id, place, before["count"], number, last, data))
        return [InputPartition(each) for each in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to give back: Kinesis keeps what its retention says."""

    def _position(self, start: Place, shards: Mapping[str, ShardPosition]) -> dict[str, Any]:
        """In one order: Spark compares positions as texts."""
        return {
            "source": "kinesis",
            "stream": self._options["stream"],
            "start": list(start),
            "shards": dict(sorted(shards.items())),
        }

    def _follow(self, known: Mapping[str, ShardPosition]) -> None:
        """Read ahead from positions; whoever is elsewhere begins anew."""
        self._retention_ms = self._retention_ms or self._client().retention_ms()
        for id in [id for id in self._ahead if id not in known or is_ended(known[id])]:
            del self._ahead[id]
        for id, position in known.items():
            at = tuple(position["at"])
            if is_ended(position) or (id in self._ahead and self._ahead[id].at == at):
                continue
            since = lost_since(self._client(), id, position, self._retention_ms)
            if since is not None:
                self._lose(lost_text(id, since))
            self._ahead[id] = ReadAhead(self._client(), id, at)

    def _there(self, known: Mapping[str, ShardPosition]) -> dict[str, ShardPosition]:
        """The positions in shards that Kinesis has not forgotten."""
        there = {shard.id for shard in self._list()}
        for id in known.keys() - there:
            if not is_ended(known[id]):
                self._lose(gone_text(id))
        return {id: position for id, position in known.items() if id in there}

    def _fill(self) -> None:
        """Read ahead in all shards; if the job is to end, until something is there or all is."""
        most = min(self._most or _MOST_AHEAD, _MOST_AHEAD)
        while True:
            with ThreadPoolExecutor(_THREADS) as threads:
                list(threads.map(lambda ahead: ahead.fill(most), self._ahead.values()))
            stop = self._stop_ms
            if stop is None or all(ahead.has_reached(stop) for ahead in self._ahead.values()):
                return
            if any(map(self._available, self._ahead)):
                return
            time.sleep(_WAIT_S)

    def _available(self, id: str) -> int:
        records = self._ahead[id].records
        stop = self._stop_ms
        if stop is None:
            return len(records)
        return sum(1 for _ in takewhile(lambda record: record.arrived <= stop, records))

    def _list(self, *, again: bool = False) -> list[Shard]:
        """The shards of the stream, asked for from time to time, or at once if one has ended."""
        now = time.monotonic()
        if again or not self._listed or now - self._list_at > _LISTED_S:
            self._listed = self._client().retry_while(self._client().shards)
            self._list_at = now
        return self._listed

    def _lose(self, text: str) -> None:
        name = f"{_NAME}: stream {self._options['stream']!r}"
        report_loss(self._options, name, [text], SourceError)

    def _client(self) -> KinesisClient:
        if self._made is None:
            self._made = KinesisClient(self._options, _NAME)
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        """Tasks get the options, and neither connections nor records."""
        return {"options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted: _Range = partition.value
        if wanted.data is not None:
            with pa.ipc.open_stream(wanted.data) as reader:
                yield from reader
            return
        yield from self._batches(wanted.shard, self._again(wanted), wanted.first)

    @errors_encoded
    def _again(self, wanted: _Range) -> list[KinesisRecord]:
        """Read records of an epoch once more; there are as many as there were."""
        client = self._client()
        found = []
        at = wanted.at
        last = int(wanted.last)
        iterator: str | None = None
        renewed = 0
        while True:
            try:
                if iterator is None:
                    iterator = client.retry_while(client.iterator, wanted.shard, at)
                page = client.retry_while(client.page, iterator)
            except IteratorExpired:
                iterator = None
                renewed = renewed + 1
                if renewed > _RENEWALS:
                    raise SourceError(
                        f"{_NAME}: iterators of shard {wanted.shard!r} expire immediately"
                    ) from None
                continue
            found += [each for each in page.records if int(each.sequence_number) <= last]
            if page.records:
                at = ("AFTER_SEQUENCE_NUMBER", page.records[-1].sequence_number)
            iterator = page.following
            past = page.records and int(page.records[-1].sequence_number) >= last
            if past or iterator is None or (not page.records and page.behind_ms == 0):
                break
        if len(found) != wanted.number:
            lost = wanted.number - len(found)
            self._lose(
                f"shard {wanted.shard!r} has {len(found):,} of the {wanted.number:,} records up "
                f"to {wanted.last} that an epoch had read, so {lost:,} are lost to retention"
            )
        return found

    def _batches(
        self, shard: str, records: list[KinesisRecord], first: int
    ) -> Iterator[pa.RecordBatch]:
        for low in range(0, len(records), _BATCH):
            yield self._batch(shard, records[low : low + _BATCH], first + low)

    def _batch(self, shard: str, records: list[KinesisRecord], first: int) -> pa.RecordBatch:
        stream = self._options["stream"]
        every: dict[str, Any] = {
            "stream": lambda: [stream] * len(records),
            "shard": lambda: [shard] * len(records),
            "sequence_number": lambda: [record.sequence_number for record in records],
            "partition_key": lambda: [record.partition_key for record in records],
            "timestamp": lambda: [
                datetime.fromtimestamp(record.arrived / 1000, UTC) for record in records
            ],
        }
        columns = {"value": [record.data for record in records]}
        columns |= {name: every[name]() for name in self._columns}
        numbers = range(first, first + len(records))
        name = f"{stream}/{shard}"
        return record_batch(name, {**columns, OFFSET_COLUMN: numbers}, _TYPES)


def _packed(batches: Iterator[pa.RecordBatch]) -> bytes:
    first = next(batches)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
