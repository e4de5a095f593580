"""A list as a source: types, positions, limits."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from turnback import Row, Types
from turnback.driver.collection import _encoded, _type_of, encode_collection
from turnback.errors import ElementTypeError, PlanError
from turnback.spark.sources import _CollectionReader
from turnback.values.columns import Batch


class Named(NamedTuple):
    k: str
    n: int


@dataclass
class Data:
    k: str
    n: int


ROW = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ({"k": "a", "n": 1}, ROW),
        (Row(k="a", n=1), ROW),
        (Named("a", 1), ROW),
        (Data("a", 1), ROW),
        (("a", 1), Types.ROW([Types.STRING(), Types.LONG()])),
        (Row("a", 1), Types.ROW([Types.STRING(), Types.LONG()])),
        ("a", Types.STRING()),
        (1, Types.LONG()),
        (b"", Types.BYTES()),
    ],
    ids=repr,
)
def test_the_type_of_a_list_is_that_of_its_first_element(first, expected):
    assert _type_of([first]) == expected


@pytest.mark.parametrize("first", [object(), None, ("a", None), {"k": {1}}, []])
def test_elements_without_a_type(first):
    with pytest.raises(PlanError, match="type that can be used"):
        _type_of([first])


def reader(*rows):
    return _CollectionReader(_encoded(Batch(Types.LONG(), list(rows)).arrow))


def read(reader, start, end):
    parts = reader.partitions({"index": start}, {"index": end})
    return [v for p in parts for batch in reader.read(p) for v in batch.column(0).to_pylist()]


def test_the_position_is_the_number_of_elements_read():
    whole = reader(1, 2, 3)
    assert whole.initialOffset() == {"index": 0}
    assert whole.latestOffset() == {"index": 3}
    assert read(whole, 0, 3) == [1, 2, 3]
    assert read(whole, 1, 2) == [2]
    assert read(whole, 3, 3) == []
    grown = reader(1, 2, 3, 4)
    assert read(grown, 3, grown.latestOffset()["index"]) == [4]
    assert reader().latestOffset() == {"index": 0}


def test_a_list_that_became_shorter():
    with pytest.raises(
        PlanError, match=r"3 elements were already read, but the list now has only 2"
    ):
        read(reader(1, 2), 3, 2)


def test_lists_that_cannot_be_read():
    with pytest.raises(PlanError, match="the list is empty, so its type must be given"):
        encode_collection([], None)
    with pytest.raises(ElementTypeError, match=r"from_collection: field 'n': 'two'"):
        encode_collection([("a", 1), ("b", "two")], "k string, n bigint")
    with pytest.raises(PlanError, match=r"too many to send.*use from_files"):
        encode_collection([b"x" * (1 << 24)] * 5, None)


def test_the_data_is_text_as_options_must_be():
    data = _encoded(Batch(ROW, [("a", 1)]).arrow)
    assert base64.b64decode(data)
