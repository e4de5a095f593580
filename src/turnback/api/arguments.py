"""What users pass in, checked and in one form."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from turnback.checkpoint.manifest import SourcePosition
from turnback.config.option import positive
from turnback.config.options import MAX_PARALLELISM
from turnback.core.units import parse_size
from turnback.errors import ConfigurationError, PlanError
from turnback.functions.base import (
    FilterFunction,
    FlatMapFunction,
    Function,
    MapFunction,
    ReduceFunction,
)
from turnback.plan.sources import EpochLimit
from turnback.state.schema import KeySchema
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def epoch_limit(files: Any, bytes: Any) -> EpochLimit:
    """What the user lets an epoch read of files."""
    if files is not None and bytes is not None:
        raise ConfigurationError(
            "give either max_files_per_epoch or max_bytes_per_epoch: Spark accepts only one limit"
        )
    if files is not None:
        positive("max_files_per_epoch", files)
    if bytes is not None:
        bytes = positive("max_bytes_per_epoch", parse_size(bytes, "max_bytes_per_epoch"))
    return EpochLimit(files, bytes)


def path_text(what: str, path: Any) -> str:
    """A path or URI as text."""
    text = fspath(path) if isinstance(path, str | PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"{what} must be a path or a URI, got {path!r}")
    return text


def snapshot_text(given: str | int | PathLike[str] | datetime | None) -> str | int | None:
    """Which checkpoint to start from: a number, or text that says which."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, datetime):
        return given.isoformat()
    if isinstance(given, str | PathLike) and fspath(given):
        return fspath(given)
    raise ConfigurationError(
        f"start_from must be a checkpoint's number, name or path, or a time, got {given!r}"
    )


def given_key(
    state: str, df: DataFrame, columns: tuple[str, ...] | None, key_type: Any
) -> KeySchema | None:
    """How the stream of a state is keyed; None if the user does not tell."""
    from turnback.spark.state_frames import column_type

    if columns is not None and key_type is not None:
        raise ConfigurationError(
            "with_state takes key_by for streams keyed by columns or key_type for streams keyed "
            "by a function, not both"
        )
    if columns is not None:
        types = tuple(column_type(df, column, state) for column in columns)
        return KeySchema.of(KeyCodec(types, by_columns=True))
    return None if key_type is None else KeySchema.of(KeyCodec((as_type(key_type),), False))


def check_frame(who: str, frame: Any) -> None:
    """Refuse what is no batch DataFrame."""
    from pyspark.sql import DataFrame

    if not isinstance(frame, DataFrame) or frame.isStreaming:
        what = "a streaming one" if isinstance(frame, DataFrame) else repr(frame)[:80]
        raise ConfigurationError(f"{who}: expected a batch DataFrame, got {what}")


def key_groups(what: str, number: Any) -> int:
    """A number of key groups."""
    if positive(what, number) > MAX_PARALLELISM:
        raise ConfigurationError(f"{what} must be at most {MAX_PARALLELISM}, got {number}")
    return int(number)


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


class CallableFunction(MapFunction, FlatMapFunction, FilterFunction, ReduceFunction):
    """A plain Python function in the place of any of these: every instance has it as its method."""

    map: Any = None
    flat_map: Any = None
    filter: Any = None
    reduce: Any = None

    def __init__(self, function: Callable[..., Any]) -> None:
        self.map = self.flat_map = self.filter = self.reduce = function


def as_function(given: Any, wanted: type[Function], method: str) -> Any:
    """The given function object, or a plain callable wrapped as one."""
    if isinstance(given, wanted):
        return given
    if isinstance(given, type) and issubclass(given, Function):
        raise PlanError(f"{method} takes an instance; write {given.__name__}() with parentheses")
    if not callable(given):
        raise PlanError(
            f"{method} takes a {wanted.__name__} or a function, got {type(given).__name__}"
        )
    if not issubclass(CallableFunction, wanted):
        raise PlanError(
            f"process takes a ProcessFunction or, after key_by, a KeyedProcessFunction or a "
            f"KeyedBatchFunction; {name_of(given)!r} is a plain function: use flat_map"
        )
    return CallableFunction(given)


def checked_instance(given: Any, wanted: type | tuple[type, ...], method: str) -> Any:
    """What was given, if it is an instance of one of the wanted classes."""
    if isinstance(given, type):
        raise PlanError(f"{method} takes an instance; write {given.__name__}() with parentheses")
    if not isinstance(given, wanted):
        names = wanted if isinstance(wanted, tuple) else (wanted,)
        expected = " or ".join(map(_with_article, (each.__name__ for each in names)))
        raise PlanError(f"{method} takes {expected}, got {type(given).__name__}")
    return given


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"


def output_type_of(given: Any, annotated: Any, method: str) -> TypeInfo:
    """The type of what a method gives: that which was given, or the annotation of a function."""
    if given is None and annotated is not None:
        given = returned_type(annotated)
        given = None if given is Any else given
    if given is None:
        raise PlanError(
            f"{method} needs output_type: a DDL string such as 'post string, n bigint', "
            f"Types..., a NamedTuple or a dataclass"
        )
    return as_type(given)


def name_of(function: Any) -> str:
    """What to call an operator that was given no name."""
    name = getattr(function, "__name__", type(function).__name__)
    return "function" if name == "<lambda>" else str(name)


def returned_type(function: Any) -> Any | None:
    """The annotated return type of a function, if it has one."""
    target = function if not hasattr(function, "get_key") else function.get_key
    try:
        return typing.get_type_hints(target).get("return")
    except (TypeError, NameError):
        return None
