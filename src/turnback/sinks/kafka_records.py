"""What becomes of elements in Kafka: the topic, the key and the value of each record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import repeat
from typing import Any, Self

import msgspec

from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.base import CommitterContext, name_sink
from turnback.sinks.formats import json_column
from turnback.sinks.kafka_client import Cluster, KafkaRegister, Record
from turnback.sinks.schemas import Payloads, SerializationSchema
from turnback.types.columns import Batch, stream_columns
from turnback.types.typeinfo import TypeInfo


class KafkaRecordSerializationSchema:
    """Turns elements into records; made with `KafkaRecordSerializationSchema.builder()`."""

    def __init__(
        self,
        topic: str,
        value: SerializationSchema,
        key: SerializationSchema | None,
        key_field: str | None,
    ) -> None:
        self.topic = topic
        self._value, self._key, self._key_field = value, key, key_field

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        return KafkaRecordSerializationSchemaBuilder()

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
                f"{sink}: the elements have no field {self._key_field!r} for the key; there are "
                f"{', '.join(names)}"
            )

    def serialize(self, batch: Batch) -> Iterator[Record]:
        """The records of some elements.

        Raises:
            SinkError: The user's schema gave something other than bytes.
        """
        values = _checked(self._value, self._value.serialize_batch(batch))
        if self._key_field is not None:
            keys: Any = _texts(batch, self._key_field)
        elif self._key is not None:
            keys = _checked(self._key, self._key.serialize_batch(batch))
        else:
            keys = repeat(None, len(values))
        return zip(keys, values, strict=True)


def check_target(
    cluster: Cluster, records: KafkaRecordSerializationSchema, ctx: CommitterContext
) -> None:
    """Make sure that the topic can be reached, and that elements can be written to it."""
    name = name_sink(ctx.job, ctx.uid)
    if ctx.type is not None:
        records.check(ctx.type, name)
    with closing(KafkaRegister(cluster, "turnback.check", records.topic, name)) as register:
        register.check_topic()


class KafkaRecordSerializationSchemaBuilder:
    """Builds a `KafkaRecordSerializationSchema`: topic and schema of values are needed."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._value: SerializationSchema | None = None
        self._key: SerializationSchema | None = None
        self._key_field: str | None = None

    def set_topic(self, topic: str) -> Self:
        """Set the topic, which has to exist."""
        if not isinstance(topic, str) or not topic.strip():
            raise ConfigurationError(
                f"KafkaRecordSerializationSchema: set_topic takes a name, not {topic!r:.80}"
            )
        self._topic = topic
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
        if self._topic is None:
            raise ConfigurationError(f"{what}: call set_topic(...)")
        if self._value is None:
            raise ConfigurationError(f"{what}: call set_value_serialization_schema(...)")
        if self._key is not None and self._key_field is not None:
            raise ConfigurationError(
                f"{what}: set_key_field and set_key_serialization_schema exclude each other"
            )
        return KafkaRecordSerializationSchema(self._topic, self._value, self._key, self._key_field)


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
                f"{type(schema).__name__}.serialize returned {payload!r:.60}; it has to return "
                "bytes, or None"
            )
    return payloads


def _texts(batch: Batch, field: str) -> Payloads:
    encode = msgspec.json.encode
    return [
        None if value is None else value.encode() if isinstance(value, str) else encode(value)
        for value in json_column(batch.arrow.column(field))
    ]
