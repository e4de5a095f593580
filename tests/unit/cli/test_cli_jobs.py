"""`list`, `status`, `checkpoints`, `savepoints` and `logs`, as a person calls them."""

import io
import json
from pathlib import Path

import pytest

from turnback.cli.context import ExitCode
from turnback.job.catalog import Replays, SavepointReplay
from turnback.job.status import JobState, Lag, Metrics, OperatorLoad, StatusUpdate
from turnback.launch.runs import LogFollower, last_lines
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


def lagging(shell, name, **lag):
    metrics = Metrics(lag={"events": Lag(measured_ms=1, **lag)})
    make_job(shell.root, name, JobState.RUNNING, metrics=metrics)


def test_list_and_status_say_how_far_a_job_is_behind(shell):
    lagging(shell, "slow", records=1200, seconds=40.7, change_per_s=-10.0, catch_up_s=120.0)
    lagging(shell, "stuck", records=7, seconds=None, change_per_s=2.0)
    lagging(shell, "timely", records=0, seconds=0.0, catch_up_s=0.0)
    lagging(shell, "unknown", records=None, seconds=None)
    lags = dict(zip(*(column(shell("list"), name) for name in ("NAME", "LAG")), strict=True))
    assert lags == {"slow": "1200 (40 s)", "stuck": "7", "timely": "0", "unknown": "-"}
    expected = {
        "slow": "1200 records, the oldest is 40 s old, caught up in about 2 min at this rate",
        "stuck": "7 records, not shrinking",
        "timely": "none",
        "unknown": "unknown",
    }
    for name, text in expected.items():
        (line,) = (line for line in shell("status", name).lines if line.startswith("lag "))
        assert line.removeprefix("lag").strip() == text
    summary = shell("status", "slow", "--json").json["summary"]
    assert (summary["lag"]["records"], summary["lag"]["catch_up_s"]) == (1200, 120.0)


def test_status_says_how_many_records_were_malformed(shell):
    make_job(shell.root, "clicks", JobState.RUNNING, metrics=Metrics(malformed={"events": 1200}))
    (head,) = (line.split() for line in shell("status", "clicks").lines if "MALFORMED" in line)
    (row,) = (line.split() for line in shell("status", "clicks").lines if "source  " in line)
    assert row[head.index("MALFORMED")] == "1200"
    operators = shell("status", "clicks", "--json").json["operators"]
    assert [op["malformed"] for op in operators if op["uid"] == "events"] == [1200]


def test_status_says_how_busy_a_job_is_and_where(shell):
    count = OperatorLoad(tasks=2, busy=0.4, busiest=0.62, skew=1.55, skewed=1)
    metrics = Metrics(busy=0.831, load={"count": count})
    make_job(shell.root, "clicks", JobState.RUNNING, metrics=metrics)
    done = shell("status", "clicks")
    (line,) = (line for line in done.lines if line.startswith("busy "))
    assert line.removeprefix("busy").strip() == "83% of the last minute, busiest: count (62%)"
    (row,) = (line for line in done.lines if line.startswith("count "))
    assert "62%" in row and "1.6 (task 1)" in row
    detail = shell("status", "clicks", "--json").json
    assert (detail["busy"], detail["bottleneck"]) == (0.831, "count")
    by_uid = {node["uid"]: node for node in detail["operators"]}
    assert by_uid["count"]["load"]["skewed"] == 1
    make_job(shell.root, "over", JobState.FINISHED, metrics=metrics)
    assert shell("status", "over", "--json").json["busy"] is None


def test_savepoints_say_how_long_they_can_be_replayed(shell, tmp_path):
    job = make_job(shell.root, "clicks", JobState.RUNNING)
    for name in "abc":
        job.savepoint(str(tmp_path / name), (TOTAL, {"alice": 1}), id=name)
    a = SavepointReplay(gone=True, until_ms=None, as_of_ms=1)
    b = SavepointReplay(gone=False, until_ms=1_900_000_000_000, as_of_ms=1)
    c = SavepointReplay(gone=False, until_ms=None, as_of_ms=1)
    job.directory.record_replays(Replays({"a": a, "b": b, "c": c, "another": a}))
    rows = {row["id"]: row["replay"] for row in shell("savepoints", "--json").json}
    assert (rows["a"]["gone"], rows["b"]["until_ms"]) == (True, 1_900_000_000_000)
    found = shell("savepoints")
    shown = dict(zip(*(column(found, name) for name in ("ID", "REPLAYABLE")), strict=True))
    assert (shown["a"], shown["c"]) == ("no longer", "-")
    assert shown["b"].startswith("until about 2030-03-17")


def test_plain_output_is_one_line_a_job_without_anything_that_moves_the_cursor(shell, jobs):
    done = shell("list", "-a")
    assert len(done.lines) == 4
    assert "\x1b" not in done.out
    assert r"boom\x1b[31m second" in done.out
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
    assert f"{shell.root} does not exist" in missing.err
    shell.root.mkdir()
    assert f"no jobs in {shell.root}" in shell("list").err
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


# -- logs


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
    log = LogFollower(path, out)
    log.print_new()
    path.write_text("first\n")
    log.print_new()
    log.print_new()
    path.write_text("new\n")
    log.print_new()
    with path.open("ab") as file:
        file.write(b"\xff bytes\n")
    log.print_new()
    assert out.getvalue() == "first\nnew\n\ufffd bytes\n"


def test_logs_shows_the_end_of_the_log(shell, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text("one\ntwo\nthree\n")
    with_log(shell.root, "orders", log)
    assert shell("logs", "orders").out == "one\ntwo\nthree\n"
    assert shell("logs", "-l", "1", "orders").out == "three\n"
    assert shell("logs", "orders", "--json").json == {
        "job": "orders",
        "path": str(log),
        "lines": ["one", "two", "three"],
    }


def test_a_log_that_is_not_here_is_said_to_be_elsewhere(shell, tmp_path: Path) -> None:
    with_log(shell.root, "away", tmp_path / "gone.log")
    done = shell("logs", "away")
    assert done.code == ExitCode.NOT_FOUND
    assert "gone.log" in done.err
    make_job(shell.root, "plain")
    done = shell("logs", "plain")
    assert done.code == ExitCode.NOT_FOUND
    assert "turnback run" in done.err


def test_jobs_of_an_application_of_yarn(shell) -> None:
    make_job(shell.root, "here", JobState.RUNNING, application="application_17_0001")
    make_job(shell.root, "there", JobState.RUNNING, application="application_17_0002")
    make_job(shell.root, "nowhere", JobState.RUNNING)
    found = shell("list", "-yid", "application_17_0001", "--json").json
    assert [(job["name"], job["application"]) for job in found] == [("here", "application_17_0001")]
    assert "application_17_0001" in shell("status", "here").out
    done = shell("list", "-yid", "application_17_0003")
    assert (done.code, len(done.lines)) == (0, 1)
    assert "no jobs of application_17_0003" in done.err
    done = shell("logs", "here")
    assert done.code == ExitCode.NOT_FOUND
    assert "yarn logs -applicationId application_17_0001" in done.err


def test_a_log_of_a_job_that_does_not_exist(shell) -> None:
    make_job(shell.root, "orders")
    done = shell("logs", "ordres")
    assert done.code == ExitCode.NOT_FOUND
    assert "'orders'" in done.err
