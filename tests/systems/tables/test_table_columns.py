"""What a table of any format must be like, what it can hold, and arguments that do not fit."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from table_support import A, C, Job

from turnback import Types
from turnback.errors import ConfigurationError


def test_differences_to_the_table_are_named(job):
    schema = pa.schema([("post", pa.int64()), ("day", pa.string()), ("extra", pa.string())])
    job.place.create(schema)
    with pytest.raises(ConfigurationError) as refused:
        job.sink.check_target(job.context())
    for part in ("column 'post' is int64 in the table, string here", "no column 'n' (int64)"):
        assert part in str(refused.value)
    assert "'day'" not in str(refused.value)


def test_a_column_that_must_not_be_null_is_refused(job):
    fields = [
        pa.field("post", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("day", pa.string()),
    ]
    job.place.create(pa.schema(fields))
    with pytest.raises(ConfigurationError, match="column 'post' must not be null in the table"):
        job.sink.check_target(job.context())


def test_columns_may_be_in_another_order_and_more(job):
    names = ["day", "extra", "n", "post"]
    job.place.create(pa.schema([(n, pa.int64() if n == "n" else pa.string()) for n in names]))
    job.start().commit([job.write(A, C)])
    assert job.rows() == [A, C]
    assert job.place.read()["extra"].null_count == 2


def test_a_table_with_other_partitions_is_refused(job):
    job.start()
    with pytest.raises(ConfigurationError, match="is partitioned not at all"):
        Job(job.place, partition_by=["day"]).start()


def test_partition_columns(place):
    type_ = Types.ROW_NAMED(
        ["n", "text", "number", "day", "flag", "at"],
        [
            Types.LONG(),
            Types.STRING(),
            Types.INT(),
            Types.SQL_DATE(),
            Types.BOOLEAN(),
            Types.INSTANT(),
        ],
    )
    job = Job(place, type_, partition_by=["text", "number", "day", "flag", "at"])
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    rows = [
        (1, "plain", 1, date(2026, 1, 2), True, at),
        (2, "a/ b=%'é%2F", -1, date(1969, 12, 31), False, at),
        (3, "plain", 1, date(2026, 1, 2), True, at),
        (4, None, None, None, None, None),
    ]
    committer = job.start()
    committer.commit([job.write(*rows)])
    assert job.rows() == sorted(rows, key=repr)
    assert len(job.place.referenced()) == 3


def test_values_of_all_types_come_back(place):
    instant = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    nested = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.STRING())])
    columns = {
        "bytes": (Types.BYTES(), b"\0\xff"),
        "byte": (Types.BYTE(), -128),
        "short": (Types.SHORT(), 2**15 - 1),
        "int": (Types.INT(), -(2**31)),
        "long": (Types.LONG(), 2**63 - 1),
        "big": (Types.BIG_INT(), 10**38 - 1),
        "float": (Types.FLOAT(), 0.5),
        "double": (Types.DOUBLE(), float("inf")),
        "money": (Types.BIG_DEC(12, 2), Decimal("-1234567890.12")),
        "exact": (Types.BIG_DEC(38, 18), Decimal("12345678901234567890.123456789012345678")),
        "date": (Types.SQL_DATE(), date(1, 1, 1)),
        "instant": (Types.INSTANT(), instant),
        "local": (Types.SQL_TIMESTAMP(), instant.replace(tzinfo=None)),
        "list": (Types.LIST(Types.LONG()), [1, None, 3]),
        "map": (Types.MAP(Types.STRING(), Types.LONG()), {"x": 1, "y": None}),
        "row": (nested, (1, ["é"])),
    }
    type_ = Types.ROW_NAMED(list(columns), [kind for kind, _ in columns.values()])
    job = Job(place, type_)
    values = tuple(value for _, value in columns.values())
    job.start().commit([job.write(values, (None,) * len(columns))])
    full, empty = sorted(job.place.read().to_pylist(), key=lambda row: row["long"] is None)
    assert set(empty.values()) == {None}
    expected = dict(zip(columns, values, strict=True)) | {"row": {"a": 1, "b": ["é"]}}
    assert {**full, "map": dict(full["map"])} == expected


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "replace"}, "mode must be 'append' or 'upsert'"),
        ({"mode": "upsert"}, "require each other"),
        ({"key": ["post"]}, "require each other"),
        ({"partition_by": ["day", "day"]}, "list of distinct names"),
        ({"partition_by": [3]}, "name of a column"),
    ],
)
def test_arguments_that_cannot_be_used(place, arguments, reason):
    with pytest.raises(ConfigurationError, match=reason):
        place.sink(**arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"partition_by": ["week"]}, "'week', which the stream does not have; .* post, n, day"),
        ({"mode": "upsert", "key": ["id"]}, "key contains 'id', which the stream does not have"),
        (
            {"partition_by": ["post", "n", "day"]},
            "needs at least one column that is not in partition_by",
        ),
    ],
)
def test_arguments_that_do_not_fit_the_stream(place, arguments, reason):
    job = Job(place, **arguments)
    with pytest.raises(ConfigurationError, match=reason):
        job.sink.check_target(job.context())
    assert not place.root.exists()
