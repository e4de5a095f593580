"""Our own sinks for tables keep what `check_sink` asks of sinks of users."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import TableNotFoundError
from pyiceberg.exceptions import NoSuchTableError
from table_support import PLACES, POSTS, Place

from turnback.connectors.tables.sink import TableSink
from turnback.testing import Promise, check_sink

ROWS = [(f"p{n}", n, "monday") for n in range(4)]


@pytest.mark.parametrize("how", [{}, {"mode": "upsert", "key": ["post"]}], ids=["append", "upsert"])
@pytest.mark.parametrize("format", PLACES)
def test_tables(tmp_path: Path, format: str, how: dict[str, Any]) -> None:
    places: dict[int, Place] = {}
    numbers = itertools.count()

    def make() -> TableSink:
        base = tmp_path / str(next(numbers))
        base.mkdir()
        place = PLACES[format](base)
        sink = place.sink(**how)
        places[id(sink)] = place
        return sink

    def read(sink: TableSink) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row.values()) for row in places[id(sink)].read().to_pylist()]
        except (TableNotFoundError, NoSuchTableError):
            return []

    report = check_sink(make, read, type=POSTS, elements=ROWS)
    assert {Promise.OWNED, Promise.FENCED, Promise.OTHER_PROCESS} <= set(report.kept)
