"""`KafkaSource`: what to read from Kafka, from where on, and as what; with PyFlink's names.

Spark's connector reads it, so positions are part of checkpoints like those of any Spark source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from turnback.config.option import flag, nonempty_text
from turnback.connectors.kafka.positions import kafka_positions
from turnback.connectors.record_source import (
    HEADERS,
    RecordSource,
    RecordSourceBuilder,
    milliseconds,
)
from turnback.errors import ConfigurationError
from turnback.plan.graph import SourceCheck
from turnback.plan.sources import OpenLagReader
from turnback.values.typeinfo import TypeInfo, Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class KafkaTopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def offsets_by_topic(what: str, offsets: Any) -> dict[str, dict[str, int]]:
    """Offsets by partition as Spark's connector takes them; messages begin with `what`."""
    if not isinstance(offsets, Mapping) or not offsets:
        raise ConfigurationError(f"{what} takes offsets by partition, not {offsets!r:.80}")
    found: dict[str, dict[str, int]] = {}
    for place, offset in offsets.items():
        if not _is_partition(place):
            raise ConfigurationError(f"{what}: {place!r:.80} is not a KafkaTopicPartition")
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise ConfigurationError(f"{what}: {offset!r:.80} is not an offset")
        found.setdefault(place[0], {})[str(place[1])] = offset
    return found


def _is_partition(place: Any) -> bool:
    if not isinstance(place, tuple) or len(place) != 2:
        return False
    topic, number = place
    named = isinstance(topic, str) and bool(topic)
    return named and isinstance(number, int) and not isinstance(number, bool) and number >= 0


@dataclass(frozen=True)
class KafkaOffsetsInitializer:
    """Where a job begins to read that has no checkpoint yet.

    Attributes:
        options: Options of Spark's connector.
    """

    options: Mapping[str, str]

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """With the first record that Kafka still has."""
        return KafkaOffsetsInitializer({"startingOffsets": "earliest"})

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """With what is written after the job has started."""
        return KafkaOffsetsInitializer({"startingOffsets": "latest"})

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """With the first record of each partition that is not older than this.

        A partition without one begins with what is written later.

        Args:
            timestamp: Milliseconds since 1970.
        """
        timestamp = milliseconds("KafkaOffsetsInitializer.timestamp", timestamp)
        later = {"startingOffsetsByTimestampStrategy": "latest"}
        return KafkaOffsetsInitializer({"startingTimestamp": str(timestamp), **later})

    @staticmethod
    def offsets(offsets: Mapping[KafkaTopicPartition, int]) -> KafkaOffsetsInitializer:
        """With these offsets, one for every partition that there is.

        Args:
            offsets: By `KafkaTopicPartition`, or pairs of a topic and a number.
        """
        by_topic = offsets_by_topic("KafkaOffsetsInitializer.offsets", offsets)
        return KafkaOffsetsInitializer({"startingOffsets": json.dumps(by_topic)})


@dataclass(frozen=True)
class KafkaSource(RecordSource):
    """Reads from Kafka; created with `KafkaSource.builder()`, for `env.from_source`."""

    METADATA: ClassVar[Mapping[str, TypeInfo]] = {
        "key": Types.BYTES(),
        "topic": Types.STRING(),
        "partition": Types.INT(),
        "offset": Types.LONG(),
        "timestamp": Types.INSTANT(),
        "headers": HEADERS,
    }

    group: str | None = None
    """The consumer group to which positions of checkpoints are committed, if any."""

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        return KafkaSourceBuilder()

    def frame(self, spark: SparkSession) -> DataFrame:
        from turnback.connectors.kafka.reader import kafka_frame

        return kafka_frame(spark, self.options, self.schema, self.metadata)

    def source_check(self) -> SourceCheck:
        from turnback.connectors.kafka.check import KafkaSourceCheck

        return KafkaSourceCheck(self.options)

    def lag_reader(self) -> OpenLagReader | None:
        from turnback.connectors.kafka.lag import kafka_lag

        return kafka_lag(self.options, self.group)


_COMMITS = "commit.offsets.on.checkpoint"
_OWN = {
    "bootstrap.servers": "set_bootstrap_servers",
    "group.id": "set_group_id",
    "auto.offset.reset": "set_starting_offsets",
    "key.deserializer": "set_value_only_deserializer",
    "value.deserializer": "set_value_only_deserializer",
    "enable.auto.commit": "enable_checkpointing, which stores positions",
}


class KafkaSourceBuilder(RecordSourceBuilder[KafkaOffsetsInitializer]):
    """Builds a `KafkaSource`: servers, topics and the deserializer are needed."""

    _source = KafkaSource
    _system = "Kafka"
    _initializers = KafkaOffsetsInitializer

    def __init__(self) -> None:
        super().__init__()
        self._servers: str | None = None
        self._topics: dict[str, str] = {}
        self._group: str | None = None
        self._commits = True
        self._options = {"kafka.isolation.level": "read_committed"}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        """Set where the cluster is: "host:port", several with commas between them."""
        self._servers = nonempty_text("KafkaSource: bootstrap servers", bootstrap_servers)
        return self

    def set_topics(self, *topics: str) -> Self:
        """Read these topics."""
        names = [nonempty_text("KafkaSource: a topic", topic) for topic in topics]
        if not names:
            raise ConfigurationError("KafkaSource: set_topics takes at least one topic")
        return self._subscribe("subscribe", ",".join(names))

    def set_topic_pattern(self, topic_pattern: str) -> Self:
        """Read all topics whose names match a regular expression, also those yet to come."""
        pattern = nonempty_text("KafkaSource: the topic pattern", topic_pattern)
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigurationError(
                f"KafkaSource: {pattern!r} is not a regular expression: {error}"
            ) from None
        return self._subscribe("subscribePattern", pattern)

    def set_group_id(self, group_id: str) -> Self:
        """Commit the positions of checkpoints to a consumer group, for other tools to see.

        The job itself goes on from its checkpoints. The groups that Spark's connector makes
        begin with this id too.
        """
        self._group = nonempty_text("KafkaSource: the group id", group_id)
        self._options["groupIdPrefix"] = self._group
        return self

    def _other_formats(self) -> str:
        return '. For other formats, use from_dataframe with spark.readStream.format("kafka")'

    def set_max_records_per_epoch(self, number: int) -> Self:
        """Set how many records one epoch reads at most, of all partitions together."""
        self._options["maxOffsetsPerTrigger"] = str(self._most_records(number))
        return self

    def set_property(self, key: str, value: str) -> Self:
        """Set a property of Kafka's Java consumer, such as "sasl.jaas.config"."""
        key = nonempty_text("KafkaSource: the key of a property", key)
        if key in _OWN:
            raise ConfigurationError(f"KafkaSource: do not set {key!r}; call {_OWN[key]}")
        if key == _COMMITS:  # Flink's own, which Kafka does not know
            self._commits = flag(f"KafkaSource: {_COMMITS}", value)
            return self
        self._options[f"kafka.{key}"] = _value(key, value)
        return self

    def set_option(self, key: str, value: str) -> Self:
        """Set an option of Spark's connector, such as "minPartitions"."""
        key = nonempty_text("KafkaSource: the name of an option", key)
        self._options[key] = _value(key, value)
        return self

    def build(self) -> KafkaSource:
        """Build the source, without connecting to Kafka.

        Raises:
            ConfigurationError: Something is missing, or two columns have one name.
        """
        if self._servers is None:
            raise ConfigurationError("KafkaSource: call set_bootstrap_servers(...)")
        if not self._topics:
            raise ConfigurationError("KafkaSource: call set_topics(...) or set_topic_pattern(...)")
        schema = self._checked_schema()
        headers = {"includeHeaders": "true"} if "headers" in self._metadata else {}
        servers = {"kafka.bootstrap.servers": self._servers}
        options = {**servers, **self._topics, **self._start.options, **headers, **self._options}
        group = self._group if self._commits else None
        return KafkaSource(options, schema, dict(self._metadata), self._bounded, group)

    def _subscribe(self, how: str, what: str) -> Self:
        if self._topics:
            raise ConfigurationError(
                "KafkaSource: topics are already set; call either set_topics, once with all of "
                "them, or set_topic_pattern"
            )
        self._topics[how] = what
        return self


def _value(key: str, value: Any) -> str:
    if not isinstance(value, str | int | bool):
        raise ConfigurationError(f"KafkaSource: the value of {key!r} must be a string")
    return str(value).lower() if isinstance(value, bool) else str(value)


def kafka_position(uid: str, before: str | None, offsets: Any, without_topics: Any) -> str:
    """The position of a source in a savepoint with some offsets changed; see `SavepointWriter`."""
    what = f"with_kafka_offsets: source {uid!r}"
    known: dict[str, dict[str, int]] = {}
    for topic, partition, offset in kafka_positions(before):
        known.setdefault(topic, {})[str(partition)] = offset
    if before is not None and not known:
        raise ConfigurationError(f"{what} is not a Kafka source: its position is {before:.80}")
    if isinstance(without_topics, str) or not isinstance(without_topics, Sequence):
        raise ConfigurationError(
            f"{what}: without_topics must be a list, not {without_topics!r:.80}"
        )
    for topic in without_topics:
        if topic not in known:
            there = ", ".join(map(repr, known)) or "none"
            raise ConfigurationError(
                f"{what} has no topic {topic!r} to remove; its topics: {there}"
            )
        del known[topic]
    if not without_topics or (offsets is not None and offsets != {}):
        for topic, by_partition in offsets_by_topic(what, offsets).items():
            known.setdefault(topic, {}).update(by_partition)
    if not known:
        raise ConfigurationError(
            f"{what} would have no topic left; to drop its position, use without_sources({uid!r})"
        )
    return json.dumps(known)
