"""`list`, `status`, `checkpoints` and `savepoints`, as a person calls them."""

import json

import pytest

from turnback.cli.exit import ExitCode
from turnback.job.status import JobState
from unit.cli.cli_support import TOTAL, make_job


@pytest.fixture
def jobs(shell):
    return {
        "orders": make_job(shell.root, "orders"),
        "clicks": make_job(shell.root, "clicks", JobState.RUNNING),
        "clients": make_job(shell.root, "clients", JobState.FAILED, cause="boom\x1b[31m\nsecond"),
    }


def column(done, name):
    head, *rows = [line.split("  ") for line in done.lines]
    at = [cell.strip() for cell in head if cell.strip()].index(name)
    return [[cell.strip() for cell in row if cell.strip()][at] for row in rows]


def test_list_leaves_out_jobs_that_are_over(shell, jobs):
    assert column(shell("list"), "NAME") == ["clicks"]
    assert column(shell("list", "-a"), "NAME") == ["clicks", "clients", "orders"]
    assert column(shell("list", "-r"), "NAME") == ["clicks"]


def test_list_says_what_each_job_does(shell, jobs):
    found = {job["name"]: job for job in shell("list", "-a", "--json").json}
    assert {name: job["state"] for name, job in found.items()} == {
        "orders": "FINISHED",
        "clicks": "RUNNING",
        "clients": "FAILED",
    }
    assert found["orders"]["checkpoint"] == 3


def test_plain_output_is_one_line_a_job_without_anything_that_moves_the_cursor(shell, jobs):
    done = shell("list", "-a")
    assert len(done.lines) == 4
    assert "\x1b" not in done.out
    assert r"boom\x1b[31m\nsecond" in done.out
    assert not any(char in done.out for char in "│─┃━")


def test_json_may_be_asked_for_before_and_behind_the_command(shell, jobs):
    assert shell("--json", "list", "-a").json == shell("list", "-a", "--json").json


def test_root_may_be_given_before_and_behind_the_command(shell, jobs, tmp_path):
    other = tmp_path / "elsewhere"
    make_job(other, "fraud")
    assert column(shell("--root", str(other), "list", "-a"), "NAME") == ["fraud"]
    assert column(shell("list", "-a", "--root", str(other)), "NAME") == ["fraud"]
    assert column(shell("list", "-a", "-D", f"state.checkpoints.dir={other}"), "NAME") == ["fraud"]


def test_an_empty_and_a_missing_root_have_no_jobs(shell):
    missing = shell("list")
    assert (missing.code, len(missing.lines)) == (0, 1)
    assert f"no jobs in {shell.root}" in missing.err
    shell.root.mkdir()
    assert shell("list", "--json").json == []


def test_a_root_that_is_a_file_is_an_error(shell):
    shell.root.write_text("x")
    done = shell("list")
    assert done.code == ExitCode.USAGE
    assert str(shell.root) in done.err


def test_one_damaged_job_hides_no_other(shell, jobs):
    (shell.root / "clicks" / "job.json").write_text("{")
    done = shell("list", "-a", "--json")
    assert {job["name"]: job["state"] for job in done.json} == {
        "orders": "FINISHED",
        "clicks": "UNREADABLE",
        "clients": "FAILED",
    }
    assert column(shell("list"), "STATE") == ["UNREADABLE"]


def test_contradicting_options_are_refused(shell):
    done = shell("list", "-r", "-a")
    assert done.code == ExitCode.USAGE
    assert "-r and -a" in done.err


def test_status_shows_a_job_by_name_id_and_prefix(shell, jobs):
    id = jobs["orders"].info.job_id
    wanted = shell("status", "orders").out
    assert shell("status", "ord").out == wanted
    assert shell("status", id).out == wanted
    assert shell("status", id[:6]).out == wanted
    assert shell("status", str(shell.root / "orders")).out == wanted
    facts = dict(line.split(None, 1) for line in wanted.split("\n\n")[0].splitlines())
    assert facts["state"] == "FINISHED"
    assert facts["checkpoint"] == "chk-3"
    assert "count" in wanted and "keyed_process" in wanted


def test_status_prints_warnings_to_stderr(shell, jobs):
    assert "warning: the operator 'x' has no uid" in shell("status", "orders").err


def test_a_wrong_name_suggests_the_nearest(shell, jobs):
    done = shell("status", "oders")
    assert done.code == ExitCode.NOT_FOUND
    assert "did you mean 'orders'?" in done.err
    assert done.out == ""


def test_an_ambiguous_prefix_names_the_jobs(shell, jobs):
    done = shell("status", "cli", "--json")
    assert done.code == ExitCode.USAGE
    assert done.error["kind"] == "AmbiguousJobError"
    assert done.error["exit_code"] == 2
    assert "'clicks', 'clients'" in done.error["message"]


def test_no_job_at_all_says_how_to_look_elsewhere(shell):
    done = shell("status", "orders")
    assert done.code == ExitCode.NOT_FOUND
    assert "--root" in done.err


@pytest.mark.parametrize("name", ["../orders", "/etc", "", "%2e%2e", "a/../../b"])
def test_a_hostile_name_is_not_found(shell, jobs, name):
    assert shell("status", name).code == ExitCode.NOT_FOUND


def test_checkpoints_are_listed_newest_first(shell, jobs):
    done = shell("checkpoints", "orders")
    assert column(done, "STATUS") == ["FAILED", "COMPLETED", "COMPLETED"]
    assert "the disk is full" in done.out
    found = shell("checkpoints", "orders", "--json").json
    assert (found["completed"], found["failed"]) == (2, 1)
    assert [row["number"] for row in found["rows"]] == [None, 3, 2]


def test_checkpoints_can_be_limited_to_what_can_be_started_from(shell, jobs):
    found = shell("checkpoints", "orders", "--retained", "-n", "1", "--json").json
    assert [row["number"] for row in found["rows"]] == [3]
    (path,) = shell("checkpoints", "orders", "--paths", "-n", "1").lines
    assert path.endswith("/orders/checkpoints/chk-3.json")


@pytest.mark.parametrize("limit", ["0", "-1", "many"])
def test_a_wrong_limit_is_refused(shell, jobs, limit):
    done = shell("checkpoints", "orders", "--limit", limit)
    assert done.code == ExitCode.USAGE
    assert "--limit" in done.err


def test_savepoints_of_one_and_of_all_jobs(shell, jobs, tmp_path):
    jobs["orders"].savepoint(str(tmp_path / "sp" / "a"), (TOTAL, {"x": 1}), label="first")
    jobs["clicks"].savepoint(str(tmp_path / "sp" / "b"), (TOTAL, {"x": 1}))
    assert sorted(column(shell("savepoints"), "JOB")) == ["clicks", "orders"]
    (only,) = shell("savepoints", "orders", "--json").json
    assert (only["label"], only["exists"]) == ("first", True)
    assert shell("savepoints", "orders", "--restore").lines == [
        f"turnback run -s {tmp_path}/sp/a job.py --fast"
    ]


def test_every_look_prints_json(shell, jobs):
    for words in (["list"], ["status", "orders"], ["checkpoints", "orders"], ["savepoints"]):
        done = shell(*words, "--json")
        assert done.code == 0, done.err
        json.loads(done.out)
        assert done.err == ""
