"""What the sources of `env.from_source` have in common: values, and what else records have."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from turnback.config.option import nonempty_text, positive
from turnback.connectors.schemas import (
    DeserializationSchema,
    JsonRowDeserializationSchema,
    SimpleStringSchema,
)
from turnback.errors import ConfigurationError, PlanError, TurnbackError
from turnback.functions.event_time import WatermarkStrategy
from turnback.plan.bad_records import ErrorPolicy, malformed_policy
from turnback.plan.graph import SourceCheck
from turnback.plan.sources import OpenLagReader
from turnback.values.columns import stream_columns
from turnback.values.hints import as_type
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
HEADERS = Types.LIST(Types.ROW_NAMED(["key", "value"], [Types.STRING(), Types.BYTES()]))


@dataclass(frozen=True)
class RecordSource(ABC):
    """A source of records; see `KafkaSource`, `RabbitMQSource` and `KinesisSource`.

    Attributes:
        options: Options of Spark's reader; may hold passwords.
        schema: What becomes of values.
        metadata: What else is read of a record: the names of its columns, by what they hold.
        bounded: Whether it ends with what is there when the job starts.
    """

    METADATA: ClassVar[Mapping[str, TypeInfo]]
    """What can be read of a record besides its value."""

    options: Mapping[str, str] = field(repr=False)
    schema: DeserializationSchema
    metadata: Mapping[str, str]
    bounded: bool

    @property
    def type_info(self) -> TypeInfo:
        """The type of the elements; rows, if metadata come with them."""
        value = self.schema.type_info
        if not self.metadata:
            return value
        more = ((name, self.METADATA[what]) for what, name in self.metadata.items())
        names, types = zip(*[*stream_columns(value), *more], strict=True)
        return RowTypeInfo(names, types)

    def malformed_policy(self, given: str | None) -> ErrorPolicy | None:
        """What becomes of values that do not fit the schema; None if they are not parsed.

        Args:
            given: What the user asks for; None for nothing in particular.
        """
        policy = malformed_policy("from_source", given)
        if not isinstance(self.schema, JsonRowDeserializationSchema):
            if policy is not ErrorPolicy.FAIL:
                raise PlanError(
                    "from_source: values are not parsed, so none is malformed; "
                    f"on_malformed={policy.value!r} requires a JsonRowDeserializationSchema. For "
                    "what your own functions parse, use on_error"
                )
            return None
        if not self.schema.ignore_parse_errors:
            return policy
        if given not in (None, ErrorPolicy.SKIP.value):
            raise PlanError(
                f"from_source: on_malformed={policy.value!r}, but the schema drops malformed "
                "values; build it without ignore_parse_errors()"
            )
        return ErrorPolicy.SKIP

    @abstractmethod
    def frame(self, spark: SparkSession) -> DataFrame:
        """The records as a stream of Spark: columns of values, then of metadata."""

    @abstractmethod
    def source_check(self) -> SourceCheck:
        """What to ask before the job starts."""

    def lag_reader(self) -> OpenLagReader | None:
        """What tells while the job runs how far it is behind; None if nothing does."""
        return None


class OffsetsInitializer(Protocol):
    """Where a job begins to read that has no checkpoint yet."""

    @staticmethod
    def earliest() -> Any: ...

    @staticmethod
    def latest() -> Any: ...


Initializer = TypeVar("Initializer", bound=OffsetsInitializer)


class RecordSourceBuilder(Generic[Initializer]):
    """What the builders of these sources have in common."""

    _source: ClassVar[type[RecordSource]]
    _initializers: type[Initializer]
    _system: ClassVar[str]
    """What it reads from, as people call it."""

    def __init__(self) -> None:
        self._schema: DeserializationSchema | None = None
        self._metadata: dict[str, str] = {}
        self._start: Initializer = self._initializers.earliest()
        self._bounded = False
        self._options: dict[str, str] = {}

    def set_starting_offsets(self, starting_offsets: Initializer) -> Self:
        """Set where a job without a checkpoint begins; by default `earliest`, as in Flink."""
        self._start = self._initializer("set_starting_offsets", starting_offsets)
        return self

    def set_bounded(self, stopping_offsets: Initializer) -> Self:
        """End with what is there when the job starts.

        Args:
            stopping_offsets: `latest()` of the initializers; there is no other end.
        """
        stop = self._initializer("set_bounded", stopping_offsets)
        latest = self._initializers.latest
        if stop != latest():
            raise ConfigurationError(
                f"{self._name}: set_bounded only takes {latest.__qualname__}(): the job reads "
                "the records that exist when it starts"
            )
        self._bounded = True
        return self

    def _initializer(self, method: str, value: Any) -> Initializer:
        wanted = self._initializers
        if not isinstance(value, wanted):
            raise ConfigurationError(
                f"{self._name}: {method} takes a {wanted.__name__}, such as "
                f"{wanted.__name__}.earliest(), not {value!r:.80}"
            )
        return value

    @property
    def _name(self) -> str:
        return self._source.__name__

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> Self:
        """Set what becomes of values: `SimpleStringSchema`, `JsonRowDeserializationSchema`."""
        known = (SimpleStringSchema, JsonRowDeserializationSchema)
        if not isinstance(deserialization_schema, known):
            raise ConfigurationError(
                f"{self._name}: set_value_only_deserializer takes a SimpleStringSchema or a "
                f"JsonRowDeserializationSchema, not {deserialization_schema!r:.80}"
                f"{self._other_formats()}"
            )
        if getattr(deserialization_schema, "charset", "utf-8") != "utf-8":
            raise ConfigurationError(
                f"{self._name}: in a source, SimpleStringSchema supports only UTF-8"
            )
        self._schema = deserialization_schema
        return self

    def _other_formats(self) -> str:
        return ". For other formats, read strings and parse them in a map"

    def set_metadata_columns(self, *names: str, **renamed: str) -> Self:
        """Read more of records than their values, as further columns of rows.

        Args:
            *names: What to read, such as "offset" and "timestamp"; `METADATA` of the source has
                all of them.
            **renamed: The same, with the names of their columns: ``timestamp="written_at"``.
        """
        known = self._source.METADATA
        for what, name in {**dict(zip(names, names, strict=True)), **renamed}.items():
            if what not in known:
                raise ConfigurationError(
                    f"{self._name}: records have no {what!r}; available: {', '.join(known)}"
                )
            self._metadata[what] = nonempty_text(f"{self._name}: the column of {what}", name)
        return self

    def _most_records(self, number: int) -> int:
        return positive(f"{self._name}: max_records_per_epoch", number)

    def _checked_schema(self) -> DeserializationSchema:
        """What becomes of values, if no two columns have one name."""
        if self._schema is None:
            raise ConfigurationError(f"{self._name}: call set_value_only_deserializer(...)")
        names = {name for name, _ in stream_columns(self._schema.type_info)}
        for what, name in self._metadata.items():
            if name in names:
                raise ConfigurationError(
                    f"{self._name}: there are two columns {name!r}; rename the one from "
                    f"{self._system}: "
                    f'set_metadata_columns({what}="{self._system.lower()}_{what}")'
                )
            names.add(name)
        return self._schema


class PythonSourceBuilder(RecordSourceBuilder[Initializer]):
    """The same for sources that are written in Python."""

    def __init__(self) -> None:
        super().__init__()
        self._options["fail_on_data_loss"] = "true"

    def set_max_records_per_epoch(self, number: int) -> Self:
        """Set how many records one epoch reads at most, of all streams and shards together."""
        self._options["max_records"] = str(self._most_records(number))
        return self

    def set_fail_on_data_loss(self, fail_on_data_loss: bool) -> Self:
        """Set whether a job stops if what comes next is lost; by default it does.

        If not, it goes on with what is there, and logs what was lost.
        """
        if not isinstance(fail_on_data_loss, bool):
            raise ConfigurationError(
                f"{self._name}: set_fail_on_data_loss takes True or False, not "
                f"{fail_on_data_loss!r:.80}"
            )
        self._options["fail_on_data_loss"] = str(fail_on_data_loss).lower()
        return self


def check_source(
    source: Any, watermark_strategy: Any, source_name: Any, type_info: Any = None
) -> TypeInfo:
    """Refuse what `from_source` cannot take; return the type of the elements."""
    if not isinstance(source, RecordSource):
        raise PlanError(
            "from_source takes a KafkaSource, a RabbitMQSource or a KinesisSource, got "
            f"{type(source).__name__}; for other sources use from_files, from_collection or "
            "from_dataframe"
        )
    if not isinstance(watermark_strategy, WatermarkStrategy):
        raise PlanError(
            f"from_source takes a WatermarkStrategy, got {type(watermark_strategy).__name__}; "
            "use WatermarkStrategy.no_watermarks() if there is no event time"
        )
    if not isinstance(source_name, str) or not source_name:
        raise PlanError(f"from_source: the source's name must be a string, not {source_name!r:.80}")
    found = source.type_info
    if type_info is not None and as_type(type_info) != found:
        raise PlanError(f"from_source: elements are {found}, not {as_type(type_info)}")
    return found


GO_ON = (
    "Start from a newer checkpoint or savepoint; or continue with the available records: "
    "set_fail_on_data_loss(False)"
)


def report_loss(
    options: Mapping[str, str],
    name: str,
    lost: Sequence[str],
    kind: type[TurnbackError],
    remedy: str = GO_ON,
) -> None:
    """Fail because what comes next is lost, or only log it, as the options of a source say."""
    if lost and options["fail_on_data_loss"] == "true":
        raise kind(f"{name}: {'; '.join(lost)}. {remedy}")
    for text in lost:
        _LOG.warning("%s: %s; it continues with the available records", name, text)


def milliseconds(what: str, timestamp: Any) -> int:
    """Refuse what is no time in milliseconds since 1970; the message begins with `what`."""
    if not isinstance(timestamp, int) or isinstance(timestamp, bool) or timestamp < 0:
        raise ConfigurationError(f"{what} takes milliseconds since 1970, not {timestamp!r:.80}")
    return timestamp
