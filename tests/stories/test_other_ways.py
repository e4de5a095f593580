"""The script of a job is a plain Python file: it runs by other means as well."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from place import JOB, PATIENCE_S, TURNBACK, Place

from tiers import with_examples

SPARK_SUBMIT = Path(sys.executable).with_name("spark-submit")
BY = {
    "python": [sys.executable],
    "spark-submit": [str(SPARK_SUBMIT), "--master", "local[2]"],
}


@pytest.mark.parametrize("how", with_examples(BY, ("python",)))
def test_it_runs_without_turnback_run_and_is_seen_all_the_same(place: Place, how: str) -> None:
    place.feed()
    done = subprocess.run(
        [*BY[how], str(JOB), str(place.events), str(place.out), "--bounded"],
        env=place.environment | {"PYSPARK_PYTHON": sys.executable},
        cwd=place.directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert place.complete()
    (job,) = place.ask("list", "-a")
    assert (job["name"], job["state"], job["log"]) == ("counts", "FINISHED", None)
    assert "not started with" in place.turnback("logs", "counts", code=3)
    if how == "python":  # and turnback run goes on where it ended
        place.feed()
        place.turnback("run", JOB, place.events, place.out, "--bounded")
        assert place.complete()


def test_what_is_wrong_is_said_at_once(place: Place) -> None:
    run = ("run", "-d")
    assert "does not exist" in place.turnback(*run, "missing.py", code=2)
    assert "--fresh and -s" in place.turnback(*run, "--fresh", "-s", "latest", JOB, code=2)
    assert "did you mean" in place.turnback(*run, "-D", "parallelism.defalt=3", JOB, code=2)
    assert "OLD=NEW" in place.turnback(*run, "--rename", "users", JOB, code=2)
    assert "-p" in place.turnback(*run, "-p", "0", JOB, code=2)
    broken = place.turnback(*run, JOB, place.events, place.out, "--fail", code=1)
    assert "the script is broken" in broken
    usage = place.turnback(*run, JOB, code=1)
    assert "usage: counts.py" in usage
    missing = place.turnback(
        *run, "-s", place.directory / "nothing", JOB, place.events, place.out, code=3
    )
    assert "no savepoint at" in missing
    assert not place.out.exists()


@pytest.mark.exhaustive
@pytest.mark.no_jvm
def test_a_job_that_runs_already_is_left_alone(place: Place) -> None:
    place.feed()
    first = place.run()
    again = place.turnback("run", "-d", JOB, place.events, place.out, code=4)
    assert "already RUNNING" in again
    assert place.ask("status", "counts")["summary"]["driver"] == first["driver"]
    # queries and differences of what it has saved, while it runs
    place.await_complete()
    one = place.ask("savepoint", "counts", "--label", "one")
    place.feed()
    place.await_complete()
    place.ask("savepoint", "counts", "--label", "two")
    place.ask("stop", "counts", "--no-savepoint", "--yes")
    rows = place.ask("query", one["path"], "SELECT key, value FROM users_count ORDER BY key")
    assert [row["key"] for row in rows] == ["ann", "bob", "cid"]
    changed = place.ask("diff", "counts@one", "counts@two")
    assert "users" in json.dumps(changed)
    place.turnback("dispose", "counts@one", "--yes")
    assert {s["label"] for s in place.ask("savepoints", "counts")} == {"two"}
    assert TURNBACK.exists()
