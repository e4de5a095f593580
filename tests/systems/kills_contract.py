"""Drivers killed at named points, and what a reader of committed rows finds."""

from __future__ import annotations

import signal
from collections import Counter

from ledger import Ledger

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
    ledger.create_tables()
    with ledger.watched():
        ledger.run_with_kills(POINTS)
    assert ledger.reads > len(POINTS)
    assert ledger.problems == []
    assert ledger.examine() == []


def settled_by_hand(ledger: Ledger) -> None:
    """What a dead job has left is listed and committed without its program, and only once."""
    ledger.create_tables()
    driver = ledger.start(kill_at="after-manifest:3")
    driver.go()
    assert driver.wait() == -signal.SIGKILL, driver.errors
    ledger.write_behind_the_jobs_back()
    rows = ledger.turnback("transactions", "list", "ledger")
    states = Counter((row["sink"], row["state"]) for row in rows)
    assert states["rows", "promised"] >= 1, rows
    assert states["rows", "left behind"] == 1, rows
    assert all(row["what"].startswith("turnback:") for row in rows if row["sink"] == "rows"), rows
    settled = ledger.turnback("transactions", "commit", "ledger", "--yes")
    assert settled["transactions"]["rows"] == states["rows", "promised"]
    assert ledger.turnback("transactions", "list", "ledger") == []
    assert ledger.examine(partial=True) == []
    last = ledger.start()
    last.go()
    assert last.wait() == 0, last.errors
    assert ledger.examine() == []


def noticed_without_transactions(ledger: Ledger) -> None:
    """The negative control: rows that are committed at once come twice."""
    ledger.create_tables()
    ledger.run_with_kills(["before-manifest:2"], "--careless")
    found = ledger.examine()
    assert any("twice" in problem for problem in found), found
