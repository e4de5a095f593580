"""Jobs that write to MariaDB, killed at every step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kills_contract import (
    killed_everywhere,
    noticed_when_rows_vanish,
    noticed_without_transactions,
    settled_by_hand,
)
from ledger import Ledger, ledger_size
from ledger_targets import SqlTarget

from services.mariadb import PASSWORD, MariaDbServer


@pytest.fixture
def ledger(
    mariadb: MariaDbServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Ledger]:
    target = SqlTarget("mysql", mariadb, dict(mariadb.parameters), PASSWORD)
    size = ledger_size(files=getattr(request, "param", 45))
    made = Ledger(tmp_path, target, **size)
    yield made
    made.kill()
    mariadb.roll_back_prepared()


def test_killed_at_every_step(ledger: Ledger, mariadb: MariaDbServer) -> None:
    killed_everywhere(ledger)
    assert mariadb.prepared() == []


@pytest.mark.parametrize("ledger", [8], indirect=True)
def test_the_reader_notices_a_sink_without_transactions(ledger: Ledger) -> None:
    noticed_without_transactions(ledger)


@pytest.mark.parametrize("ledger", [8], indirect=True)
def test_what_a_dead_job_has_left_is_settled_by_hand(ledger: Ledger) -> None:
    settled_by_hand(ledger)


@pytest.mark.parametrize("ledger", [8], indirect=True)
def test_the_reader_notices_a_row_that_vanishes(ledger: Ledger) -> None:
    noticed_when_rows_vanish(ledger)
