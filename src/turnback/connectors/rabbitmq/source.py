"""`RabbitMQSource`: which streams of RabbitMQ to read, from where on, and as what."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

from turnback.config.option import nonempty_text
from turnback.connectors.record_source import (
    HEADERS,
    PythonSourceBuilder,
    RecordSource,
    milliseconds,
)
from turnback.errors import ConfigurationError
from turnback.plan.graph import SourceCheck
from turnback.plan.sources import OpenLagReader
from turnback.values.typeinfo import TypeInfo, Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RabbitMQOffsetsInitializer:
    """Where a job begins to read that has no checkpoint yet.

    Attributes:
        start: The kind of the beginning, and what it needs, as JSON.
    """

    start: str

    @staticmethod
    def earliest() -> RabbitMQOffsetsInitializer:
        """With the first message that RabbitMQ still has."""
        return RabbitMQOffsetsInitializer(json.dumps(["earliest", None]))

    @staticmethod
    def latest() -> RabbitMQOffsetsInitializer:
        """With what is written after the job has started."""
        return RabbitMQOffsetsInitializer(json.dumps(["latest", None]))

    @staticmethod
    def timestamp(timestamp: int) -> RabbitMQOffsetsInitializer:
        """With the first chunk of each stream that is not older than this.

        RabbitMQ notes the time of chunks, which are messages that were written together.

        Args:
            timestamp: Milliseconds since 1970.
        """
        at = milliseconds("RabbitMQOffsetsInitializer.timestamp", timestamp)
        return RabbitMQOffsetsInitializer(json.dumps(["timestamp", at]))

    @staticmethod
    def offsets(offsets: Mapping[str, int]) -> RabbitMQOffsetsInitializer:
        """With these offsets, by stream; streams that are not named begin with their first."""
        what = "RabbitMQOffsetsInitializer.offsets"
        if not isinstance(offsets, Mapping) or not offsets:
            raise ConfigurationError(f"{what} takes offsets by stream, not {offsets!r:.80}")
        for stream, offset in offsets.items():
            nonempty_text(f"{what}: a stream", stream)
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise ConfigurationError(f"{what}: {offset!r:.80} is not an offset")
        return RabbitMQOffsetsInitializer(json.dumps(["offsets", dict(offsets)]))


@dataclass(frozen=True)
class RabbitMQSource(RecordSource):
    """Reads RabbitMQ streams; created with `builder()`, for `env.from_source`.

    It reads streams, which keep their messages, not queues, which deliver each message once: a job
    that resumes from a checkpoint must be able to read messages again.
    """

    METADATA: ClassVar[Mapping[str, TypeInfo]] = {
        "stream": Types.STRING(),
        "offset": Types.LONG(),
        "timestamp": Types.INSTANT(),
        "properties": HEADERS,
    }

    @staticmethod
    def builder() -> RabbitMQSourceBuilder:
        return RabbitMQSourceBuilder()

    def frame(self, spark: SparkSession) -> DataFrame:
        from turnback.connectors.records import python_frame, python_source

        source = python_source(
            "turnback.connectors.rabbitmq.reader", "RabbitMQRecords", spark.version
        )
        place = {"stream": "stream", "offset": "offset"}
        return python_frame(spark, source, self.options, self.schema, self.metadata, place)

    def source_check(self) -> SourceCheck:
        from turnback.connectors.rabbitmq.reader import RabbitMQSourceCheck

        return RabbitMQSourceCheck(self.options)

    def lag_reader(self) -> OpenLagReader:
        from turnback.connectors.rabbitmq.reader import RabbitMQLagReader

        return partial(RabbitMQLagReader, self.options)


class RabbitMQSourceBuilder(PythonSourceBuilder[RabbitMQOffsetsInitializer]):
    """Builds a `RabbitMQSource`: a host, streams and the deserializer are needed."""

    _source = RabbitMQSource
    _system = "RabbitMQ"
    _initializers = RabbitMQOffsetsInitializer

    def __init__(self) -> None:
        super().__init__()
        login = {"user": "guest", "password": "guest"}
        self._options |= {"port": "5552", "virtual_host": "/", **login}

    def set_host(self, host: str) -> Self:
        """Set a server of the cluster; it tells which of them has which stream."""
        return self._set("host", "the host", host)

    def set_port(self, port: int) -> Self:
        """Set the port of streams, by default 5552; that of queues is another."""
        if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
            raise ConfigurationError(f"RabbitMQSource: {port!r:.80} is not a port")
        self._options["port"] = str(port)
        return self

    def set_virtual_host(self, vhost: str) -> Self:
        """Set the virtual host, by default "/"."""
        return self._set("virtual_host", "the virtual host", vhost)

    def set_user_name(self, user_name: str) -> Self:
        """Set who logs in, by default "guest", who may do so from the server only."""
        return self._set("user", "the user name", user_name)

    def set_password(self, password: str) -> Self:
        """Set the password; it is in no log, error, checkpoint or page."""
        return self._set("password", "the password", password, secret=True)

    def set_streams(self, *streams: str) -> Self:
        """Read these streams, each with an order and a watermark of its own.

        To read a super stream, name the streams that it consists of.
        """
        names = [nonempty_text("RabbitMQSource: a stream", stream) for stream in streams]
        if not names:
            raise ConfigurationError("RabbitMQSource: set_streams takes at least one stream")
        self._options["streams"] = json.dumps(sorted(set(names)))
        return self

    def build(self) -> RabbitMQSource:
        """Build the source, without connecting to RabbitMQ.

        Raises:
            ConfigurationError: Something is missing, or two columns have one name.
        """
        if "host" not in self._options:
            raise ConfigurationError("RabbitMQSource: call set_host(...)")
        if "streams" not in self._options:
            raise ConfigurationError("RabbitMQSource: call set_streams(...)")
        schema = self._checked_schema()
        options = {**self._options, "start": self._start.start}
        return RabbitMQSource(options, schema, dict(self._metadata), self._bounded)

    def _set(self, key: str, what: str, value: Any, *, secret: bool = False) -> Self:
        if secret and not isinstance(value, str):
            raise ConfigurationError(f"RabbitMQSource: {what} must be a string")
        self._options[key] = value if secret else nonempty_text(f"RabbitMQSource: {what}", value)
        return self
