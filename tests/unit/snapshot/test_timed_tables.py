"""Tables of state with a time to live: the time of the last update is a column."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from msgspec.structs import replace
from savepoint_support import rows_table, state_schema

from turnback import StateTtlConfig, Time, ValueStateDescriptor
from turnback.errors import StateError
from turnback.snapshot.diff import incomparable
from turnback.snapshot.evolution import Migration, Same, evolve_state, ttl_change
from turnback.snapshot.table import StateTable
from turnback.state.schema import KeySchema, StateTtl
from turnback.values.typeinfo import Types

TTL = StateTtl(ms=1000)
SUBS = {"value": (None, None), "list": (None, struct.pack(">QI", 3, 1)), "map": ("s", b"\xa1s")}


def at(ms: int, data: bytes) -> bytes:
    return ms.to_bytes(8, "big", signed=True) + data


def schema(kind: str = "value"):
    sub = Types.STRING() if kind == "map" else None
    return replace(state_schema(kind, sub=sub), ttl=TTL)


@pytest.mark.parametrize("kind", SUBS)
def test_the_time_comes_last_and_goes_back_exactly(kind):
    table = StateTable(schema(kind))
    assert table.arrow_schema.names[-2:] == ["value", "updated_at"]
    sub = SUBS[kind][1]
    data = [at(1_700_000_000_123, b"\x01"), at(-1, b"\x02"), at(0, b"\xc0")]
    rows = rows_table([1, 2, 3], [b"\xa1a", b"\xa1b", b"\xa1c"], [sub] * 3, data)
    typed = table.to_typed(rows)
    assert typed.schema.equals(table.arrow_schema)
    assert typed["value"].to_pylist() == [1, 2, None]
    times = typed["updated_at"].to_pylist()
    assert times[0] == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert times[2] == datetime(1970, 1, 1, tzinfo=UTC)
    assert table.to_rows(typed).equals(rows)
    assert table.to_rows(typed.slice(1, 1)).equals(rows.slice(1, 1))
    many = pa.concat_tables([rows] * 50)
    assert table.to_rows(table.to_typed(many)).equals(many)


def test_a_row_without_its_time_is_refused():
    table = StateTable(schema())
    typed = table.to_typed(rows_table([1], [b"\xa1a"], [None], [at(5, b"\x01")]))
    field = table.arrow_schema.field("updated_at").with_nullable(True)
    nothing = typed.set_column(3, field, pa.nulls(1, field.type))
    with pytest.raises(StateError, match=r"column updated_at: every row of a state with a time to"):
        table.to_rows(nothing)
    with pytest.raises(StateError, match="column updated_at"):
        table.to_typed(rows_table([1], [b"\xa1a"], [None], [b"\x01"]))


# -- changed programs


KEY = KeySchema(("string",), True)


def declared(ms: int | None, type_=int, **options):
    descriptor = ValueStateDescriptor("state", type_, **options)
    if ms is not None:
        config = StateTtlConfig.new_builder(Time(ms)).build()
        descriptor.enable_time_to_live(config)
    return descriptor


def test_only_switching_it_on_or_off_changes_what_is_stored():
    timed, plain = schema(), state_schema()
    assert evolve_state(timed, declared(1000), KEY) == Same()
    assert evolve_state(timed, declared(2000), KEY) == Same()
    assert evolve_state(plain, declared(None), KEY) == Same()
    assert evolve_state(plain, declared(1000), KEY) == Migration(
        "values are kept for 1 s, previously for ever", None
    )
    assert evolve_state(timed, declared(None), KEY) == Migration(
        "values are kept for ever, previously for 1 s", None
    )
    both = evolve_state(timed, declared(None, str, migrate=str), KEY)
    assert isinstance(both, Migration)
    assert both.why.endswith("by str(); values are kept for ever, previously for 1 s")
    assert both.convert is not None
    assert both.convert(5) == "5"


def test_what_is_said_of_a_change():
    assert ttl_change(TTL, StateTtl(ms=60_000)) == "values are kept for 1 min, previously for 1 s"
    assert ttl_change(TTL, replace(TTL, on_read=True)) == ""
    assert ttl_change(None, None) == ""
    assert incomparable(schema(), state_schema()) is None
