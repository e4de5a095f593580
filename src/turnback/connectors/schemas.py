"""How elements become the bytes of a message, and the other way round; with PyFlink's names."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from typing import Any, Self

import msgspec

from turnback.errors import ConfigurationError
from turnback.values.columns import Batch, json_column
from turnback.values.hints import as_type
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

Payloads = list[bytes | None]
"""One per element; None is a message without a value, which deletes in a compacted topic."""


class SerializationSchema(ABC):
    """Turns elements into bytes. Subclass it for a format of your own; it is pickled to tasks."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes | None:
        """Return the bytes of one element, None for none."""

    def serialize_batch(self, batch: Batch) -> Payloads:
        """Serialize many elements; calls `serialize` for each."""
        serialize = self.serialize
        return [serialize(element) for element in batch.rows]

    def check(self, type: TypeInfo) -> None:
        """Raise `ConfigurationError` if elements of this type cannot be serialized."""
        return


class DeserializationSchema(ABC):
    """Turns bytes into elements. Spark does it, so there are only those of Turnback."""

    @property
    @abstractmethod
    def type_info(self) -> TypeInfo:
        """The type of the elements."""


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Strings.

    Args:
        charset: How they are encoded; sources read UTF-8 only.

    Raises:
        ConfigurationError: There is no such charset.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            self.charset = codecs.lookup(charset).name
        except (LookupError, TypeError):
            raise ConfigurationError(f"SimpleStringSchema: unknown charset {charset!r}") from None

    @property
    def type_info(self) -> TypeInfo:
        return Types.STRING()

    def serialize(self, element: Any) -> bytes | None:
        return None if element is None else str(element).encode(self.charset)

    def check(self, type: TypeInfo) -> None:
        if type != Types.STRING():
            raise ConfigurationError(
                f"SimpleStringSchema writes strings, but the elements are {type}; map them to "
                "strings first, or use JsonRowSerializationSchema"
            )

    def __repr__(self) -> str:
        return f"SimpleStringSchema({self.charset!r})"


class JsonRowSerializationSchema(SerializationSchema):
    """Rows as JSON objects, with values as `FileSink` writes them to JSON files.

    Args:
        type: What the rows have to be; None for the type that the stream has.
    """

    def __init__(self, type: RowTypeInfo | None = None) -> None:
        self._type = type
        self._encode = msgspec.json.Encoder().encode

    @staticmethod
    def builder() -> JsonRowSerializationSchemaBuilder:
        return JsonRowSerializationSchemaBuilder()

    def serialize(self, element: Any) -> bytes | None:
        if self._type is None:
            raise ConfigurationError("JsonRowSerializationSchema: with_type_info was not called")
        return self.serialize_batch(Batch(self._type, [element]))[0]

    def serialize_batch(self, batch: Batch) -> Payloads:
        arrow = batch.arrow
        encode = self._encode
        names = arrow.schema.names
        columns = [json_column(column) for column in arrow.columns]
        return [encode(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]

    def check(self, type: TypeInfo) -> None:
        if not isinstance(type, RowTypeInfo):
            raise ConfigurationError(
                f"JsonRowSerializationSchema writes rows, but the elements are {type}; map them "
                "to rows first"
            )
        if self._type is not None and self._type != type:
            raise ConfigurationError(
                f"JsonRowSerializationSchema was built with_type_info({self._type}), but the "
                f"elements are {type}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"type": self._type}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["type"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"JsonRowSerializationSchema({self._type or ''})"


class JsonRowSerializationSchemaBuilder:
    """Builds a `JsonRowSerializationSchema`."""

    def __init__(self) -> None:
        self._type: RowTypeInfo | None = None

    def with_type_info(self, type_info: Any) -> Self:
        """Refuse streams of any other type when the job starts."""
        self._type = _row_type("JsonRowSerializationSchema.with_type_info", type_info)
        return self

    def build(self) -> JsonRowSerializationSchema:
        return JsonRowSerializationSchema(self._type)


class JsonRowDeserializationSchema(DeserializationSchema):
    """Rows from JSON objects. Fields that are not declared are left out, missing ones are null.

    Args:
        type: The rows.
        ignore_parse_errors: Whether messages that are no such JSON are left out, instead of
            failing the job.
    """

    def __init__(self, type: RowTypeInfo, ignore_parse_errors: bool = False) -> None:
        self._type = type
        self.ignore_parse_errors = ignore_parse_errors

    @staticmethod
    def builder() -> JsonRowDeserializationSchemaBuilder:
        return JsonRowDeserializationSchemaBuilder()

    @property
    def type_info(self) -> RowTypeInfo:
        return self._type

    def __repr__(self) -> str:
        return f"JsonRowDeserializationSchema({self._type})"


class JsonRowDeserializationSchemaBuilder:
    """Builds a `JsonRowDeserializationSchema`."""

    def __init__(self) -> None:
        self._type: RowTypeInfo | None = None
        self._ignore_parse_errors = False

    def type_info(self, type_info: Any) -> Self:
        """Set the rows: `Types.ROW_NAMED`, a DDL string, NamedTuple or dataclass."""
        self._type = _row_type("JsonRowDeserializationSchema.type_info", type_info)
        return self

    def ignore_parse_errors(self) -> Self:
        """Leave out what is no such JSON."""
        self._ignore_parse_errors = True
        return self

    def build(self) -> JsonRowDeserializationSchema:
        """Build it.

        Raises:
            ConfigurationError: The type is not set.
        """
        if self._type is None:
            raise ConfigurationError(
                "JsonRowDeserializationSchema: call type_info(...) to set the type of the rows"
            )
        return JsonRowDeserializationSchema(self._type, self._ignore_parse_errors)


def _row_type(what: str, type_info: Any) -> RowTypeInfo:
    type = as_type(type_info)
    if not isinstance(type, RowTypeInfo):
        raise ConfigurationError(f"{what} takes the type of rows, not {type}")
    return type
