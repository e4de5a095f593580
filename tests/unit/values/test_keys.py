import pickle
from collections import Counter
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnback.errors import ConfigurationError, ElementTypeError, NullKeyError, PlanError
from turnback.values.hints import as_type
from turnback.values.keys import KeyCodec, group_range, partition_of
from turnback.values.row import Row
from turnback.values.typeinfo import TypeInfo, Types
from type_strategies import ELEMENTS

STRING, LONG = Types.STRING(), Types.LONG()


class Pair(NamedTuple):
    a: str
    b: int


@given(
    ELEMENTS.key_types().flatmap(
        lambda t: st.tuples(st.just(t), ELEMENTS.values(t, nullable=False))
    )
)
def test_any_key_reads_back(given_: tuple[TypeInfo, Any]) -> None:
    type_, key = given_
    for by_columns in (True, False):
        codec = KeyCodec((type_,), by_columns)
        data = codec.encode(key)
        assert codec.decode(data) == key
        assert codec.encode(codec.decode(data)) == data
        group = codec.group(key, 128)
        assert 0 <= group < 128
        assert pickle.loads(pickle.dumps(codec)).group(codec.decode(data), 128) == group


@pytest.mark.parametrize(
    "key", ["", "\0", "a\0b", "Zoë", "Zoe\u0308", "x" * (1 << 20), "😀"], ids=lambda k: k[:8]
)
def test_odd_strings(key: str) -> None:
    codec = KeyCodec((STRING,), by_columns=True)
    assert codec.decode(codec.encode(key)) == key
    assert 0 <= codec.group(key, 7) < 7


def test_composed_and_decomposed_text_are_different_keys() -> None:
    codec = KeyCodec((STRING,), by_columns=False)
    assert codec.encode("Zoë") != codec.encode("Zoe\u0308")


def test_several_types_make_a_tuple() -> None:
    codec = KeyCodec((STRING, LONG), by_columns=True)
    data = codec.encode(("a", 1))
    assert codec.decode(data) == ("a", 1)
    assert type(codec.decode(data)) is tuple
    for same in (Row("a", 1), Row(x="a", y=1), Pair("a", 1), ["a", 1]):
        assert codec.encode(same) == data
        assert codec.group(same, 1000) == codec.group(("a", 1), 1000)
    nested = KeyCodec((as_type(Pair), LONG), by_columns=False)
    assert nested.decode(nested.encode((("a", 1), 2))) == (Pair("a", 1), 2)


EQUAL = [
    ("decimal(10,4)", [Decimal("1.5"), Decimal("1.50"), Decimal("15E-1")]),
    ("decimal(10,4)", [Decimal("0"), Decimal("-0"), Decimal("0.0000"), 0]),
    ("decimal(38,18)", [Decimal("10"), Decimal("1E+1"), 10]),
    ("timestamp", [datetime(2020, 1, 1, 12, tzinfo=UTC),
                   datetime(2020, 1, 1, 17, tzinfo=timezone(timedelta(hours=5)))]),
    ("timestamp_ntz", [datetime(2020, 1, 1, 1, fold=0), datetime(2020, 1, 1, 1, fold=1)]),
    ("struct<d:decimal(10,4),s:string>", [(Decimal("1.5"), "a"), (Decimal("1.50"), "a")]),
]  # fmt: skip


@pytest.mark.parametrize(("ddl", "keys"), EQUAL, ids=str)
@pytest.mark.parametrize("by_columns", [True, False])
def test_equal_keys_have_equal_bytes_and_groups(
    ddl: str, keys: list[Any], by_columns: bool
) -> None:
    codec = KeyCodec((as_type(ddl),), by_columns)
    assert len({codec.encode(k) for k in keys}) == 1
    assert len({codec.group(k, 1_000_003) for k in keys}) == 1


@pytest.mark.parametrize(
    "type_",
    [
        Types.FLOAT(),
        Types.DOUBLE(),
        Types.LIST(LONG),
        Types.MAP(STRING, LONG),
        Types.PICKLED_BYTE_ARRAY(),
        Types.ROW([STRING, Types.DOUBLE()]),
        Types.ROW([Types.ROW([Types.LIST(LONG)])]),
    ],
    ids=str,
)
def test_types_that_are_no_keys(type_: TypeInfo) -> None:
    for types in ((type_,), (LONG, type_)):
        with pytest.raises(PlanError, match=r"cannot be a key: .*; (cast it|key by)"):
            KeyCodec(types, by_columns=True)


def test_a_key_has_at_least_one_type() -> None:
    with pytest.raises(PlanError, match="at least one"):
        KeyCodec((), by_columns=True)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(
    ("types", "key"),
    [
        ((STRING,), None),
        ((Types.BIG_DEC(),), None),
        ((STRING, LONG), None),
        ((STRING, LONG), ("a", None)),
        ((STRING, Types.BIG_DEC()), ("a", None)),
        ((Types.ROW([STRING]),), (None,)),
        ((Types.ROW([STRING]), LONG), ((None,), 1)),
        ((Types.ROW([STRING]), LONG), (None, 1)),
    ],
    ids=str,
)
def test_null_keys_are_refused(types: tuple[TypeInfo, ...], key: Any, by_columns: bool) -> None:
    codec = KeyCodec(types, by_columns)
    with pytest.raises(NullKeyError, match="filter these"):
        codec.encode(key)
    with pytest.raises(NullKeyError, match="filter these"):
        codec.group(key, 128)


@pytest.mark.parametrize("by_columns", [True, False])
@pytest.mark.parametrize(
    ("types", "key"),
    [
        ((LONG,), "1"),
        ((LONG,), 1.0),
        ((LONG,), True),
        ((LONG,), 2**63),
        ((Types.INT(),), 2**31),
        ((Types.BYTE(),), 128),
        ((Types.SHORT(),), -(2**15) - 1),
        ((STRING,), b"a"),
        ((STRING,), "\ud800"),
        ((STRING, LONG), ("a",)),
        ((STRING, LONG), ("a", 1, 2)),
        ((STRING, LONG), "ab"),
        ((Types.BIG_DEC(4, 2),), Decimal("1.001")),
        ((Types.SQL_DATE(),), datetime(2020, 1, 1)),
        ((Types.INSTANT(),), datetime(2020, 1, 1)),
    ],
    ids=str,
)
def test_wrong_keys_are_refused(types: tuple[TypeInfo, ...], key: Any, by_columns: bool) -> None:
    codec = KeyCodec(types, by_columns)
    with pytest.raises(ElementTypeError):
        codec.encode(key)
    with pytest.raises(ElementTypeError):
        codec.group(key, 128)


def test_groups_are_what_is_stored_for_ever() -> None:
    # Computed by Spark 4.2: select pmod(xxhash64(...), 1000003), of columns or of the bytes.
    assert KeyCodec((LONG,), True).group(42, 1_000_003) == GOLDEN[0]
    assert KeyCodec((STRING,), True).group("Spark", 1_000_003) == GOLDEN[1]
    assert KeyCodec((STRING, LONG), True).group(("a", -1), 1_000_003) == GOLDEN[2]
    assert KeyCodec((Types.SQL_DATE(),), True).group(date(2020, 1, 1), 1_000_003) == GOLDEN[3]
    assert KeyCodec((STRING,), False).group("Spark", 1_000_003) == GOLDEN[4]
    assert KeyCodec((STRING, LONG), False).group(("a", -1), 1_000_003) == GOLDEN[5]


GOLDEN = [124398, 458073, 483947, 308729, 648299, 758451]


def test_groups_are_spread() -> None:
    codec = KeyCodec((STRING,), by_columns=True)
    counts = Counter(codec.group(f"user-{i}", 128) for i in range(12_800))
    assert len(counts) == 128
    assert max(counts.values()) < 160


@given(st.integers(1, 600).flatmap(lambda m: st.tuples(st.integers(1, m), st.just(m))))
def test_partitions_cover_all_groups_in_order(given_: tuple[int, int]) -> None:
    parallelism, groups = given_
    found = []
    for partition in range(parallelism):
        low, high = group_range(partition, parallelism, groups)
        assert low <= high
        found += [(g, partition) for g in range(low, high + 1)]
    assert found == [(g, partition_of(g, parallelism, groups)) for g in range(groups)]


@pytest.mark.parametrize(
    ("partition", "parallelism", "groups"), [(0, 0, 8), (0, 9, 8), (-1, 2, 8), (2, 2, 8)]
)
def test_ranges_that_cannot_be(partition: int, parallelism: int, groups: int) -> None:
    with pytest.raises(ConfigurationError):
        group_range(partition, parallelism, groups)
