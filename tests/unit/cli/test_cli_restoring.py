"""How far a restore is, as `status` and a detached start show it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from fake_job import Driver
from turnback.cli import restoring
from turnback.cli.context import Cli
from turnback.cli.restoring import restore_bar
from turnback.job.run import RunDirectory, RunningJob
from turnback.job.status import JobState, RestoreProgress
from unit.cli.cli_support import make_job

RESTORE = RestoreProgress(
    what="importing /saved/one", done=0.456, entries=9_000, since_ms=1, moved_ms=1, left_s=200.0
)


def test_status_tells_how_far_it_is(shell):
    make_job(shell.root, "orders", JobState.CREATED)
    driver = Driver(shell.root, "clicks").say(JobState.CREATED, restore=RESTORE)
    shown = shell("status", "clicks").out
    assert (
        "restoring       importing /saved/one: 45 % of about 9000 entries, done in about 3 min"
        in shown
    )
    assert shell("status", "clicks", "--json").json["summary"]["restore"]["done"] == 0.456
    assert "restoring" not in shell("status", "orders").out
    driver.say(JobState.FAILED)  # with the last it said of that
    assert "restoring" not in shell("status", "clicks").out


@pytest.fixture
def launched(tmp_path: Path) -> tuple[RunDirectory, Driver]:
    run, driver = RunDirectory(tmp_path / "run"), Driver(tmp_path / "jobs", "clicks")
    run.path.mkdir()
    job = RunningJob(
        name="clicks", job_id=driver.info.job_id, root=driver.root, directory=driver.storage.uri
    )
    run.set_job(job)
    return run, driver


def bar_of(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    out = io.StringIO()
    cli = Cli()
    console = Console(file=out, force_terminal=terminal, width=120)
    monkeypatch.setattr(cli.out, "stderr", lambda: console)
    monkeypatch.setattr(restoring, "_LOOK_S", 0.0)
    with restore_bar(cli, run) as show:
        show()
    return out.getvalue()


def test_a_bar_shows_it_to_people(launched, monkeypatch):
    run, driver = launched
    assert "%" not in bar_of(run, monkeypatch, terminal=True)  # there is no status yet
    driver.say(JobState.CREATED, restore=RESTORE)
    shown = bar_of(run, monkeypatch, terminal=True)
    assert "importing /saved/one" in shown
    assert "46%" in shown
    assert "done in about 3 min" in shown
    assert bar_of(run, monkeypatch, terminal=False) == ""
    driver.storage.put("status.json", b"{")
    assert "%" not in bar_of(run, monkeypatch, terminal=True)
