from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from itertools import product
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from turnback.errors import ElementTypeError, NullKeyError
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec
from turnback.values.row import Row
from turnback.values.typeinfo import Types

NEW_YORK = ZoneInfo("America/New_York")
FIRST = datetime(2021, 11, 7, 1, 30, tzinfo=NEW_YORK)
SECOND = FIRST.replace(fold=1)
INSTANTS = [
    FIRST,
    SECOND,
    FIRST.astimezone(UTC),
    SECOND.astimezone(UTC),
    SECOND.astimezone(ZoneInfo("Europe/Berlin")),
    FIRST.astimezone(timezone(timedelta(hours=5))),
    datetime(2021, 11, 7, 5, 30, tzinfo=ZoneInfo("UTC")),
]


class Colour(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


class Loud(str):
    """Equal to anything."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 7


class Pair(NamedTuple):
    a: str
    b: int


class OddPair(NamedTuple):
    a: str
    b: int

    def __eq__(self, other):
        return self.a == other.a

    def __hash__(self):
        return hash(self.a)


@dataclass(frozen=True)
class Partly:
    a: str
    b: int = field(compare=False)


@dataclass(eq=False)
class Never:
    a: str
    b: int


@dataclass
class Unhashable:
    a: str
    b: int


def pairs(cls):
    return [cls("x", 1), cls("x", 2), cls("x", 1), ("x", 1), cls("y", 1)]


KEYS = {
    "instant": (Types.INSTANT(), INSTANTS),
    "timestamp": (
        Types.SQL_TIMESTAMP(),
        [datetime(2021, 11, 7, 1, 30), datetime(2021, 11, 7, 1, 30, fold=1), datetime(2021, 1, 1)],
    ),
    "time": (Types.SQL_TIME(), [time(1, 30), time(1, 30, fold=1), time(2)]),
    "string": (Types.STRING(), ["red", Colour.RED, Loud("red"), Loud("blue"), "blue", "\0", ""]),
    "long": (Types.LONG(), [1, np.int64(1), Number.ONE, 2, 0]),
    "boolean": (Types.BOOLEAN(), [True, np.bool_(True), False]),
    "big_int": (Types.BIG_INT(), [1, 1 << 80, np.int64(1)]),
    "decimal": (
        Types.BIG_DEC(10, 3),
        [Decimal("1.0"), Decimal("1.00"), 1, Decimal("-0"), Decimal("0.000"), Decimal("0.001")],
    ),
    "bytes": (Types.BYTES(), [b"a", bytearray(b"a"), memoryview(b"a"), b"b"]),
    "tuple": (
        Types.TUPLE([Types.STRING(), Types.INSTANT()]),
        [*product(["a", Colour.RED], INSTANTS), ["a", FIRST], Row("a", SECOND)],
    ),
    "row": (as_type("a string, b bigint"), [Row(a="x", b=1), ("x", 1), {"a": "x", "b": 1}]),
    "named tuple": (as_type(Pair), pairs(Pair)),
    "named tuple with an equality of its own": (as_type(OddPair), pairs(OddPair)),
    "class whose equality leaves something out": (as_type(Partly), pairs(Partly)),
    "class without equality": (as_type(Never), pairs(Never)),
    "class that cannot be hashed": (as_type(Unhashable), pairs(Unhashable)),
    "class in a tuple": (
        Types.TUPLE([as_type(Never), Types.LONG()]),
        [(Never("x", 1), 1), (Never("x", 1), 1), (Never("x", 2), 1)],
    ),
}


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize("name", KEYS)
def test_keys_are_equal_exactly_if_their_bytes_are(name, by_columns):
    kind, keys = KEYS[name]
    codec = KeyCodec((kind,), by_columns)
    formed = [codec.normalizer.normalize(key) for key in keys]
    assert codec.normalizer.are_normal(formed)
    for (key, one), (other, two) in product(zip(keys, formed, strict=True), repeat=2):
        same = codec.encode(key) == codec.encode(other)
        assert (one == two) is same
        assert not same or hash(one) == hash(two)
        assert not same or codec.group(one, 128) == codec.group(key, 128)


@pytest.mark.parametrize("name", KEYS)
def test_the_form_is_the_same_key(name):
    kind, keys = KEYS[name]
    codec = KeyCodec((kind,), by_columns=False)
    for key in keys:
        assert codec.encode(codec.normalizer.normalize(key)) == codec.encode(key)


@pytest.mark.parametrize("kind, key", [
    (Types.LONG(), True), (Types.LONG(), 1.0), (Types.LONG(), Decimal(1)),
    (Types.BOOLEAN(), 1), (Types.BIG_DEC(), 1.0), (Types.BYTES(), "a"),
    (Types.TUPLE([Types.LONG()]), (True,)),
])  # fmt: skip
def test_what_is_only_equal_in_python_is_refused(kind, key):
    codec = KeyCodec((kind,), by_columns=False)
    assert not codec.normalizer.are_normal([key])
    with pytest.raises(ElementTypeError):
        codec.normalizer.normalize(key)


@pytest.mark.parametrize("key", [None, (None, "a"), ("a", None)])
def test_null_is_no_key(key):
    codec = KeyCodec((Types.STRING(), Types.STRING()), by_columns=False)
    with pytest.raises(NullKeyError, match="is or contains null"):
        codec.normalizer.normalize(key)
