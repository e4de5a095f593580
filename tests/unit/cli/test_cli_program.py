"""The installed program: start-up, errors, terminals, shells."""

import contextlib
import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from turnback.cli.context import ExitCode
from turnback.cli.main import COMMANDS
from turnback.job.request import RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobState
from unit.cli.cli_support import PROGRAM, Driver, make_job

pytestmark = pytest.mark.slow

HEAVY = {"pyarrow", "pandas", "pyspark", "numpy", "pydantic", "rich", "uvicorn", "starlette"}


# -- start-up


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["list"], set()),
        (["status", "orders"], set()),
        (["checkpoints", "orders"], set()),
        (["savepoints"], set()),
        (["inspect", "orders@latest"], set()),
        (["config"], set()),
        (["list", "--json"], set()),
        (["--version"], set()),
        (["--help"], set()),
    ],
)
def test_nothing_heavy_is_imported(shell, words, heavy):
    make_job(shell.root, "orders")
    code = (
        "import sys; from turnback.cli.main import main; code = main(sys.argv[1:]); "
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=shell.home, env=shell.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == str(sorted(heavy))


# -- the installed program


def test_the_program_lists_jobs(shell):
    make_job(shell.root, "orders")
    assert [job["name"] for job in shell.program("list", "-a", "--json").json] == ["orders"]


def test_the_version(shell):
    assert re.fullmatch(r"turnback \d+\.\d+\.\d+\S*\n", shell.program("--version").out)


def test_a_reader_that_goes_away_is_no_traceback(shell):
    done = subprocess.run(
        f"{PROGRAM} config --doc --json | head -c 10",
        shell=True, cwd=shell.home, env=shell.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


# -- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lits"], "Did you mean 'list'?"),
        (["list", "--runing"], "--running"),
        (["status"], "JOB"),
        (["list", "extra"], "extra"),
        (["--rot", "x", "list"], "--root"),
        (["transactions", "comit", "x"], "commit"),
    ],
)
def test_wrong_usage_is_told_with_what_was_meant(shell, words, said):
    done = shell(*words)
    assert (done.code, done.out) == (ExitCode.USAGE, "")
    assert said in done.err
    assert "--help" in done.err


def test_wrong_usage_is_json_if_that_was_asked_for(shell):
    error = shell("list", "--runing", "--json").error
    assert (error["kind"], error["exit_code"]) == ("UsageError", 2)


@pytest.mark.parametrize("words", [[], ["transactions"]])
def test_without_a_command_the_help_is_shown(shell, words):
    done = shell(*words)
    assert done.code == ExitCode.USAGE
    assert "Usage: turnback" in done.out
    assert "error" not in done.err


@pytest.fixture
def broken(monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("one by nought")

    monkeypatch.setattr("turnback.cli.jobs._is_listed", fail)


def test_an_unexpected_error_is_short(shell, broken):
    make_job(shell.root, "orders")
    done = shell("list")
    assert done.code == ExitCode.FAILED
    assert "ZeroDivisionError: one by nought" in done.err
    assert "--debug" in done.err
    assert "Traceback" not in done.err


def test_debug_shows_where_an_error_comes_from(shell, broken):
    make_job(shell.root, "orders")
    for words in (["list", "--debug"], ["--debug", "list"]):
        done = shell(*words)
        assert "Traceback" in done.err and "jobs.py" in done.err
    assert shell("list", "--debug", "--json").error["kind"] == "ZeroDivisionError"


# -- terminals


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, shell, *words, **env):
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [PROGRAM, *words], cwd=shell.home, env={**shell.environ, "TERM": "xterm", **env},
            stdin=slave, stdout=slave, stderr=slave, close_fds=True, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def read_until(self, text, seconds=30):
        deadline = time.monotonic() + seconds
        while text not in self.shown and time.monotonic() < deadline:
            if not self._read():
                break
        assert text in self.shown, self.shown

    def _read(self):
        if select.select([self._master], [], [], 0.2)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                return False
            self.shown += data.decode()
            return bool(data)
        return self._process.poll() is None

    def type(self, text):
        os.write(self._master, text.encode())

    def end(self):
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(30)


def test_a_terminal_gets_colours_and_relative_times(shell):
    job = make_job(shell.root, "orders")
    terminal = Terminal(shell, "list", "-a")
    assert terminal.end() == 0
    assert "\x1b[34mFINISHED" in terminal.shown
    assert job.info.job_id[:8] in terminal.shown and job.info.job_id not in terminal.shown
    job.clock.advance(int(time.time() * 1000) - 7_000 - job.clock.now_ms())
    job.directory.write_status(JobState.FINISHED, job.info.job_id)
    terminal = Terminal(shell, "status", "orders")
    assert terminal.end() == 0
    assert " s ago)" in terminal.shown


@pytest.mark.parametrize(("columns", "shown"), [("90", False), ("200", True)])
def test_a_narrow_terminal_gets_fewer_columns_and_whole_values(shell, columns, shown):
    make_job(shell.root, "orders")
    terminal = Terminal(shell, "checkpoints", "orders", "--no-color", COLUMNS=columns)
    assert terminal.end() == 0
    assert ("async" in terminal.shown.split("completed")[0]) is shown
    for value in ("chk-3", "COMPLETED", "the disk is full", "1.8 KiB"):
        assert value in terminal.shown


@pytest.mark.parametrize(("words", "env"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_colours_can_be_switched_off(shell, words, env):
    make_job(shell.root, "orders")
    terminal = Terminal(shell, "list", "-a", *words, **env)
    assert terminal.end() == 0
    assert "FINISHED" in terminal.shown
    assert not re.search(r"\x1b\[(3|9)\d", terminal.shown)


def test_json_on_a_terminal_is_json(shell):
    make_job(shell.root, "orders")
    terminal = Terminal(shell, "list", "-a", "--json")
    assert terminal.end() == 0
    assert json.loads(terminal.shown)[0]["name"] == "orders"


@pytest.mark.parametrize(
    ("answer", "code"),
    [("y\n", 0), ("yes\n", 0), ("n\n", 9), ("\n", 9), ("\x04", 9), ("yep\n", 9)],
)
def test_a_terminal_is_asked(shell, tmp_path, answer, code):
    job = make_job(shell.root, "orders", JobState.RUNNING)
    with Driver(job, [RequestState.COMPLETED], str(tmp_path / "sp")) as driver:
        terminal = Terminal(shell, "cancel", "orders")
        terminal.read_until("Cancel job 'orders'? [y/N]")
        terminal.type(answer)
        assert terminal.end() == code
        assert len(driver.served) == (1 if code == 0 else 0)


def test_ctrl_c_at_a_question_does_nothing(shell):
    job = make_job(shell.root, "orders", JobState.RUNNING)
    terminal = Terminal(shell, "cancel", "orders")
    terminal.read_until("[y/N]")
    os.kill(terminal._process.pid, 2)
    assert terminal.end() == ExitCode.INTERRUPTED
    assert "Traceback" not in terminal.shown
    assert Requests(job.storage).open() == []


def test_a_savepoint_has_a_progress_bar(shell, tmp_path):
    job = make_job(shell.root, "orders", JobState.RUNNING)
    with Driver(job, [None], str(tmp_path / "sp")):
        terminal = Terminal(shell, "savepoint", "orders", "--timeout", "3 s")
        terminal.read_until("1/2 parts, 500 B")
        assert terminal.end() == ExitCode.TIMED_OUT


# -- shells


def complete(shell, line):
    env = {"_TURNBACK_COMPLETE": "bash_complete", "COMP_WORDS": line}
    env["COMP_CWORD"] = str(len(line.split(" ")) - 1)
    return [word.removeprefix("plain,") for word in shell.program(env=env).out.split()]


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_shells_get_a_script_that_asks_for_completions(shell, kind):
    done = shell.program(env={"_TURNBACK_COMPLETE": f"{kind}_source"})
    assert (done.code, done.err) == (0, "")
    assert f"_TURNBACK_COMPLETE={kind}_complete" in done.out


def test_shells_are_told_commands_options_and_jobs(shell):
    make_job(shell.root, "orders")
    make_job(shell.root, "clicks")
    assert complete(shell, "turnback sav") == ["savepoints", "savepoint"]
    assert complete(shell, "turnback status ") == ["clicks", "orders"]
    assert complete(shell, "turnback status o") == ["orders"]
    assert "--drain" in complete(shell, "turnback stop orders --d")
    assert complete(shell, "turnback inspect orders@chk") == ["orders@chk-3", "orders@chk-2"]


def test_shells_are_told_jobs_of_another_root(shell, tmp_path):
    make_job(tmp_path / "other", "fraud")
    assert complete(shell, f"turnback --root {tmp_path}/other status ") == ["fraud"]
    assert complete(shell, f"turnback status --root {tmp_path}/other ") == ["fraud"]


def test_shells_are_told_nothing_rather_than_an_error(shell):
    shell.root.write_text("x")
    assert complete(shell, "turnback status ") == []
    assert complete(shell, "turnback inspect x@") == []


def test_every_command_takes_json_without_running_anything(shell):
    for name in (name for group in COMMANDS.values() for name in group):
        if name in ("ui", "transactions"):
            continue
        with contextlib.suppress(json.JSONDecodeError):
            done = shell(name, "--json", "--no-such-option")
            assert done.error["exit_code"] == ExitCode.USAGE
            continue
        pytest.fail(f"{name} --json printed something else: {done.out}")


def test_an_option_of_the_script_is_not_taken_for_ours(shell):
    done = shell("run", "missing.py", "--json")
    assert done.code == 2
    assert done.err.startswith("error: the script missing.py does not exist")
