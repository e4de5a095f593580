"""A driver hangs: everybody can see it, and somebody is told."""

from __future__ import annotations

import json
import os
import signal

import pytest
from place import Place

pytestmark = pytest.mark.exhaustive

WATCHED = ("-D", "watchdog.no-heartbeat=3 s", "-D", "restart-strategy.type=none")


@pytest.mark.no_jvm
def test_a_driver_that_hangs_is_seen_and_told_and_so_is_its_end(place: Place) -> None:
    told = place.directory / "told"
    page = place.directory / "page"
    page.write_text(f"#!/bin/sh\ncat >> {told}\necho >> {told}\n")
    page.chmod(0o755)

    def events() -> list[str]:
        lines = told.read_text().splitlines() if told.exists() else []
        return [json.loads(line)["event"] for line in lines]

    def summary() -> dict[str, object]:
        return place.ask("status", "counts")["summary"]  # type: ignore[no-any-return]

    place.feed()
    job = place.run(*WATCHED, "-D", f"alerts.command={page}")
    place.await_complete()
    pid = job["driver"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        place.feed()
        hung = place.until(lambda: (s := summary())["state"] == "STALLED" and s, "it is seen")
        assert hung["driver"]["alive"]
        assert hung["problem"].startswith("its driver has not reported for ")
        place.until(lambda: events() == ["stalled"], "somebody is told")
        assert "STALLED" in place.turnback("watch", "--once", code=10)
    finally:
        os.kill(pid, signal.SIGCONT)
    place.await_complete()
    place.until(lambda: summary()["state"] == "RUNNING", "it goes on")
    place.until(lambda: events() == ["stalled", "recovered"], "somebody is told")
    place.kill(pid)
    place.until(lambda: place.launch().end() is not None, "the launch has ended")
    assert events() == ["stalled", "recovered", "failed"]
    assert "stalled: job 'counts' is STALLED" in place.turnback("logs", "counts")
