"""Malformed records: text that does not fit the schema that a source parses it against."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any
from urllib.parse import unquote

from turnback.core.errors import MalformedRecordError, PlanError
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types


class MalformedPolicy(Enum):
    """What a source does with a record that does not fit its schema."""

    FAIL = "fail"
    """The job ends, with an error that shows the record."""
    DROP = "drop"
    """The record is left out, and counted."""
    SIDE = "side"
    """The record is left out and counted, and goes to the malformed records of the source."""


MALFORMED = "turnback.malformed"
"""The name of the side output for malformed records."""

MALFORMED_RECORD = Types.ROW_NAMED(["source", "place", "text"], [Types.STRING()] * 3)
"""A malformed record as users see it: the uid of its source, the file or the partition and offset
it was read from, and its text."""

MALFORMED_COLUMN = "_turnback_malformed"
"""Of what sources give: place and text of a record that is malformed, else null."""

PLACED_TEXT = Types.ROW_NAMED(["place", "text"], [Types.STRING()] * 2)
"""The type of that column."""

TEXT_FORMATS = ("csv", "json")
"""Formats of files that are parsed against a schema."""

_OWN_OPTIONS = frozenset({"mode", "columnnameofcorruptrecord"})
_OWN_COLUMN = "_corrupt_record"
"""With these, users let Spark decide what becomes of malformed records."""

_SHOWN = 200
"""So many characters of a record are part of an error."""


def malformed_policy(what: str, given: Any) -> MalformedPolicy:
    """The policy that was asked for by name; `what` begins the message if there is none."""
    try:
        return MalformedPolicy(given)
    except ValueError:
        known = ", ".join(repr(each.value) for each in MalformedPolicy)
        raise PlanError(f"{what}: on_malformed takes one of {known}, got {given!r:.80}") from None


def with_malformed(type: TypeInfo) -> RowTypeInfo:
    """The type of rows, with the column that tells which of them are malformed."""
    assert isinstance(type, RowTypeInfo), "what is parsed are rows"
    return RowTypeInfo((*type.names, MALFORMED_COLUMN), (*type.types, PLACED_TEXT))


def files_policy(
    format: str, columns: Collection[str], options: Mapping[str, Any], given: Any
) -> MalformedPolicy | None:
    """What becomes of malformed records of files; None if that is left to Spark, or there are none.

    Args:
        format: Of the files.
        columns: Of the schema.
        options: Of Spark's reader.
        given: What the user asks for; None for nothing in particular.
    """
    policy = malformed_policy("from_files", "fail" if given is None else given)
    if format not in TEXT_FORMATS:
        if policy is not MalformedPolicy.FAIL:
            raise PlanError(
                f"from_files: nothing is parsed in {format} files, so no record is malformed; "
                f"on_malformed={policy.value!r} is for {' and '.join(TEXT_FORMATS)}"
            )
        return None
    own = [name for name in options if name.lower() in _OWN_OPTIONS]
    own += [name for name in columns if name == _OWN_COLUMN]
    if own and given is not None:
        raise PlanError(
            f"from_files: {own[0]} says as well what becomes of malformed records; leave it out, "
            "or leave out on_malformed"
        )
    return None if own else policy


def malformed_error(uid: str, place: str | None, text: str | None) -> MalformedRecordError:
    """The error that ends a job which is to have no malformed records."""
    place = plain_path(place or "?")
    text = text or ""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return MalformedRecordError(
        f"source {uid!r}: a record does not fit its schema: {place}: {shown!r}. Mend what is "
        'there, correct the schema, or go on without such records: on_malformed="drop" counts '
        'them, on_malformed="side" gives them to malformed_records()'
    )


def plain_path(path: str) -> str:
    """A path without what Spark writes in several ways: file:/x, file:///x."""
    return unquote(re.sub(r"^file:/+", "/", path))
