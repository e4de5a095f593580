"""Streams of RabbitMQ as a source of Spark: the position in a stream is its next offset.

A position is JSON: ``{"source": "rabbitmq", "next": {"likes": 42}}``. An epoch reads from the
offsets where the last one has ended to others that are known before it begins, so it reads the same
records whenever it is run again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from turnback.checkpoint.manifest import rabbitmq_positions
from turnback.core.errors import ConfigurationError, SourceError
from turnback.program.source_lag import SourceLag
from turnback.spark.amqp import body_of, properties_of
from turnback.spark.partitions import OFFSET_COLUMN
from turnback.spark.rabbitmq_client import (
    FIRST,
    Chunk,
    RabbitMQClient,
    RabbitMQServer,
    shared_client,
)
from turnback.spark.records import ddl_of, errors_encoded, record_batch, shares

_LOG = logging.getLogger(__name__)
_TYPES = {
    "stream": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "properties": "array<struct<key string, value binary>>",
}
_NAME = "RabbitMQSource"
GO_ON = (
    "Start from a newer checkpoint or savepoint; or go on with what is there: "
    "set_fail_on_data_loss(False)"
)


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
    """What a task reads: messages from `start` on, and those before `end`."""

    stream: str
    start: int
    end: int


def server_of(options: Mapping[str, str]) -> RabbitMQServer:
    """The server that options of a source name."""
    names = ("host", "port", "virtual_host", "user", "password")
    host, port, virtual_host, user, password = (options[name] for name in names)
    return RabbitMQServer(host, int(port), virtual_host, user, password)


class RabbitMQReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads streams; all but `read` runs in one process beside the driver.

    Args:
        options: See `turnback.api.rabbitmq_source`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._most = int(options["max_records"]) if "max_records" in options else None
        self._strict = options["fail_on_data_loss"] == "true"
        self._columns: list[str] = json.loads(options["columns"])
        self._streams: list[str] = json.loads(options["streams"])
        self._ends: dict[str, int] = {}
        self._stop: dict[str, int] | None = None

    # -- beside the driver

    @errors_encoded
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return _position({stream: self._beginning(stream) for stream in self._streams})

    @errors_encoded
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        client = self._client()
        self._stop = {stream: client.end(stream) for stream in self._streams}

    @errors_encoded
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        known: dict[str, int] = start["next"]
        found = {stream: known[stream] for stream in self._streams if stream in known}
        available = {}
        for stream, at in found.items():
            end = self._end(stream, at)
            available[stream] = max(0, end - at)
            if end < at:
                self._lose(_made_anew(stream, end, at))
                found[stream] = _first(self._client(), stream)
        for stream, count in shares(available, self._most).items():
            found[stream] += count
        # A stream that is new begins with the next epoch: this one could not tell where it began.
        found |= {s: self._beginning(s) for s in self._streams if s not in known}
        return _position(found)

    @errors_encoded
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begins: dict[str, int] = start["next"]
        ranges = (
            _Range(stream, begins[stream], at)
            for stream, at in end["next"].items()
            if begins.get(stream, at) < at
        )
        return [InputPartition(each) for each in ranges]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to give back: RabbitMQ keeps what its retention says."""

    def _client(self) -> RabbitMQClient:
        return shared_client(server_of(self._options), _NAME)

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

    def _end(self, stream: str, at: int) -> int:
        known = max(at, self._ends.get(stream, 0))
        end = self._client().end(stream, known if stream in self._ends else None)
        if end < at:
            return end
        self._ends[stream] = end
        return end if self._stop is None else max(at, min(end, self._stop.get(stream, end)))

    def _lose(self, text: str) -> None:
        if self._strict:
            raise SourceError(f"{_NAME}: {text}. {GO_ON}")
        _LOG.warning("%s: %s; it goes on with what is there", _NAME, text)

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
                low, high = max(at, chunk.first), min(wanted.end, chunk.end)
                if low < high:
                    yield self._batch(wanted.stream, chunk, low, high)
                at = max(at, chunk.end)
                if at >= wanted.end:
                    break

    def _chunks(self, wanted: _Range) -> Generator[Chunk]:
        """Chunks from the first offset on; it is made sure that none is missing before them.

        There are gaps in a stream where RabbitMQ keeps what is no message. A connection answers no
        question while it sends chunks, so they are asked for once more.
        """
        client, first = self._client(), wanted.start
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


def _position(found: Mapping[str, int]) -> dict[str, Any]:
    """In one order: Spark compares positions as texts."""
    return {"source": "rabbitmq", "next": dict(sorted(found.items()))}


def _lost(stream: str, first: int, at: int) -> str:
    return (
        f"stream {stream!r} begins at {first} and the job goes on at {at}, so {first - at:,} "
        "offsets are lost, to retention"
    )


def _made_anew(stream: str, end: int, at: int) -> str:
    return (
        f"stream {stream!r} ends at {end} and the job goes on at {at}: the stream was made anew, "
        "and what is in it now would be skipped"
    )


# -- before the start


@dataclass(frozen=True)
class RabbitMQSourceCheck:
    """Makes sure that the server answers, takes the login, and has what comes next.

    Attributes:
        options: Options of the source; hold the password.
    """

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
            self._check_positions(name, dict(rabbitmq_positions(offset)), ends, client)
        finally:
            client.close()

    def _check_positions(
        self, name: str, known: Mapping[str, int], ends: Mapping[str, int], client: RabbitMQClient
    ) -> None:
        lost = []
        for stream, at in known.items():
            if stream not in ends:
                lost.append(f"it goes on in stream {stream!r}, which it does not read")
            elif at > ends[stream]:
                lost.append(_made_anew(stream, ends[stream], at))
            elif at < (first := _first(client, stream)):
                lost.append(_lost(stream, first, at))
        if not lost:
            return
        if self.options["fail_on_data_loss"] == "true":
            raise ConfigurationError(f"{name}: {'; '.join(lost)}. {GO_ON}")
        for text in lost:
            _LOG.warning("%s: %s; it goes on with what is there", name, text)


# -- while the job runs


class RabbitMQLagReader:
    """Tells how many messages a source has not read, and how old the oldest of them is."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._client = RabbitMQClient(server_of(options), _NAME)

    def read(self, offset: str | None) -> SourceLag | None:
        known = rabbitmq_positions(offset)
        if not known:
            return None
        records, seconds = 0, 0.0
        for stream, at in known:
            records += max(0, self._client.end(stream) - at)
            oldest = self._client.look(stream, ("OFFSET", at))
            if oldest is not None and oldest.end > at:
                seconds = max(seconds, time.time() - oldest.timestamp / 1000)
        return SourceLag(records, seconds)

    def close(self) -> None:
        self._client.close()
