"""What a driver has printed, and what it prints next."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from turnback.cli.exit import ExitCode
from turnback.cli.tail import Tail, last_lines
from turnback.job.status import JobState, StatusUpdate
from unit.cli.cli_support import make_job


def with_log(root: Path, name: str, log: Path) -> None:
    job = make_job(root, name)
    job.directory.write_status(
        JobState.FINISHED, job.info.job_id, StatusUpdate(attempt=1, log=str(log))
    )


@pytest.mark.parametrize("most", [0, 1, 3, 100])
@pytest.mark.parametrize("text", ["", "one\n", "no end", "".join(f"{i}\n" for i in range(50))])
def test_the_last_lines_of_a_file(tmp_path: Path, text: str, most: int) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    lines = text.splitlines(keepends=True)
    assert last_lines(path, most) == (
        "".join(lines[len(lines) - most :] if most else []),
        len(text),
    )


def test_long_files_are_read_from_their_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"{i:099d}\n" for i in range(5_000)))
    shown, end = last_lines(path, 2_000)
    assert (len(shown), end) == (200_000, 500_000)
    assert shown.startswith(f"{3_000:099d}\n")


def test_what_is_added_is_shown_also_after_the_file_was_begun_anew(tmp_path: Path) -> None:
    path, out = tmp_path / "log", io.StringIO()
    tail = Tail(path, out)
    tail.show()
    path.write_text("first\n")
    tail.show()
    tail.show()
    path.write_text("new\n")
    tail.show()
    with path.open("ab") as file:
        file.write(b"\xff bytes\n")
    tail.show()
    assert out.getvalue() == "first\nnew\n\ufffd bytes\n"


def test_logs_shows_the_end_of_the_log(shell, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text("one\ntwo\nthree\n")
    with_log(shell.root, "orders", log)
    assert shell("logs", "orders").out == "one\ntwo\nthree\n"
    assert shell("logs", "-l", "1", "orders").out == "three\n"
    told = json.loads(shell("logs", "orders", "--json").out)
    assert told == {"job": "orders", "path": str(log), "lines": ["one", "two", "three"]}


def test_a_log_that_is_not_here_is_said_to_be_elsewhere(shell, tmp_path: Path) -> None:
    with_log(shell.root, "away", tmp_path / "gone.log")
    done = shell("logs", "away")
    assert done.code == ExitCode.NOT_FOUND
    assert "gone.log" in done.err
    make_job(shell.root, "plain")
    done = shell("logs", "plain")
    assert done.code == ExitCode.NOT_FOUND
    assert "turnback run" in done.err


def test_a_log_of_a_job_that_does_not_exist(shell) -> None:
    make_job(shell.root, "orders")
    done = shell("logs", "ordres")
    assert done.code == ExitCode.NOT_FOUND
    assert "'orders'" in done.err
