"""Which values a column of a table takes, checked before they are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.errors import SinkError
from turnback.values.columns import json_column

Text = Callable[[pa.Array], pa.Array]
CHUNK_BYTES = 1 << 20
"""How much text is sent at once."""


def plain_text(column: pa.Array) -> pa.Array:
    """The values as strings, nulls left as they are; the bytes of binary columns in hex.

    Dates, times and timestamps are in ISO 8601 with a space, instants in UTC without a zone; rows,
    lists and maps are JSON, as `FileSink` writes them.
    """
    kind = column.type
    if pt.is_string(kind):
        return column
    if pt.is_time64(kind):
        column = pc.cast(column, pa.time64("us"))
    elif pt.is_timestamp(kind):
        # A cast to text would put a `Z` behind instants, which not every database takes.
        column = pc.cast(column, pa.timestamp("us", kind.tz)).cast(pa.timestamp("us"))
    elif pt.is_binary(kind) or pt.is_large_binary(kind):
        return pa.array([None if v is None else v.hex() for v in column.to_pylist()], pa.string())
    elif pt.is_nested(kind):
        encode = msgspec.json.Encoder().encode
        values = (None if v is None else encode(v).decode() for v in json_column(column))
        return pa.array(values, pa.string())
    return pc.cast(column, pa.string())


def joined_rows(columns: list[pa.Array], separator: str) -> pa.Array:
    """One string per row out of columns without nulls."""
    if len(columns) == 1:
        return columns[0]
    return pc.binary_join_element_wise(*columns, separator)


def chunks(rows: pa.Array, separator: str) -> Iterator[str]:
    """Rows joined to texts of about `CHUNK_BYTES`, never splitting a row."""
    return (separator.join(some) for some in portions(rows))


def portions(rows: pa.Array) -> Iterator[list[str]]:
    """Rows in portions of about `CHUNK_BYTES`, each of one row at least."""
    sizes = pc.cumulative_sum(pc.cast(pc.binary_length(rows), pa.int64())).to_numpy()
    start = 0
    while start < len(rows):
        done = int(sizes[start - 1]) if start else 0
        end = max(start + 1, int(sizes.searchsorted(done + CHUNK_BYTES, side="right")))
        yield rows.slice(start, end - start).to_pylist()
        start = end


def escaped(text: pa.Array, replacements: dict[str, str]) -> pa.Array:
    """Replace characters, in this order."""
    for character, replacement in replacements.items():
        text = pc.replace_substring(text, character, replacement)
    return text


_SHOWN = 40
"""How many characters of a value an error shows: enough to find it, and no whole document."""


class Respelled(NamedTuple):
    """A text, and what is read back if it is written to a column; None if that is nothing.

    Of an array, `given` has its elements as they are given, in the usual form of arrays.
    """

    given: str
    stored: str | None


@dataclass(frozen=True)
class Limits:
    """What a column takes of the values of its type.

    Databases refuse some of the others, in words that name no column, and change some silently.

    Attributes:
        nullable: Whether it may be null.
        most_characters: How long text may be.
        exact_characters: How long text has to be; what is shorter would be padded.
        most_bytes: How long binary values, or text in UTF-8, may be.
        exact_bytes: How long binary values have to be.
        trailing_blanks: Whether text may end with a blank; if not, it would be cut off or ignored.
        nul: Whether text may hold the character 0.
        only_finite: Whether it has neither NaN nor infinities.
        negative_zero: Whether it tells -0.0 from 0.0.
        members: The only texts that it takes.
    """

    nullable: bool = True
    most_characters: int | None = None
    exact_characters: int | None = None
    most_bytes: int | None = None
    exact_bytes: int | None = None
    trailing_blanks: bool = True
    nul: bool = True
    only_finite: bool = False
    negative_zero: bool = True
    members: tuple[str, ...] | None = None


def check_spelling(spelled: Iterable[Respelled], where: str, *, is_json: bool) -> None:
    """Refuse texts that would be read back otherwise; of JSON only the meaning has to stay."""
    for given, stored in spelled:
        if given != stored and not (is_json and stored and _means_the_same(given, stored)):
            becomes = "lost" if stored is None else f"read back as {_shown(stored)}"
            raise SinkError(
                f"{where} does not accept {_shown(given)}: it would be {becomes}. Use the "
                "column's own format, or a text column"
            )


def _means_the_same(given: str, stored: str) -> bool:
    """Whether two texts are the same JSON: names come once, and numbers have all their digits."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name that appears twice")
        return found

    def read(text: str) -> Any:
        return json.loads(text, object_pairs_hook=members, parse_int=_Number, parse_float=_Number)

    try:
        return bool(read(given) == read(stored))
    except (ValueError, ArithmeticError, RecursionError):
        return False


class _Number(Decimal):
    """A number in JSON, which equals no `true` or `false`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Number) and super().__eq__(other)

    __hash__ = Decimal.__hash__


def _shown(value: object) -> str:
    shown = repr(value)
    return f"{shown[:_SHOWN]}..." if len(shown) > _SHOWN else shown


def check_values(column: pa.Array, limits: Limits, where: str) -> None:
    """Refuse values that a column does not take; `where` is what messages call it."""
    if column.null_count and not limits.nullable:
        raise SinkError(
            f"{where} does not accept null; set a value, or drop such elements before the sink"
        )
    for refused, reason in _refused(column, limits):
        if pc.any(refused).as_py():
            value = column[pc.index(refused, True).as_py()].as_py()
            raise SinkError(f"{where} does not accept {_shown(value)}: {reason}")


def _refused(column: pa.Array, limits: Limits) -> Iterator[tuple[pa.Array, str]]:
    kind = column.type
    if pt.is_floating(kind):
        yield from _refused_floats(column, limits)
    elif pt.is_string(kind) or pt.is_nested(kind):
        yield from _refused_texts(plain_text(column), limits)
    elif pt.is_binary(kind) or pt.is_large_binary(kind):
        length = pc.binary_length(column)
        if limits.most_bytes is not None:
            yield pc.greater(length, limits.most_bytes), f"the limit is {limits.most_bytes} bytes"
        if limits.exact_bytes is not None:
            yield (
                pc.not_equal(length, limits.exact_bytes),
                f"it does not have exactly {limits.exact_bytes} bytes",
            )


def _refused_floats(column: pa.Array, limits: Limits) -> Iterator[tuple[pa.Array, str]]:
    if limits.only_finite:
        yield (
            pc.invert(pc.is_finite(column)),
            "the database does not support NaN or infinity; map them to None or to a number "
            "before the sink",
        )
    if not limits.negative_zero:
        zero = pc.equal(column, 0.0)
        yield (
            # Only the sign tells -0.0 from 0.0, and dividing by it shows the sign.
            pc.and_(zero, pc.less(pc.divide(pa.scalar(1.0, column.type), column), 0.0)),
            "the database would store 0.0; add 0.0 to it before the sink",
        )


def _refused_texts(text: pa.Array, limits: Limits) -> Iterator[tuple[pa.Array, str]]:
    if not limits.nul:
        yield (
            pc.match_substring(text, "\0"),
            "the database cannot store the character 0 in text; remove it before the sink",
        )
    if limits.most_characters is not None:
        yield (
            pc.greater(pc.utf8_length(text), limits.most_characters),
            f"the limit is {limits.most_characters} characters",
        )
    if limits.exact_characters is not None:
        yield (
            pc.not_equal(pc.utf8_length(text), limits.exact_characters),
            f"it would be padded to {limits.exact_characters} characters, or is longer; use a "
            "column of text without a fixed length",
        )
    if limits.most_bytes is not None:
        yield (
            pc.greater(pc.binary_length(text), limits.most_bytes),
            f"the limit is {limits.most_bytes} bytes",
        )
    if not limits.trailing_blanks:
        yield (
            pc.ends_with(text, " "),
            "trailing spaces would be lost, or ignored when keys are compared",
        )
    if limits.members is not None:
        members = pa.array(limits.members, pa.string())
        known = pc.is_in(text, value_set=members)
        yield pc.and_(pc.is_valid(text), pc.invert(known)), "it is not one of the column's values"
