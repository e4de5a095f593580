"""The command that a savepoint shows starts the job as it was, also after an upgrade."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from place import JOB, TURNBACK, Place

pytestmark = [pytest.mark.exhaustive, pytest.mark.no_jvm]


def test_the_restore_command_after_an_upgrade(place: Place) -> None:
    script = place.directory / "my job.py"
    shutil.copyfile(JOB, script)
    place.feed()
    options = (
        "run",
        "-d",
        "--json",
        "--name",
        "mine",
        "-D",
        "execution.checkpointing.interval=200ms",
    )
    place.turnback(*options, script, place.events, place.out, "--uid", "people")
    place.await_complete()
    place.ask("savepoint", "mine", "--label", "first")
    place.ask("stop", "mine", "--yes", "--no-savepoint")
    # another version of the same script, with other arguments
    script.write_text(script.read_text().replace("says hello", "is new"))
    rename = ("--rename", "people=users")
    place.turnback(*options, *rename, script, place.events, place.out)
    place.feed()
    place.await_complete()
    place.ask("stop", "mine", "--yes", "--no-savepoint")

    rows = {row["label"]: row for row in place.ask("savepoints", "mine")}
    first, automatic = rows["first"], rows["before-upgrade"]
    for row in (first, automatic):
        assert row["script_changed"]
        assert "--uid people" in row["restore"] and "--rename" not in row["restore"]
    assert "the script has changed since" in _stderr(place, "savepoints", "mine", "--restore")
    old = place.turnback("inspect", "mine@first", "--script")
    assert "says hello" in old and "is new" not in old
    about = place.ask("inspect", "mine@first")["started"]
    assert about["versions"]["turnback"] and about["directory"] == str(place.directory)
    # what it printed brings the old program back to where it was, from anywhere
    script.write_text(old)
    shutil.rmtree(place.out)
    before = dict(place.fed)
    done = subprocess.run(
        ["sh", "-c", first["restore"].replace("turnback run", f"{TURNBACK} run --json --fork")],
        cwd="/",
        env=place.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["name"] == "mine"
    place.until(lambda: _most(place) == before, "it goes on from the savepoint")
    assert min(place.counted()["ann"]) > 1
    place.ask("cancel", "mine", "--yes")


def _most(place: Place) -> dict[str, int]:
    return {user: numbers[-1] for user, numbers in place.counted().items()}


def _stderr(place: Place, *words: str) -> str:
    command = [str(TURNBACK), *words]
    return subprocess.run(
        command,
        env=place.environment,
        cwd=place.directory,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
