"""`KinesisSource`: which stream of Kinesis to read, from where on, and as what."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from turnback.config.option import nonempty_text, positive
from turnback.connectors.kinesis.client import KinesisClient, is_ended, lost_since
from turnback.connectors.kinesis.positions import kinesis_position
from turnback.connectors.record_source import (
    PythonSourceBuilder,
    RecordSource,
    milliseconds,
    report_loss,
)
from turnback.core.units import parse_size
from turnback.errors import ConfigurationError
from turnback.plan.graph import SourceCheck
from turnback.plan.sources import OpenLagReader, SourceLag
from turnback.values.typeinfo import TypeInfo, Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def gone_text(shard: str) -> str:
    """What to say of a shard that Kinesis does not list any more."""
    return (
        f"shard {shard!r} no longer exists and was not read to its end, so its remaining records "
        "are lost"
    )


def lost_text(shard: str, since_ms: int) -> str:
    """What to say of a shard that has lost what comes next."""
    since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
    return (
        f"shard {shard!r} no longer has the record at the job's position: records that arrived "
        f"after {since} and are older than the stream's retention are lost"
    )


@dataclass(frozen=True)
class KinesisSourceCheck:
    """Makes sure that Kinesis answers, takes the login, and has what comes next."""

    options: Mapping[str, str] = field(repr=False)

    def __call__(self, name: str, offset: str | None) -> None:
        client = KinesisClient(self.options, name)
        retention_ms = client.retention_ms()
        listed = {shard.id for shard in client.shards()}
        lost = []
        position = kinesis_position(offset)
        stream = position.get("stream", client.stream)
        if stream != client.stream:
            raise ConfigurationError(
                f"{name}: its position is in stream {stream!r}, but it reads {client.stream!r}. "
                "Give the source another uid to start over, or read the same stream"
            )
        for shard, at in position.get("shards", {}).items():
            if shard not in listed:
                if not is_ended(at):
                    lost.append(gone_text(shard))
                continue
            since = lost_since(client, shard, at, retention_ms)
            if since is not None:
                lost.append(lost_text(shard, since))
        report_loss(self.options, name, lost, ConfigurationError)


# -- while the job runs


class KinesisLagReader:
    """Tells how old the oldest record is that a source has not read; nobody knows how many."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._client = KinesisClient(options, "KinesisSource")

    def read(self, offset: str | None) -> SourceLag | None:
        shards = kinesis_position(offset).get("shards", {})
        if not shards:
            return None
        seconds = 0.0
        for shard, position in shards.items():
            if not is_ended(position):
                oldest = self._client.first(shard, tuple(position["at"]))
                if oldest is not None:
                    seconds = max(seconds, time.time() - oldest.arrived / 1000)
        return SourceLag(None, seconds)

    def close(self) -> None:
        """Connections end by themselves."""


@dataclass(frozen=True)
class KinesisOffsetsInitializer:
    """Where a job begins to read that has no checkpoint yet.

    Attributes:
        start: The kind of the beginning, and what it needs, as JSON.
    """

    start: str

    @staticmethod
    def earliest() -> KinesisOffsetsInitializer:
        """With the first record that Kinesis still has: its trim horizon."""
        return KinesisOffsetsInitializer(json.dumps(["earliest", None]))

    @staticmethod
    def latest() -> KinesisOffsetsInitializer:
        """With what arrives after the job has started, by the driver's clock."""
        return KinesisOffsetsInitializer(json.dumps(["latest", None]))

    @staticmethod
    def timestamp(timestamp: int) -> KinesisOffsetsInitializer:
        """With the first record of each shard that did not arrive before this.

        Args:
            timestamp: Milliseconds since 1970.
        """
        at = milliseconds("KinesisOffsetsInitializer.timestamp", timestamp)
        return KinesisOffsetsInitializer(json.dumps(["timestamp", at]))

    @staticmethod
    def sequence_numbers(sequence_numbers: Mapping[str, str]) -> KinesisOffsetsInitializer:
        """With these records, by shard; shards that are not named begin with their first."""
        what = "KinesisOffsetsInitializer.sequence_numbers"
        if not isinstance(sequence_numbers, Mapping) or not sequence_numbers:
            raise ConfigurationError(
                f"{what} takes sequence numbers by shard, not {sequence_numbers!r:.80}"
            )
        for shard, number in sequence_numbers.items():
            nonempty_text(f"{what}: a shard", shard)
            if not isinstance(number, str) or not number.isdecimal():
                raise ConfigurationError(f"{what}: {number!r:.80} is not a string of digits")
        return KinesisOffsetsInitializer(json.dumps(["sequence_numbers", dict(sequence_numbers)]))


@dataclass(frozen=True)
class KinesisSource(RecordSource):
    """Reads a Kinesis stream; created with `builder()`, for `env.from_source`."""

    METADATA: ClassVar[Mapping[str, TypeInfo]] = {
        "stream": Types.STRING(),
        "shard": Types.STRING(),
        "sequence_number": Types.STRING(),
        "partition_key": Types.STRING(),
        "timestamp": Types.INSTANT(),
    }

    @staticmethod
    def builder() -> KinesisSourceBuilder:
        return KinesisSourceBuilder()

    def frame(self, spark: SparkSession) -> DataFrame:
        from turnback.connectors.records import python_frame, python_source

        source = python_source(
            "turnback.connectors.kinesis.reader", "KinesisRecords", spark.version
        )
        place = {"shard": "shard", "sequence_number": "sequence number"}
        return python_frame(spark, source, self.options, self.schema, self.metadata, place)

    def source_check(self) -> SourceCheck:
        return KinesisSourceCheck(self.options)

    def lag_reader(self) -> OpenLagReader:
        return partial(KinesisLagReader, self.options)


class KinesisSourceBuilder(PythonSourceBuilder[KinesisOffsetsInitializer]):
    """Builds a `KinesisSource`: a stream and the deserializer are needed."""

    _source = KinesisSource
    _system = "Kinesis"
    _initializers = KinesisOffsetsInitializer

    def set_stream(self, stream: str) -> Self:
        """Set the name of the stream."""
        name = nonempty_text("KinesisSource: the stream", stream)
        if name.startswith("arn:"):
            raise ConfigurationError(
                f"KinesisSource: set_stream takes a name, such as {name.rpartition('/')[2]!r}, and "
                "set_region the region"
            )
        self._options["stream"] = name
        return self

    def set_region(self, region: str) -> Self:
        """Set the region, such as "eu-central-1"; by default the one that boto3 finds."""
        self._options["region_name"] = nonempty_text("KinesisSource: the region", region)
        return self

    def set_endpoint(self, url: str) -> Self:
        """Set where Kinesis is, if it is not AWS's own, such as "http://localhost:4566"."""
        text = nonempty_text("KinesisSource: the endpoint", url)
        if not text.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"KinesisSource: {text!r} is not a URL such as http://host:4566"
            )
        self._options["endpoint_url"] = text
        return self

    def set_credentials(
        self, access_key_id: str, secret_access_key: str, session_token: str | None = None
    ) -> Self:
        """Set who asks; by default what boto3 finds: variables, profiles, roles.

        Keys are in no log, error, checkpoint or page.
        """
        keys = {"aws_access_key_id": access_key_id, "aws_secret_access_key": secret_access_key}
        if session_token is not None:
            keys["aws_session_token"] = session_token
        for key, value in keys.items():
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"KinesisSource: {key} must be a non-empty string")
        self._options |= keys
        return self

    def set_max_bytes_per_epoch(self, size: int | str) -> Self:
        """Set how many bytes one epoch reads at most, such as "8 mb"; always one record."""
        name = "KinesisSource: max_bytes_per_epoch"
        self._options["max_bytes"] = str(positive(name, parse_size(size, name)))
        return self

    def build(self) -> KinesisSource:
        """Build the source, without connecting to Kinesis.

        Raises:
            ConfigurationError: Something is missing, or two columns have one name.
        """
        if "stream" not in self._options:
            raise ConfigurationError("KinesisSource: call set_stream(...)")
        schema = self._checked_schema()
        options = {**self._options, "start": self._start.start}
        return KinesisSource(options, schema, dict(self._metadata), self._bounded)
