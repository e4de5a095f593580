"""Whole stories, told with the installed program and read with nothing of Turnback."""

from __future__ import annotations

import pytest
from place import JOB, Place


def test_run_savepoint_upgrade_rescale_fork_cancel_resume(place: Place) -> None:
    # A job is started and does its work.
    place.feed()
    job = place.run()
    assert (job["name"], job["state"], job["attempt"]) == ("counts", "RUNNING", 1)
    assert [j["name"] for j in place.ask("list")] == ["counts"]
    place.await_complete()
    status = place.ask("status", "counts")
    assert {o["uid"] for o in status["operators"]} >= {"events", "users", "user counts"}
    assert "the script says hello" in place.turnback("logs", "counts")

    # A savepoint of it is taken while it runs, and it is stopped.
    taken = place.ask("savepoint", "counts", "--label", "launch-day", "--note", "before v2")
    assert taken["state"] == "COMPLETED"
    at_savepoint = dict(place.fed)
    place.feed()
    place.await_complete()
    stopped = place.ask("stop", "counts", "--no-savepoint", "--yes")
    assert stopped["state"] == "COMPLETED"
    place.until(lambda: place.ask("status", "counts")["summary"]["state"] == "FINISHED", "stopped")

    # It is upgraded: another operator, from what it was stopped with; and rescaled.
    place.feed()
    place.run("-p", "3", script=("--kinds",))
    place.await_complete()
    detail = place.ask("status", "counts")
    (users,) = (o for o in detail["operators"] if o["uid"] == "users")
    assert users["parallelism"] == 3

    # A fork starts from the savepoint and counts on from there, while the job goes on.
    fork_out = place.directory / "fork-out"
    fork = place.run("-s", taken["path"], "--name", "counts-b", out=fork_out)
    assert fork["name"] == "counts-b"
    place.await_complete(fork_out, after=at_savepoint)
    place.feed()
    place.await_complete(fork_out, after=at_savepoint)
    place.await_complete()
    assert {j["name"] for j in place.ask("list", "-r")} == {"counts", "counts-b"}
    place.ask("cancel", "counts-b", "--yes")

    # It is cancelled with a savepoint, and goes on from its latest.
    cancelled = place.ask("cancel", "counts", "-s", "--yes")
    assert cancelled["path"].startswith(f"file://{place.savepoints}") or cancelled[
        "path"
    ].startswith(str(place.savepoints))
    place.until(lambda: not place.ask("list", "-r"), "both cancelled")
    assert {s["label"] for s in place.ask("savepoints", "counts")} >= {"launch-day"}
    place.feed()
    place.run("-s", "latest", script=("--kinds",))
    place.await_complete()
    assert place.ask("verify", "counts@latest")["problems"] == []
    place.ask("cancel", "counts", "--yes")


@pytest.mark.no_jvm
def test_a_program_that_drops_state_is_refused_before_anything_is_written(
    place: Place,
) -> None:
    place.feed()
    place.run()
    place.await_complete()
    place.ask("stop", "counts", "--yes")
    dropped = ("--without-users", "--kinds")
    refused = place.turnback("run", "-d", JOB, place.events, place.out, *dropped, code=5)
    assert "'users'" in refused and "--allow" in refused
    checked = place.turnback(
        "check", "-s", "latest", JOB, place.events, place.out, *dropped, code=5
    )
    assert "unclaimed" in checked
    allowed = place.run("--allow", "users", script=dropped)
    assert allowed["state"] == "RUNNING"
    place.ask("cancel", "counts", "--yes")
