"""Streams of RabbitMQ as a source of Spark: the position in a stream is its next offset.

A position is JSON: ``{"source": "rabbitmq", "next": {"likes": 42}, "chunks": {"likes": [40, 7]}}``.
An epoch reads from the offsets where the last one has ended to others that are known before it
begins, so it reads the same records whenever it is run again.

A stream that is deleted and made anew has the same offsets. It is told from the old one by a chunk:
by where the last chunk began when the position was made, and when it was written. Chunks never
change, and retention takes that one only after what comes before it. A new stream has another one
there, or none. Once it is there it stays, so whoever finds the chunk of the old one after reading
has read the old one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from turnback.connectors.rabbitmq.client import (
    FIRST,
    Chunk,
    RabbitMQClient,
    RabbitMQServer,
    body_of,
    properties_of,
    shared_client,
)
from turnback.connectors.rabbitmq.positions import rabbitmq_chunks, rabbitmq_positions
from turnback.connectors.record_source import GO_ON, report_loss
from turnback.connectors.records import ddl_of, errors_encoded, record_batch, shares
from turnback.errors import ConfigurationError, SourceError
from turnback.plan.sources import OFFSET_COLUMN, SourceLag

_TYPES = {
    "stream": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "properties": "array<struct<key string, value binary>>",
}
_NAME = "RabbitMQSource"
_BEGIN_ANEW = (
    "To begin with its first message, use set_fail_on_data_loss(False) until the job has "
    "continued, or a savepoint from SavepointWriter.from_existing(...).without_sources(uid)"
)
_IDLE_CHECK_S = 5.0
"""How often a stream is looked at in which nothing is written, and of which nothing is read."""


class ChunkMark(NamedTuple):
    """A chunk by which a stream is known again: where it begins, and when it was written."""

    first: int
    written_ms: int

    @classmethod
    def of(cls, chunk: Chunk | None) -> ChunkMark | None:
        return None if chunk is None else cls(chunk.first, chunk.timestamp)


class _End(NamedTuple):
    offset: int
    mark: ChunkMark | None


class RabbitMQRecords(DataSource):
    """Messages of streams."""

    @classmethod
    def name(cls) -> str:
        return "turnback-rabbitmq"

    def schema(self) -> str:
        return ddl_of(json.loads(self.options["columns"]), _TYPES)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return RabbitMQReader(dict(self.options))


@dataclass(frozen=True)
class _Range:
    """What a task reads: messages from `start` on, and those before `end`.

    `mark` is a chunk that the stream has, if it is still the same.
    """

    stream: str
    start: int
    end: int
    mark: ChunkMark | None


def server_of(options: Mapping[str, str]) -> RabbitMQServer:
    """The server that options of a source name."""
    names = ("host", "port", "virtual_host", "user", "password")
    host, port, virtual_host, user, password = (options[name] for name in names)
    return RabbitMQServer(host, int(port), virtual_host, user, password)


class RabbitMQReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams; all but `read` runs in one process beside the driver."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._most = int(options["max_records"]) if "max_records" in options else None
        self._columns: list[str] = json.loads(options["columns"])
        self._streams: list[str] = json.loads(options["streams"])
        self._ends: dict[str, _End] = {}
        self._stop: dict[str, int] | None = None
        self._checked: dict[str, float] = {}

    # -- beside the driver

    @errors_encoded
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return self._begin(_Position({}, {}), self._streams).json()

    @errors_encoded
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        client = self._client()
        self._stop = {stream: client.end(stream) for stream in self._streams}

    @errors_encoded
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        known = _Position.of(start)
        found = known.only(self._streams)
        available = {}
        for stream, at in known.only(self._streams).next.items():
            end = self._end(stream, at)
            anew = self._made_anew(stream, at, known.marks.get(stream), end)
            if anew is not None:
                self._lose(anew, _BEGIN_ANEW)
                del self._ends[stream]
                found.next[stream] = _first(self._client(), stream)
                found.set_mark(stream, ChunkMark.of(self._client().last(stream)))
            available[stream] = 0 if anew else max(0, self._stopped(stream, at, end.offset) - at)
        for stream, count in shares(available, self._most).items():
            if count:
                found.next[stream] += count
                found.set_mark(stream, self._ends[stream].mark)
        # A stream that is new begins with the next epoch: this one could not tell where it began.
        return self._begin(found, [s for s in self._streams if s not in known.next]).json()

    @errors_encoded
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins = _Position.of(start).next
        ends = _Position.of(end)
        ranges = (
            _Range(stream, begins[stream], at, ends.marks.get(stream))
            for stream, at in ends.next.items()
            if begins.get(stream, at) < at
        )
        return [InputPartition(each) for each in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to give back: RabbitMQ keeps what its retention says."""

    def _client(self) -> RabbitMQClient:
        return shared_client(server_of(self._options), _NAME)

    def _begin(self, position: _Position, streams: Iterable[str]) -> _Position:
        for stream in streams:
            position.next[stream] = self._beginning(stream)
            position.set_mark(stream, ChunkMark.of(self._client().last(stream)))
        return position

    def _beginning(self, stream: str) -> int:
        """Where a stream begins that has no position yet."""
        kind, value = json.loads(self._options["start"])
        client = self._client()
        if kind == "offsets":
            return int(value[stream]) if stream in value else _first(client, stream)
        if kind == "earliest":
            return _first(client, stream)
        chunk = client.look(stream, ("TIMESTAMP", value)) if kind == "timestamp" else None
        return chunk.first if chunk is not None else client.end(stream)

    def _end(self, stream: str, at: int) -> _End:
        """Where a stream ends; if nothing was written since, only the question is sent."""
        client = self._client()
        known = self._ends.get(stream)
        covers = known is not None and known.offset >= at
        if known and covers and client.look(stream, ("OFFSET", known.offset)) is None:
            return known
        last = client.last(stream)
        self._ends[stream] = _End(0 if last is None else last.end, ChunkMark.of(last))
        return self._ends[stream]

    def _stopped(self, stream: str, at: int, end: int) -> int:
        """Where reading ends: if the job is bounded, with what was there when it began."""
        return end if self._stop is None else max(at, min(end, self._stop.get(stream, end)))

    def _made_anew(self, stream: str, at: int, mark: ChunkMark | None, end: _End) -> str | None:
        """What is to be said of a stream that is another one than before; else None.

        The end was asked for before, so it is one of the old stream if that is still there.
        """
        if mark is None:
            return _shorter(stream, end.offset, at) if end.offset < at else None
        now = time.monotonic()
        if end.mark == mark and now - self._checked.get(stream, -_IDLE_CHECK_S) < _IDLE_CHECK_S:
            return None
        self._checked[stream] = now
        return _made_anew(self._client(), stream, at, mark)

    def _lose(self, text: str, remedy: str = GO_ON) -> None:
        report_loss(self._options, _NAME, [text], SourceError, remedy)

    # -- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        wanted: _Range = partition.value
        batches = self._read(wanted)
        while (batch := self._next(batches)) is not None:
            yield batch

    @errors_encoded
    def _next(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        return next(batches, None)

    def _read(self, wanted: _Range) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        with closing(self._chunks(wanted)) as chunks:
            for chunk in chunks:
                low = max(at, chunk.first)
                high = min(wanted.end, chunk.end)
                if low < high:
                    yield self._batch(wanted.stream, chunk, low, high)
                at = max(at, chunk.end)
                if at >= wanted.end:
                    break
        if wanted.mark is not None:
            anew = _made_anew(self._client(), wanted.stream, wanted.start, wanted.mark)
            if anew is not None:
                self._lose(anew, _BEGIN_ANEW)

    def _chunks(self, wanted: _Range) -> Generator[Chunk]:
        """Chunks from the first offset on; it is made sure that none is missing before them.

        There are gaps in a stream where RabbitMQ keeps what is no message. A connection answers no
        question while it sends chunks, so they are asked for once more.
        """
        client = self._client()
        first = wanted.start
        while True:
            with closing(client.chunks(wanted.stream, wanted.start)) as chunks:
                chunk = next(chunks)
                if chunk.first <= first:
                    yield chunk
                    yield from chunks
            first = chunk.first
            self._check_loss(wanted)

    def _check_loss(self, wanted: _Range) -> None:
        begins = _first(self._client(), wanted.stream)
        if begins > wanted.start:
            self._lose(_lost(wanted.stream, begins, wanted.start))

    def _batch(self, stream: str, chunk: Chunk, low: int, high: int) -> pa.RecordBatch:
        messages = chunk.messages()[low - chunk.first : high - chunk.first]
        offsets = range(low, low + len(messages))
        columns: dict[str, Any] = {"value": _bodies(stream, messages, low)}
        for name in self._columns:
            if name == "stream":
                columns[name] = [stream] * len(messages)
            elif name == "offset":
                columns[name] = offsets
            elif name == "timestamp":
                written = datetime.fromtimestamp(chunk.timestamp / 1000, UTC)
                columns[name] = [written] * len(messages)
            else:
                columns[name] = [
                    [{"key": key, "value": value} for key, value in properties_of(message)]
                    for message in messages
                ]
        return record_batch(stream, {**columns, OFFSET_COLUMN: offsets}, _TYPES)


def _bodies(stream: str, messages: list[bytes], first: int) -> list[bytes]:
    found: list[bytes] = []
    try:
        for message in messages:
            found.append(body_of(message))
    except ValueError as error:
        raise SourceError(
            f"{_NAME}: cannot read the message at offset {first + len(found)} of stream "
            f"{stream!r}: {error}"
        ) from None
    return found


def _first(client: RabbitMQClient, stream: str) -> int:
    chunk = client.look(stream, FIRST)
    return 0 if chunk is None else chunk.first


class _Position(NamedTuple):
    """Where streams go on, and by which chunk each is known again."""

    next: dict[str, int]
    marks: dict[str, ChunkMark]

    @classmethod
    def of(cls, position: Mapping[str, Any]) -> _Position:
        """Read a position; those of older versions have no chunks."""
        chunks = position.get("chunks", {})
        return cls(
            dict(position["next"]), {stream: ChunkMark(*chunks[stream]) for stream in chunks}
        )

    def only(self, streams: Iterable[str]) -> _Position:
        """A copy with these streams, as far as they are known."""
        kept = [stream for stream in streams if stream in self.next]
        marks = {stream: self.marks[stream] for stream in kept if stream in self.marks}
        return _Position({stream: self.next[stream] for stream in kept}, marks)

    def set_mark(self, stream: str, mark: ChunkMark | None) -> None:
        if mark is None:
            self.marks.pop(stream, None)
        else:
            self.marks[stream] = mark

    def json(self) -> dict[str, Any]:
        """In one order: Spark compares positions as texts."""
        chunks = {stream: list(mark) for stream, mark in sorted(self.marks.items())}
        found = {"source": "rabbitmq", "next": dict(sorted(self.next.items()))}
        return {**found, "chunks": chunks} if chunks else found


def _lost(stream: str, first: int, at: int) -> str:
    return (
        f"stream {stream!r} begins at {first} and the job is at {at}, so {first - at:,} offsets "
        "are lost to retention"
    )


def _shorter(stream: str, end: int, at: int) -> str:
    return (
        f"stream {stream!r} ends at {end} and the job is at {at}: the stream was recreated, and "
        "its new messages would be skipped"
    )


def _made_anew(client: RabbitMQClient, stream: str, at: int, mark: ChunkMark) -> str | None:
    """What is to be said of a stream that has lost a chunk other than to retention; else None."""
    found = client.look(stream, ("OFFSET", mark.first))
    if found is None:
        # It is shorter, or a new leader has not heard of its replicas yet: then it begins with
        # what is older than the chunk.
        found = client.look(stream, FIRST)
        if found is None or found.timestamp <= mark.written_ms:
            return None
    elif found.first > mark.first or ChunkMark.of(found) == mark:
        return None
    before, now = (
        datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "milliseconds")
        for ms in (mark.written_ms, found.timestamp)
    )
    return (
        f"stream {stream!r} was deleted and recreated: its offset {found.first} was written at "
        f"{now}, but the job has seen offset {mark.first} of {before}. The job would continue at "
        f"{at} and skip earlier messages of the new stream"
    )


# -- before the start


@dataclass(frozen=True)
class RabbitMQSourceCheck:
    """Makes sure that the server answers, takes the login, and has what comes next."""

    options: Mapping[str, str] = field(repr=False)

    def __call__(self, name: str, offset: str | None) -> None:
        """Check it.

        Raises:
            ConfigurationError: A stream is missing, the login is refused, or the stream has lost
                what comes next.
            SourceError: No server answers.
        """
        client = RabbitMQClient(server_of(self.options), name)
        try:
            ends = {stream: client.end(stream) for stream in json.loads(self.options["streams"])}
            self._check_positions(name, offset, ends, client)
        finally:
            client.close()

    def _check_positions(
        self, name: str, offset: str | None, ends: Mapping[str, int], client: RabbitMQClient
    ) -> None:
        lost = []
        marks = rabbitmq_chunks(offset)
        remedy = GO_ON
        for stream, at in rabbitmq_positions(offset):
            mark = ChunkMark(*marks[stream]) if stream in marks else None
            if stream not in ends:
                lost.append(f"its position is in stream {stream!r}, which it does not read")
            elif mark is not None and (anew := _made_anew(client, stream, at, mark)):
                lost.append(anew)
                remedy = _BEGIN_ANEW
            elif mark is None and at > ends[stream]:
                lost.append(_shorter(stream, ends[stream], at))
            elif at < (first := _first(client, stream)):
                lost.append(_lost(stream, first, at))
        report_loss(self.options, name, lost, ConfigurationError, remedy)


# -- while the job runs


class RabbitMQLagReader:
    """Tells how many messages a source has not read, and how old the oldest of them is."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._client = RabbitMQClient(server_of(options), _NAME)

    def read(self, offset: str | None) -> SourceLag | None:
        known = rabbitmq_positions(offset)
        if not known:
            return None
        records = 0
        seconds = 0.0
        for stream, at in known:
            records += max(0, self._client.end(stream) - at)
            oldest = self._client.look(stream, ("OFFSET", at))
            if oldest is not None and oldest.end > at:
                seconds = max(seconds, time.time() - oldest.timestamp / 1000)
        return SourceLag(records, seconds)

    def close(self) -> None:
        self._client.close()
