"""`delete`, a root that is not there, snapshots that are not there, and misplaced options."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_job import schema
from turnback.cli.context import ExitCode
from turnback.cli.query import check_read_only
from turnback.errors import ConfigurationError
from turnback.job.liveness import liveness_of
from turnback.job.run import ProcessId
from turnback.job.status import JobState, Status
from unit.cli.cli_support import make_job


def test_a_job_is_deleted_and_its_savepoints_stay(shell, tmp_path):
    job = make_job(shell.root, "orders")
    make_job(shell.root, "clicks")
    job.savepoint(str(tmp_path / "sp"), (schema(), {"ann": 1}), id="sp1", label="nice")
    done = shell("delete", "orders", "--yes", "--json")
    assert done.code == 0, done.out
    assert done.json["kept"] == [str(tmp_path / "sp")]
    assert not (shell.root / "orders").exists()
    assert [row["name"] for row in shell("list", "-a", "--json").json] == ["clicks"]
    assert shell("inspect", str(tmp_path / "sp")).code == 0
    assert shell("delete", "orders", "--yes").code == ExitCode.NOT_FOUND


def test_savepoints_go_too_if_wanted(shell, tmp_path):
    job = make_job(shell.root, "orders")
    job.savepoint(str(tmp_path / "sp"), (schema(), {"ann": 1}), id="sp1")
    done = shell("delete", "orders", "--savepoints", "--yes", "--json")
    assert done.json["savepoints"] == [str(tmp_path / "sp")]
    assert not (tmp_path / "sp" / "_metadata.json").exists()


def test_a_savepoint_inside_the_job_directory_is_not_lost_by_accident(shell):
    job = make_job(shell.root, "orders")
    job.savepoint(str(shell.root / "orders" / "mine"), (schema(), {"ann": 1}), id="sp1")
    done = shell("delete", "orders", "--yes")
    assert done.code == ExitCode.CONFLICT and "is inside the directory" in done.err
    assert shell("status", "orders").code == 0


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_live_job_is_not_deleted(shell, force):
    make_job(shell.root, "orders", JobState.RUNNING)  # by this process
    done = shell("delete", "orders", "--yes", *force)
    assert done.code == ExitCode.CONFLICT
    assert f"is RUNNING (pid {os.getpid()}): stop it first" in done.err
    assert shell("status", "orders").code == 0


def test_a_job_that_was_never_run_needs_force(shell):
    job = make_job(shell.root, "orders")
    job.storage.delete("status.json")
    assert "may be in use" in shell("delete", "orders", "--yes").err
    assert shell("delete", "orders", "--yes", "--force").code == 0


def test_nothing_is_deleted_without_an_answer_or_by_half_a_name(shell):
    make_job(shell.root, "orders")
    assert shell("delete", "orders").code == ExitCode.DECLINED
    assert shell("delete", "ord", "--yes").code == ExitCode.NOT_FOUND
    assert shell("status", "orders").code == 0


# -- what is not there


def test_a_root_that_is_not_there_is_named(shell, tmp_path):
    typo = str(tmp_path / "typo")
    done = shell("list", "--root", typo)
    assert done.code == ExitCode.NOT_FOUND
    assert f"{typo} does not exist" in done.err
    assert shell("list", env={"TURNBACK_ROOT": typo}).code == 0  # nothing has been run yet
    assert f"{typo} does not exist" in shell("list", env={"TURNBACK_ROOT": typo}).err


@pytest.mark.parametrize("command", ["run", "check"])
def test_a_snapshot_that_is_not_there_is_refused_before_anything_starts(shell, tmp_path, command):
    script = tmp_path / "job.py"
    script.write_text(f"open({str(tmp_path / 'started')!r}, 'w')")
    done = shell(command, "-s", str(tmp_path / "typo"), str(script))
    assert done.code == ExitCode.NOT_FOUND
    assert "typo" in done.err
    assert not (tmp_path / "started").exists()
    assert not (shell.home / ".turnback" / "runs").exists()


# -- what is written where it does not belong


@pytest.mark.slow
def test_options_behind_the_script_are_named(shell, tmp_path):
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit(0)")
    done = shell.program("run", str(script), "-d", "--name=x", "--own", "value")
    assert "are passed to the script, including -d --name" in done.err
    assert "--own" not in done.err
    assert "are passed to the script" not in shell.program("run", str(script), "--own").err


@pytest.mark.slow
def test_an_error_is_printed_once_and_without_frames_of_ours(shell, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "from turnback import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment({'paralelism.default': 1})\n"
    )
    done = shell.program("run", str(script))
    printed = done.out + done.err
    assert done.code == ExitCode.USAGE
    assert printed.count("unknown key 'paralelism.default'") == 1, printed
    assert "job.py" in printed and "line 2" in printed
    assert "/turnback/api/" not in printed and "/turnback/config/" not in printed


@pytest.mark.parametrize(
    "wrong",
    [
        ("--name", ""),
        ("-p", "two"),
        ("-D", "parallelism.default=two"),
        ("--rename", "one"),
        ("-s", " "),
        ("-s", "/nowhere", "--fresh"),
        ("--allow", "x", "-n"),
        ("--claim-mode", "both"),
    ],
)
def test_a_wrong_value_is_told_with_its_flag(shell, tmp_path, wrong):
    script = tmp_path / "job.py"
    script.touch()
    done = shell("run", *wrong, str(script))
    assert done.code == ExitCode.USAGE
    assert wrong[0] in done.err


def test_a_table_has_no_escaped_ends_of_lines(shell):
    make_job(shell.root, "orders", JobState.FAILED, cause="it failed\n  at the second line\x1b[1m")
    for words in (("list", "-a"), ("status", "orders")):
        done = shell(*words)
        assert "it failed at the second line\\x1b[1m" in done.out, done.out
        assert "\\n" not in done.out


# -- a job that is lost


@pytest.mark.parametrize("supervised", [True, False])
def test_a_lost_job_has_a_reason_and_a_next_step(supervised):
    here = ProcessId.current()
    gone = ProcessId(here.host, here.machine, 2**22 + 1, "1")
    status = Status(
        job="orders", job_id="id", state=JobState.RUNNING, process=gone, owner="o", heartbeat=1,
        updated_ms=0, supervisor=gone if supervised else None,
    )  # fmt: skip
    alive = liveness_of(status, 1_000)
    assert alive.state == "LOST"
    assert f"pid {gone.pid}" in alive.problem
    assert ("supervisor" in alive.problem) == supervised
    assert alive.problem.endswith("Start the job again: it resumes from its latest checkpoint")


# -- queries only read


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "  -- which\nselect 'DROP TABLE x; INSERT INTO y' as a, `update` from t",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "(SELECT 1) UNION (SELECT 2)",
        "FROM t SELECT a",
        "DESCRIBE t",
    ],
)
def test_what_only_reads_is_a_query(sql):
    check_read_only(sql)


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("DROP TABLE t", "DROP"),
        ("/* x */ create table a as select 1", "CREATE"),
        ("INSERT OVERWRITE DIRECTORY '/x' SELECT 1", "INSERT OVERWRITE"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "INSERT INTO"),
        ("FROM t INSERT INTO u SELECT *", "INSERT INTO"),
        ("COPY t TO '/x'", "COPY"),
        ("ATTACH '/x'", "ATTACH"),
        ("SELECT reflect('java.lang.System', 'exit')", "REFLECT"),
        ("", "nothing"),
    ],
)
def test_what_might_change_something_is_refused(sql, what):
    with pytest.raises(ConfigurationError, match=f"only reads, and this is {what}:"):
        check_read_only(sql)


def test_query_refuses_to_write_before_anything_starts(shell, tmp_path):
    make_job(shell.root, "orders")
    sql = f"INSERT OVERWRITE DIRECTORY '{tmp_path}/out' USING csv SELECT 1"
    done = shell("query", "orders@latest", sql)
    assert done.code == ExitCode.USAGE
    assert not Path(tmp_path, "out").exists()
