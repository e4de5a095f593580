"""A `Row` with names is taken by its names, wherever a row is accepted."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from local_engine import LocalEngine, collected, environment, source
from turnback import KeyedProcessFunction, Row, Types, ValueStateDescriptor
from turnback.driver.collection import encode_collection
from turnback.errors import ElementTypeError, NullKeyError
from turnback.values.columns import Batch
from turnback.values.freeze import Freezer
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import RowTypeInfo, TypeInfo

PLAIN = as_type("a bigint, b string")
NESTED = as_type("a bigint, b struct<x:bigint,y:string>, c array<struct<x:bigint,y:string>>")


class Pair(NamedTuple):
    a: int
    b: str


CASES = [
    (PLAIN, Row(b="two", a=1), (1, "two")),
    (PLAIN, Row(a=1, b="two"), (1, "two")),
    (PLAIN, Row(1, "two"), (1, "two")),
    (PLAIN, Row(f0=1, f1="two"), (1, "two")),
    (as_type(Pair), Row(b="two", a=1), Pair(1, "two")),
    (Types.ROW([Types.LONG(), Types.STRING()]), Row(a=1, b="two"), (1, "two")),
    (Types.ROW([Types.LONG(), Types.STRING()]), Row(f1="two", f0=1), (1, "two")),
    (NESTED, Row(c=[Row(y="z", x=3)], b=Row(y="two", x=2), a=1), (1, (2, "two"), [(3, "z")])),
    (NESTED, (1, Row(y="two", x=2), [Row(y="z", x=3)]), (1, (2, "two"), [(3, "z")])),
]


def through_columns(type_: TypeInfo, row: Any) -> Any:
    return Batch(type_, Batch(type_, [row]).arrow).rows[0]


def through_frozen_columns(type_: TypeInfo, row: Any) -> Any:
    return through_columns(type_, Freezer(type_).freeze(row))


def through_bytes(type_: TypeInfo, row: Any) -> Any:
    serializer = Serializer(type_)
    for _ in range(2):  # its class is known the second time
        result = serializer.decode(serializer.encode(row))
    return result


WAYS = [through_columns, through_frozen_columns, through_bytes]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("type_", "row", "expected"), CASES)
def test_names_decide(way: Any, type_: RowTypeInfo, row: Any, expected: Any) -> None:
    back = way(type_, row)
    assert back == expected
    assert back[0] == 1


def test_a_batch_may_mix_orders() -> None:
    rows = [Row(b="x", a=1), (2, "y"), Row(a=3, b="z"), {"b": "w", "a": 4}]
    back = Batch(PLAIN, Batch(PLAIN, rows).arrow).rows
    assert back == [(1, "x"), (2, "y"), (3, "z"), (4, "w")]


@pytest.mark.parametrize("way", WAYS)
def test_other_names_are_refused_by_name(way: Any) -> None:
    with pytest.raises(ElementTypeError, match=r"it has no b and there is no field c, d\. A Row"):
        way(PLAIN, Row(a=1, c=2, d=3))
    with pytest.raises(ElementTypeError, match=r"'b': .* it has no y and there is no field z"):
        way(NESTED, (1, Row(x=1, z="two"), []))


def test_keys() -> None:
    codec = KeyCodec((PLAIN,), by_columns=False)
    assert codec.encode(Row(b="two", a=1)) == codec.encode((1, "two"))
    assert codec.group(Row(b="two", a=1), 128) == codec.group((1, "two"), 128)
    assert codec.normalizer.normalize(Row(b="two", a=1)) == (1, "two")
    for null in (Row(a=1, b=None), Row(b=None, a=1), (1, None)):
        with pytest.raises(NullKeyError):
            codec.encode(null)
        with pytest.raises(NullKeyError):
            codec.normalizer.normalize(null)


def test_collections() -> None:
    rows = [Row(name="Ann", age=40), Row(age=50, name="Bob")]
    _, type_ = encode_collection(rows, None)
    assert Batch(type_, Batch(type_, rows).arrow).rows == [("Ann", 40), ("Bob", 50)]


class Swapped(KeyedProcessFunction):
    """Keeps rows in another order than declared, and gives them in yet another."""

    last = ValueStateDescriptor("last", Types.ROW_NAMED(["n", "k"], [Types.LONG(), Types.STRING()]))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.last.update(Row(k=value.k, n=value.n))
        kept = self.last.value()
        yield Row(first=kept[0], second=kept["k"], third=kept.n)


def test_state_and_output(tmp_path: Any) -> None:
    env = environment(1)
    stream = source(env, "src", "k string, n bigint").map(
        lambda r: Row(n=r.n, k=r.k), output_type="k string, n bigint"
    )
    out = stream.key_by("k").process(Swapped(), "third bigint, second string, first bigint")
    sink = collected(out, "sink")
    LocalEngine(env.plan(), tmp_path).epoch({"src": [("a", 1)]})
    assert sink.results == [(1, "a", 1)]


def test_in_asks_for_names() -> None:
    row = Row(post="a", n=None)
    assert "post" in row
    assert "a" not in row
    assert None not in row
    assert "post" in Row("post", "n")
