"""What becomes of records that cannot be read, and of elements whose function fails."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from turnback.errors import ConfigurationError, MalformedRecordError, PlanError
from turnback.values.typeinfo import Descriptor, RowTypeInfo, TypeInfo, Types


class ErrorPolicy(Enum):
    """What becomes of an element at which a function fails, and of a record that cannot be read."""

    FAIL = "fail"
    """The attempt fails, and the restart strategy decides."""
    SKIP = "skip"
    """It is left out, and counted."""
    DEAD_LETTER = "dead_letter"
    """It is left out and counted, and goes to the dead letters of the operator or the source."""


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


P = TypeVar("P", bound=Enum)


def policy_of(kind: type[P], option: str, given: Any) -> P:
    """The policy that an option asks for by its name."""
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise PlanError(f"{option} takes one of {known}, got {given!r:.80}") from None


def malformed_policy(what: str, given: Any) -> ErrorPolicy:
    """What becomes of malformed records: an error if the user asks for nothing else."""
    return policy_of(ErrorPolicy, f"{what}: on_malformed", "fail" if given is None else given)


def with_malformed(type: TypeInfo) -> RowTypeInfo:
    """The type of rows, with the column that tells which of them are malformed."""
    assert isinstance(type, RowTypeInfo), "parsed elements are rows"
    return RowTypeInfo((*type.names, MALFORMED_COLUMN), (*type.types, PLACED_TEXT))


def files_policy(
    format: str, columns: Collection[str], options: Mapping[str, Any], given: Any
) -> ErrorPolicy | None:
    """What becomes of malformed records of files; None if Spark decides, or there are none."""
    policy = malformed_policy("from_files", given)
    if format not in TEXT_FORMATS:
        if policy is not ErrorPolicy.FAIL:
            raise PlanError(
                f"from_files: nothing is parsed in {format} files, so no record is malformed; "
                f"on_malformed={policy.value!r} is for {' and '.join(TEXT_FORMATS)}"
            )
        return None
    own = [name for name in options if name.lower() in _OWN_OPTIONS]
    own += [name for name in columns if name == _OWN_COLUMN]
    if own and given is not None:
        raise PlanError(
            f"from_files: {own[0]} also defines what happens to malformed records; use either it "
            "or on_malformed"
        )
    return None if own else policy


def malformed_error(uid: str, place: str | None, text: str | None) -> MalformedRecordError:
    """The error that ends a job which is to have no malformed records."""
    place = plain_path(place or "?")
    text = text or ""
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return MalformedRecordError(
        f"source {uid!r}: a record does not match its schema: {place}: {shown!r}. Fix the "
        'record, correct the schema, or continue without such records: on_malformed="skip" '
        'counts them, on_malformed="dead_letter" sends them to dead_letters()'
    )


def plain_path(path: str) -> str:
    """A path without what Spark writes in several ways: file:/x, file:///x."""
    return unquote(re.sub(r"^file:/+", "/", path))


DEAD_LETTERS = "turnback.dead-letters"
"""The name of the side output for dead letters."""

DEAD_LETTER = Types.ROW_NAMED(
    ["operator", "key", "element", "error", "epoch", "task", "position", "data"],
    [
        Types.STRING(),
        Types.STRING(),
        Types.STRING(),
        Types.STRING(),
        Types.LONG(),
        Types.INT(),
        Types.LONG(),
        Types.BYTES(),
    ],
)
"""A dead letter as users see it: which operator failed at an element, under which key if it has
one, the element as text, why, in which epoch and task, as the how manieth of its elements there,
and the `Letter` as bytes."""

_MARK = b"turnback letter 1\n"


class LetterId(NamedTuple):
    """What tells a dead letter of a job from all others."""

    attempt: int
    epoch: int
    operator: str
    task: int
    position: int


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to feed an element back to the operator whose function failed at it.

    Attributes:
        job_id: The job it comes from.
        operator: Uid of the operator.
        attempt: Of the job, in which the function failed.
        position: The how manieth element it was of its task in the epoch, from 0.
        input: Which input of the operator it came from.
        time: Its event time; None without one.
        type: What describes the type of the element.
        element: The element, serialized.
    """

    job_id: str
    operator: str
    attempt: int
    epoch: int
    task: int
    position: int
    input: int
    time: int | None
    type: Descriptor
    element: bytes

    @property
    def id(self) -> LetterId:
        return LetterId(self.attempt, self.epoch, self.operator, self.task, self.position)

    def encode(self) -> bytes:
        """What `data` of a dead letter holds."""
        return _MARK + msgspec.msgpack.encode(self)


_decode = msgspec.msgpack.Decoder(Letter).decode


def decode_letter(data: bytes) -> Letter:
    """Read `data` of a dead letter."""
    if data.startswith(_MARK):
        try:
            return _decode(memoryview(data)[len(_MARK) :])
        except msgspec.MsgspecError:
            pass
    raise ConfigurationError(
        f"{data[:40]!r} is not a dead letter: expected the column `data` of one"
    )
