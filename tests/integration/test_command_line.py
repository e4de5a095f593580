"""Commands that start Spark or the program of a job, through the installed program."""

import csv
import io

import pytest

from turnback.cli.context import ExitCode
from unit.cli.cli_support import TOTAL, Shell, make_job

JOB = """
import sys
from turnback import KeyedProcessFunction, StreamExecutionEnvironment, Types, ValueStateDescriptor

print("noise")

class Count(KeyedProcessFunction):
    total = ValueStateDescriptor(sys.argv[1], Types.LONG())

    def process_element(self, value, ctx):
        yield value

env = StreamExecutionEnvironment.get_execution_environment()
env.set_max_parallelism(16)
EVENT = Types.ROW_NAMED(["user", "n"], [Types.STRING(), Types.LONG()])
(
    env.from_collection([("alice", 1)], EVENT)
    .uid("events")
    .key_by("user")
    .process(Count(), EVENT)
    .uid("count")
    .print()
    .uid("out")
)
env.execute("orders")
"""


@pytest.fixture
def shell(tmp_path, java):
    shell = Shell(tmp_path)
    shell.environ["JDK_JAVA_OPTIONS"] = java
    return shell


@pytest.fixture
def job(shell):
    return make_job(shell.root, "orders")


@pytest.mark.parametrize("how", [[], ["--spark"]])
def test_query_prints_rows_and_nothing_else(shell, job, how):
    sql = "SELECT key, value FROM count_total ORDER BY key"
    done = shell.program("query", "orders@latest", sql, "--format", "csv", "--limit", "2", *how)
    assert done.code == 0, done.err
    assert list(csv.reader(io.StringIO(done.out))) == [
        ["key", "value"],
        ["alice", "3"],
        ["bob", "2"],
    ]
    assert done.err == "There are more than 2 rows: use --limit to see more.\n"


def test_a_wrong_query_is_told_in_a_line(shell, job):
    done = shell.program("query", "orders@latest", "SELECT * FROM nope", "--json")
    assert done.code == ExitCode.USAGE
    assert done.error["message"] == "there is no table 'nope'; available tables: count_total"
    done = shell.program(
        "query", "orders@latest", "SELECT * FROM count_totals", "--json", "--spark"
    )
    assert done.code == ExitCode.USAGE
    assert done.error["message"] == "there is no table 'count_totals'; did you mean 'count_total'?"
    assert done.err == ""


def test_a_damaged_file_is_told_by_its_own_error(shell, job):
    (file,) = (path for path in shell.root.rglob("1.arrow"))
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    done = shell.program("query", "orders@latest", "SELECT * FROM count_total", "--json")
    assert (done.code, done.error["kind"]) == (ExitCode.DAMAGED, "CorruptFileError")


@pytest.mark.exhaustive
def test_diff_counts_and_shows_what_differs(shell, job):
    done = shell.program("diff", "orders@chk-2", "orders@chk-3", "--json", "--exit-code")
    assert done.code == ExitCode.FAILED
    (state,) = done.json
    counts = {name: state[name] for name in ("added", "removed", "changed", "unchanged")}
    assert counts == {"added": 1, "removed": 0, "changed": 1, "unchanged": 1}
    words = ["diff", "orders@chk-2", "orders@chk-3", "--state", "total", "--json"]
    rows = shell.program(*words).json
    assert {row["key"]: row["change"] for row in rows} == {"alice": "changed", "carol": "added"}
    by_spark = shell.program(*words, "--spark").json
    assert sorted(map(str, by_spark)) == sorted(map(str, rows))
    same = shell.program("diff", "orders@chk-3", "orders@chk-3", "--exit-code")
    assert same.code == 0, same.err


def test_check_tells_whether_a_program_would_start(shell, job, tmp_path):
    job.savepoint(str(tmp_path / "sp"), (TOTAL, {"alice": 1}), label="before")
    (shell.home / "job.py").write_text(JOB)
    renamed = shell.program("check", "-s", "orders@before", "job.py", "sum")
    assert renamed.code == ExitCode.WOULD_NOT_START
    assert "unclaimed" in renamed.out and "noise" not in renamed.out
    rename = ("--rename", "count/total=count/sum")
    told = shell.program("check", "-s", "orders@before", *rename, "--json", "job.py", "sum")
    assert told.code == 0, told.err
    assert told.json["ok"] is True


def test_check_of_a_program_that_never_calls_execute(shell, job):
    (shell.home / "job.py").write_text("print('hello')")
    done = shell.program("check", "-s", "orders@latest", "job.py")
    assert done.code == ExitCode.FAILED
    assert "execute()" in done.err
