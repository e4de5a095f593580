"""Drivers killed at named points, and what a reader of committed rows finds."""

from __future__ import annotations

import signal
from collections import Counter

from ledger import Ledger
from ledger_targets import SqlTarget

POINTS = [
    "before-prepare:2",
    "after-prepare:3",
    "before-manifest:2",  # faults 2: prepared, not promised
    "after-manifest:2",  # faults 3: promised, not committed
    "before-prepared-commit:2",
    "between-prepared-commits:1",
    "after-prepared-commit:2",
    "between-sinks:1",  # faults 4
    "before-publish:2",
    "inside-publish:2",
    "after-publish:2",
    "after-sink-commit:2",  # faults 5
]


def killed_everywhere(ledger: Ledger) -> None:
    """Kill a driver at each point, and expect what a run without faults writes."""
    with ledger.watched():
        ledger.run_with_kills(POINTS)
    assert ledger.reads > len(POINTS)
    assert ledger.problems == []
    assert ledger.examine() == []


def settled_by_hand(ledger: Ledger) -> None:
    """What a dead job has left is listed and committed without its program, and only once."""
    driver = ledger.start_to_kill("after-manifest:3")
    driver.go()
    assert driver.wait() == -signal.SIGKILL, driver.errors
    ledger.write_behind_the_jobs_back()
    rows = ledger.turnback("transactions", "list", "ledger")
    states = Counter((row["sink"], row["state"]) for row in rows)
    assert states["rows", "in doubt"] >= 1, rows
    assert states["rows", "orphaned"] == 1, rows
    assert all(row["what"].startswith("turnback:") for row in rows if row["sink"] == "rows"), rows
    settled = ledger.turnback("transactions", "commit", "ledger", "--yes")
    assert settled["transactions"]["rows"] == states["rows", "in doubt"]
    assert ledger.turnback("transactions", "list", "ledger") == []
    assert ledger.examine(partial=True) == []
    last = ledger.start()
    last.go()
    assert last.wait() == 0, last.errors
    assert ledger.examine() == []


def noticed_without_transactions(ledger: Ledger) -> None:
    """The negative control: rows that are committed at once come twice."""
    ledger.run_with_kills(["before-manifest:2"], "--careless")
    found = ledger.examine()
    assert any("twice" in problem for problem in found), found


def noticed_when_rows_vanish(ledger: Ledger) -> None:
    """The negative control of the reader: a row was there, and is gone."""
    assert isinstance(ledger.target, SqlTarget)
    server = ledger.target.server
    server.run("INSERT INTO sequence VALUES ('k0', 0, -1), ('k0', 1, 0)")
    assert ledger.examine(partial=True) == []
    server.run("DELETE FROM sequence WHERE seq = 1")
    assert ledger.examine(partial=True) == ["k0: 1 rows have vanished"]
