"""What users say of state they bring, checked and in one form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from turnback.api.arguments import positive
from turnback.coordinator import SourcePosition
from turnback.core import KeyCodec, as_type
from turnback.core.errors import ConfigurationError
from turnback.functions import StateDescriptor
from turnback.state import StateSchema
from turnback.state.layout import MAX_GROUPS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def state_schema(uid: str, descriptor: StateDescriptor, key: Any) -> StateSchema:
    """What a state is, by its descriptor and how its stream is keyed."""
    sub = descriptor.key_type
    return StateSchema(
        uid=uid,
        name=descriptor.name,
        kind=descriptor.kind,
        key=key,
        value=descriptor.type.describe(),
        sub=None if sub is None else sub.describe(),
    )


def given_key(
    state: StateSchema, df: DataFrame, columns: tuple[str, ...] | None, key_type: Any
) -> dict[str, Any] | None:
    """How the stream of a state is keyed, in the form of `StateSchema.key`; None if not said.

    Args:
        state: The state, for messages.
        df: Its rows.
        columns: The key columns, for streams keyed by columns.
        key_type: The type of the key, for streams keyed by a function.
    """
    from turnback.runtime.spark.stateframes import column_type

    if columns is not None and key_type is not None:
        raise ConfigurationError(
            "with_state takes key_by for streams keyed by columns or key_type for streams keyed "
            "by a function, not both"
        )
    if columns is not None:
        types = tuple(column_type(df, column, state) for column in columns)
    elif key_type is not None:
        types = (as_type(key_type),)
    else:
        return None
    codec = KeyCodec(types, by_columns=columns is not None)
    return {"types": [t.describe() for t in codec.types], "columns": codec.by_columns}


def check_frame(who: str, frame: Any) -> None:
    """Refuse what is no batch DataFrame."""
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame) or frame.isStreaming:
        what = "a streaming one" if isinstance(frame, DataFrame) else repr(frame)[:80]
        raise ConfigurationError(f"{who}: a batch DataFrame is needed, got {what}")


def key_groups(number: int) -> int:
    """A number of key groups."""
    if positive("max_parallelism", number) > MAX_GROUPS:
        raise ConfigurationError(f"max_parallelism is at most {MAX_GROUPS}, got {number}")
    return number


def source_position(uid: str, given: Any) -> SourcePosition:
    """Where a source goes on, from the offset as JSON or as what JSON stands for."""
    if given is None:
        return SourcePosition(None)
    try:
        text = given if isinstance(given, str) else json.dumps(given)
        parsed = json.loads(text)
    except (TypeError, ValueError) as e:
        raise ConfigurationError(
            f"with_sources: the position of source {uid!r} is {given!r}, which is not JSON: {e}"
        ) from e
    if isinstance(parsed, dict) and "logOffset" in parsed:
        raise ConfigurationError(
            f"with_sources: {uid!r} reads files, and its position includes the list of files it "
            f"has seen; take it from a savepoint"
        )
    return SourcePosition(text)
