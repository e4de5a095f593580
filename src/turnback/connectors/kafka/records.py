"""What becomes of elements in Kafka: the topic, the key and the value of each record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import repeat
from typing import Any, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from turnback.connectors.kafka.client import Cluster, Record
from turnback.connectors.kafka.topics import KafkaTopics, TopicLimits
from turnback.connectors.schemas import Payloads, SerializationSchema
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, sink_label
from turnback.values.columns import Batch, json_column, stream_columns, stream_schema, to_column
from turnback.values.typeinfo import TypeInfo, Types

RECORDS = Types.ROW_NAMED(["topic", "key", "value"], [Types.STRING(), Types.BYTES(), Types.BYTES()])
"""Records as tasks stage them; without a topic if the sink has only one."""

_FOUND: set[tuple[str, str]] = set()
"""Topics that this process knows to be there, with the servers that have them."""

_LIMITS: dict[tuple[str, str, str, int], TopicLimits] = {}
"""What topics refuse, by servers, topic, job id and attempt."""
_CLIENT_BYTES = 1_000_000
"""What librdkafka takes for `message.max.bytes` unless it is set."""
_AROUND_A_RECORD = 93
"""Of a batch with one record: its header, and at most so much for lengths, time and offset."""


class KafkaTopicSelector(ABC):
    """Chooses the topic of each element. Subclass it; it is pickled to tasks."""

    @abstractmethod
    def apply(self, data: Any) -> str:
        """Return the topic of one element; always the same for the same element."""


class KafkaRecordSerializationSchema:
    """Turns elements into records; made with `KafkaRecordSerializationSchema.builder()`.

    Attributes:
        topics: The topic, or those that have to be there if a selector chooses among them.
    """

    def __init__(
        self,
        topics: Sequence[str],
        value: SerializationSchema,
        key: SerializationSchema | None,
        key_field: str | None,
        select: Callable[[Any], str] | None = None,
    ) -> None:
        self.topics = tuple(topics)
        self._value = value
        self._key = key
        self._key_field = key_field
        self._select = select

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        return KafkaRecordSerializationSchemaBuilder()

    @property
    def selects(self) -> bool:
        """Whether each element chooses its topic."""
        return self._select is not None

    def check(self, type: TypeInfo, sink: str) -> None:
        """Refuse elements of this type if they cannot be written; `sink` is for messages."""
        try:
            self._value.check(type)
            if self._key is not None:
                self._key.check(type)
        except ConfigurationError as error:
            raise ConfigurationError(f"{sink}: {error}") from None
        names = [name for name, _ in stream_columns(type)]
        if self._key_field is not None and self._key_field not in names:
            raise ConfigurationError(
                f"{sink}: the elements have no field {self._key_field!r} for the key; available: "
                f"{', '.join(names)}"
            )

    def serialize(self, batch: Batch) -> Iterator[Record]:
        """The records of some elements.

        Raises:
            SinkError: The user's schema gave something other than bytes, or no topic was chosen.
        """
        topics, keys, values = self._columns(batch)
        chosen = repeat(self.topics[0], len(values)) if topics is None else topics
        return zip(chosen, keys, values, strict=True)

    def staged(self, batch: Batch) -> Batch:
        """The same as elements of the type `RECORDS`, which `staged_records` reads."""
        topics, keys, values = self._columns(batch)
        nothing: list[str | None] = [None] * len(values)
        columns = [topics or nothing, keys, values]
        arrays = [to_column(c, t) for c, t in zip(columns, RECORDS.types, strict=True)]
        return Batch(RECORDS, pa.RecordBatch.from_arrays(arrays, schema=stream_schema(RECORDS)))

    def _columns(self, batch: Batch) -> tuple[list[str] | None, Any, Payloads]:
        values = _checked(self._value, self._value.serialize_batch(batch))
        keys: Any = [None] * len(values)
        if self._key_field is not None:
            keys = _texts(batch, self._key_field)
        elif self._key is not None:
            keys = _checked(self._key, self._key.serialize_batch(batch))
        if self._select is None:
            return None, keys, values
        rows = batch.copy().rows  # as their type has them: functions may give plain tuples
        return [_topic(self._select(row)) for row in rows], keys, values


def staged_records(batch: Batch, topic: str) -> Iterator[Record]:
    """The records of a batch of the type `RECORDS`; `topic` is for those that name none."""
    topics, keys, values = batch.arrow.columns
    chosen = repeat(topic, len(batch)) if topics.null_count else topics.to_pylist()
    return zip(chosen, keys.to_pylist(), values.to_pylist(), strict=True)


def check_target(
    cluster: Cluster, records: KafkaRecordSerializationSchema, ctx: CommitterContext
) -> None:
    """Make sure that the topics can be reached, and that elements can be written to them."""
    name = sink_label(ctx.job, ctx.uid)
    if ctx.type is not None:
        records.check(ctx.type, name)
    with closing(KafkaTopics(cluster, name)) as found:
        for topic in records.topics:
            found.partitions(topic)


def require_topics(cluster: Cluster, topics: set[str], sink: str) -> None:
    """Refuse topics that are not there: Kafka might create those that a selector misspells.

    Asks for each of them once in this process.
    """
    unknown = sorted(t for t in topics if (cluster.servers, t) not in _FOUND)
    if unknown:
        with closing(KafkaTopics(cluster, sink)) as found:
            for topic in unknown:
                found.partitions(topic)
                _FOUND.add((cluster.servers, topic))


class RecordLimits:
    """What topics refuse, so that tasks refuse it before it is promised.

    Asks Kafka once for each topic and attempt of a job in this process: limits may be changed
    between two attempts. `topic` is that of records that name none.
    """

    def __init__(self, cluster: Cluster, topic: str, sink: str, attempt: tuple[str, int]) -> None:
        self._cluster = cluster
        self._topic = topic
        self._sink = sink
        self._attempt = attempt
        given = cluster.properties.get("message.max.bytes", _CLIENT_BYTES)
        self._client_bytes = int(given)

    def check(self, records: Batch) -> None:
        """Refuse elements of the type `RECORDS` that their topics would refuse."""
        topics, keys, values = records.arrow.columns
        if topics.null_count:
            self._check(self._topic, keys, values)
            return
        for topic in topics.unique().to_pylist():
            of_topic = pc.equal(topics, topic)
            self._check(topic, keys.filter(of_topic), values.filter(of_topic))

    def _check(self, topic: str, keys: pa.Array, values: pa.Array) -> None:
        limits = _limits_of(self._cluster, topic, self._sink, self._attempt)
        if limits.needs_key and keys.null_count:
            raise ConfigurationError(
                f"{self._sink}: topic {topic!r} is compacted and rejects records without a key, "
                "but an element has none. Set a key, or filter such elements out before the sink"
            )
        lengths = (pc.fill_null(pc.binary_length(column), 0) for column in (keys, values))
        largest = pc.max(pc.add(*lengths)).as_py()
        if largest > self._client_bytes:
            raise ConfigurationError(
                f"{self._sink}: a record for topic {topic!r} has {largest} bytes, but the client "
                f"accepts at most {self._client_bytes}. Raise the property message.max.bytes, "
                "and also the topic's max.message.bytes"
            )
        if limits.bytes is not None and largest + _AROUND_A_RECORD > limits.bytes:
            raise ConfigurationError(
                f"{self._sink}: a record for topic {topic!r} has {largest} bytes, but the topic "
                f"accepts at most {limits.bytes} before compression, including up to "
                f"{_AROUND_A_RECORD} of overhead. Raise the topic's max.message.bytes"
            )


def _limits_of(cluster: Cluster, topic: str, sink: str, attempt: tuple[str, int]) -> TopicLimits:
    asked = (cluster.servers, topic, *attempt)
    if asked not in _LIMITS:
        with closing(KafkaTopics(cluster, sink)) as topics:
            _LIMITS[asked] = topics.limits(topic)
    return _LIMITS[asked]


class KafkaRecordSerializationSchemaBuilder:
    """Builds a `KafkaRecordSerializationSchema`: topic and schema of values are needed."""

    def __init__(self) -> None:
        self._topics: tuple[str, ...] = ()
        self._select: Callable[[Any], str] | None = None
        self._value: SerializationSchema | None = None
        self._key: SerializationSchema | None = None
        self._key_field: str | None = None

    def set_topic(self, topic: str) -> Self:
        """Set the topic, which has to exist."""
        self._topics = (_name("set_topic", topic),)
        self._select = None
        return self

    def set_topic_selector(
        self,
        topic_selector: KafkaTopicSelector | Callable[[Any], str],
        topics: Sequence[str] = (),
    ) -> Self:
        """Let each element choose its topic.

        Args:
            topic_selector: A `KafkaTopicSelector`, or a function that takes an element.
            topics: Topics that have to exist when the job starts, at least one. The selector may
                choose others, which have to exist by then. Of an exactly-once sink, the first one
                also remembers how far the sink is: leave it the first.
        """
        what = "KafkaRecordSerializationSchema: set_topic_selector"
        select = getattr(topic_selector, "apply", topic_selector)
        if isinstance(topic_selector, type) or not callable(select):
            raise ConfigurationError(
                f"{what} takes a KafkaTopicSelector or a function, not {topic_selector!r:.80}"
            )
        if isinstance(topics, str) or not isinstance(topics, Sequence) or not topics:
            raise ConfigurationError(
                f"{what} takes a list of at least one existing topic, not {topics!r:.80}"
            )
        self._topics = tuple(_name("set_topic_selector", topic) for topic in topics)
        self._select = select
        return self

    def set_value_serialization_schema(self, schema: SerializationSchema) -> Self:
        """Set how an element becomes the value of its record."""
        self._value = _schema("set_value_serialization_schema", schema)
        return self

    def set_key_serialization_schema(self, schema: SerializationSchema) -> Self:
        """Set how an element becomes the key of its record; without a key there is none."""
        self._key = _schema("set_key_serialization_schema", schema)
        return self

    def set_key_field(self, name: str) -> Self:
        """Take a field of the rows as the key: strings as they are, other values as in JSON."""
        if not isinstance(name, str) or not name:
            raise ConfigurationError(
                f"KafkaRecordSerializationSchema: set_key_field takes a name, not {name!r:.80}"
            )
        self._key_field = name
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """Build it.

        Raises:
            ConfigurationError: Something is missing, or given twice.
        """
        what = "KafkaRecordSerializationSchema"
        if not self._topics:
            raise ConfigurationError(f"{what}: call set_topic(...) or set_topic_selector(...)")
        if self._value is None:
            raise ConfigurationError(f"{what}: call set_value_serialization_schema(...)")
        if self._key is not None and self._key_field is not None:
            raise ConfigurationError(
                f"{what}: set_key_field and set_key_serialization_schema cannot be used together"
            )
        return KafkaRecordSerializationSchema(
            self._topics, self._value, self._key, self._key_field, self._select
        )


def _schema(method: str, schema: Any) -> SerializationSchema:
    if not isinstance(schema, SerializationSchema):
        raise ConfigurationError(
            f"KafkaRecordSerializationSchema: {method} takes a SerializationSchema, such as "
            f"SimpleStringSchema(), not {schema!r:.80}"
        )
    return schema


def _checked(schema: SerializationSchema, payloads: Payloads) -> Payloads:
    """What a schema gave, if it is what Kafka takes; an int would become so many zero bytes."""
    for payload in payloads:
        if payload is not None and not isinstance(payload, bytes):
            raise SinkError(
                f"{type(schema).__name__}.serialize returned {payload!r:.60}; it must return "
                "bytes or None"
            )
    return payloads


def _texts(batch: Batch, field: str) -> Payloads:
    encode = msgspec.json.encode
    return [
        None if value is None else value.encode() if isinstance(value, str) else encode(value)
        for value in json_column(batch.arrow.column(field))
    ]


def _name(method: str, topic: Any) -> str:
    if not isinstance(topic, str) or not topic.strip():
        raise ConfigurationError(
            f"KafkaRecordSerializationSchema: {method} takes the name of a topic, not {topic!r:.80}"
        )
    return topic


def _topic(chosen: Any) -> str:
    if not isinstance(chosen, str) or not chosen:
        raise SinkError(
            f"the topic selector returned {chosen!r:.60}; it must return the name of a topic"
        )
    return chosen
