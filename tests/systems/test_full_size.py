"""A little of what `full_size.py` does at length, where no server is needed."""

from __future__ import annotations

from pathlib import Path

import full_size
import pytest
from ledger_targets import TableTarget

pytestmark = pytest.mark.exhaustive


@pytest.mark.parametrize("kind", full_size.OWN)
def test_forty_kills_are_at_every_point_and_at_random_moments(kind: str) -> None:
    planned = full_size.plan(kind, 40, seed=7)
    named = {kill.partition(":")[0] for kill in planned if isinstance(kill, str)}
    assert named == {*full_size.EVERYWHERE, *full_size.OWN[kind]}
    assert sum(isinstance(kill, float) for kill in planned) == 20
    assert full_size.plan(kind, 40, seed=7) == planned != full_size.plan(kind, 40, seed=8)


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_ledger_in_two_tables_adds_up_after_kills(kind: str, tmp_path: Path) -> None:
    target = TableTarget(kind, tmp_path / "tables")
    ledger = full_size.run(target, tmp_path, kills=2, keys=20, length=16, seed=7)
    assert ledger.reads
    assert ledger.problems == []
