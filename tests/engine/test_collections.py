"""Lists of every type as sources."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from job_support import Jobs
from turnback import CollectSink, Row, Types

NESTED = Types.ROW_NAMED(["at", "tags"], [Types.SQL_TIME(), Types.LIST(Types.STRING())])
VALUES: dict[str, tuple[Any, list[Any]]] = {
    "string": (Types.STRING(), ["a", "", "ü"]),
    "byte": (Types.BYTE(), [-128, 127]),
    "short": (Types.SHORT(), [-(2**15), 2**15 - 1]),
    "int": (Types.INT(), [-(2**31), 2**31 - 1]),
    "long": (Types.LONG(), [-(2**63), 2**63 - 1]),
    "big_int": (Types.BIG_INT(), [10**37, -1]),
    "float": (Types.FLOAT(), [0.5, -2.0]),
    "double": (Types.DOUBLE(), [0.1, 1e300]),
    "decimal": (Types.BIG_DEC(10, 2), [Decimal("1.25"), Decimal("-99999999.99")]),
    "boolean": (Types.BOOLEAN(), [True, False]),
    "bytes": (Types.BYTES(), [b"", b"\x00\xff"]),
    "date": (Types.SQL_DATE(), [date(1970, 1, 1), date(2026, 11, 17)]),
    "time": (Types.SQL_TIME(), [time(0), time(12, 30, 1), time(23, 59, 59, 999_999)]),
    "timestamp": (Types.SQL_TIMESTAMP(), [datetime(2026, 11, 17, 1, 2, 3, 4)]),
    "instant": (Types.INSTANT(), [datetime(2026, 11, 17, 1, 2, 3, 4, tzinfo=UTC)]),
    "list": (Types.LIST(Types.LONG()), [[1, 2], []]),
    "times": (Types.LIST(Types.SQL_TIME()), [[time(1), time(2)]]),
    "map": (Types.MAP(Types.STRING(), Types.SQL_TIME()), [{"a": time(1)}, {}]),
    "tuple": (Types.TUPLE([Types.LONG(), Types.SQL_TIME()]), [(1, time(2))]),
    "row": (Types.ROW([Types.LONG(), Types.STRING()]), [Row(1, "a")]),
    "nested": (
        Types.ROW_NAMED(["n", "inner"], [Types.LONG(), NESTED]),
        [Row(inner=Row(tags=["x"], at=time(3)), n=1)],
    ),
    "pickled": (Types.PICKLED_BYTE_ARRAY(), [{"a": {1, 2}}]),
}
EXPECTED: dict[str, list[Any]] = {"nested": [(1, (time(3), ["x"]))]}


@pytest.mark.parametrize("name", VALUES)
def test_every_type(jobs: Jobs, name: str) -> None:
    type_, values = VALUES[name]
    sink = CollectSink()
    env = jobs.env()
    env.from_collection(values, type_, uid="list").map(lambda v: v, type_).uid("map").sink_to(
        sink
    ).uid("out")
    env.execute("job")
    assert sink.results == EXPECTED.get(name, values)


def test_all_types_at_once(jobs: Jobs) -> None:
    """One row of them, with one value of each and with none."""
    type_ = Types.ROW_NAMED(list(VALUES), [t for t, _ in VALUES.values()])
    row = tuple(values[0] for _, values in VALUES.values())
    expected = tuple(EXPECTED.get(name, values)[0] for name, (_, values) in VALUES.items())
    nulls = (None,) * len(VALUES)
    sink = CollectSink()
    env = jobs.env()
    listed = env.from_collection([row, nulls], type_, uid="list")
    listed.map(lambda v: v, type_).uid("map").sink_to(sink).uid("out")
    env.execute("job")
    assert sink.results == [expected, nulls]
