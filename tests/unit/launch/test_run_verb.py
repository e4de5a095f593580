"""`turnback run` with scripts that run no job, or only pretend to: no Spark is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from launch_support import DRIVER, Launches

from fake_job import FakeJob, schema
from turnback.job.directory import JobDirectory
from turnback.job.requests import Requests
from turnback.job.run import ClaimMode, Launch, RunDirectory
from turnback.launch.runs import SUPERVISOR
from turnback.launch.supervisor import rotate

pytestmark = pytest.mark.slow

TURNBACK = Path(sys.executable).with_name("turnback")
ECHO = """
import sys
from pathlib import Path
import msgspec
from turnback.job.run import current_run
Path(sys.argv[1]).write_bytes(msgspec.json.encode(current_run().launch()))
"""


def environment(directory: Path) -> dict[str, str]:
    return os.environ | {
        "TURNBACK_CONF_RUN_DIR": str(directory / "runs"),
        "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(directory / "jobs"),
    }


@pytest.fixture
def turnback(tmp_path: Path):
    def call(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(TURNBACK), *map(str, words)],
            env=environment(tmp_path),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return call


def test_every_option_reaches_the_program(turnback, tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    saved = FakeJob(str(tmp_path / "elsewhere"), "other")
    saved.attempt()
    saved.savepoint(str(tmp_path / "sp"), (schema(), {"ann": 1}), id="sp1")
    options = "-n --rename a=b --rename c/d=e/f --claim-mode claim -p 3 --name other -s sp"
    more = ("--allow-pickled-state", "--take-over-sinks", "-D", "log.format=json")
    more = (*more, "-D", "run.log.max-size=2 mb")
    done = turnback("run", *options.split(), *more, "echo.py", "found", "--flag", "-s", "x")
    assert done.returncode == 1
    assert "does it call execute()?" in done.stderr
    launch = msgspec.json.decode((tmp_path / "found").read_bytes(), type=Launch)
    assert launch == Launch(
        script=str(tmp_path / "echo.py"),
        arguments=("found", "--flag", "-s", "x"),
        directory=str(tmp_path),
        name="other",
        start_from=str(tmp_path / "sp"),
        allow_non_restored_state=True,
        renames={"a": "b", "c/d": "e/f"},
        claim_mode=ClaimMode.CLAIM,
        fork=True,
        allow_pickled_state=True,
        take_over_sinks=True,
        root=str(tmp_path / "jobs"),
        settings={
            "log.format": "json",
            "run.log.max-size": "2 mb",
            "parallelism.default": "3",
        },
        log_bytes=2 << 20,
        class_archive=True,
        supervisor=SUPERVISOR,
    )
    turnback("run", "--fresh", "--allow", "x", "--allow", "y/z", "--fork", "echo.py", "found")
    launch = msgspec.json.decode((tmp_path / "found").read_bytes(), type=Launch)
    assert (launch.fresh, launch.fork) == (True, True)
    assert launch.allow_non_restored_state == ("x", "y/z")


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("finishes", 0, "FINISHED"),
        ("dies once", 0, "FINISHED"),
        ("dies", 1, "killed by signal 9"),
        ("broken", 1, "this script is broken"),
        ("no job", 1, "does it call execute()?"),
        ("dies before its job", 1, "killed by signal 9"),
    ],
)
def test_the_foreground_tells_how_it_ended(
    turnback, tmp_path: Path, how: str, code: int, told: str
) -> None:
    done = turnback("run", DRIVER, tmp_path / "jobs", how)
    printed = done.stdout + done.stderr
    assert (done.returncode, told in printed) == (code, True), printed
    if how == "broken":
        assert printed.count(f"RuntimeError: {told}") == 1, printed
        assert not done.stderr


def test_nohup_outlives_a_closed_terminal_and_ctrl_c_twice_kills(tmp_path: Path) -> None:
    command = [str(TURNBACK), "run", str(DRIVER), str(tmp_path / "jobs"), "waits"]
    with subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command],
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "life 1\n"
        requests = Requests(JobDirectory.locate(tmp_path / "jobs", "job").storage)
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert requests.open() == []
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "cancelling the job; interrupt again to kill it\n"
        while not requests.open():
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    (run,) = (RunDirectory(path) for path in (tmp_path / "runs").iterdir())
    assert not run.driver().is_alive()


def test_logs_are_followed(launches: Launches, tmp_path: Path) -> None:
    run = launches.start("waits")
    while run.running() is None:
        time.sleep(0.05)
    # the driver only pretends, and does not say where its log is
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(run.log)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "life 1\n"
        with run.log.open("a") as log:
            log.write("and more\n")
        assert process.stdout.readline() == "and more\n"
        process.terminate()


FOLLOW = """
import sys
from pathlib import Path
from turnback.cli.jobs import print_log
print_log(Path(sys.argv[1]), 10, follow=True)
"""


def test_a_log_that_is_too_large_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"1" * 1000)
        rotate(log, 1000)
        assert not (tmp_path / "driver.log.1").exists()
        writer.write(b"2")
        rotate(log, 1000)
        assert (tmp_path / "driver.log.1").read_bytes() == b"1" * 1000 + b"2"
        writer.write(b"3")
    assert log.read_bytes() == b"3"


FAILING = """
import sys, time
from turnback import FileSink, StreamExecutionEnvironment
from turnback.testing import LocalEngine

def check(row):
    if row.n < 0:
        time.sleep(10)  # as a cold Spark takes
        raise ValueError(f"{row.n} is negative")
    return row.n

base = sys.argv[1]
env = StreamExecutionEnvironment(None, engine=LocalEngine())
env.set_parallelism(1).enable_checkpointing("50 ms")
numbers = env.from_files(f"{base}/input", "json", "n bigint", uid="numbers")
numbers.map(check, "bigint").uid("check").sink_to(FileSink(f"{base}/out", "json")).uid("out")
env.execute("numbers")
"""


@pytest.mark.parametrize("number", [1, -1, None])
def test_a_detached_start_waits_for_the_first_epoch(turnback, tmp_path: Path, number) -> None:
    (tmp_path / "job.py").write_text(FAILING)
    (tmp_path / "input").mkdir()
    if number is not None:
        (tmp_path / "input" / "1.json").write_text(f'{{"n": {number}}}\n')
    done = turnback("run", "-d", "job.py", tmp_path)
    try:
        if number == -1:
            assert done.returncode == 1
            assert "job 'numbers' failed before its first epoch; it is being restarted" in (
                done.stderr
            )
            assert "ValueError: -1 is negative" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            assert "failed" not in done.stderr
    finally:
        assert turnback("cancel", "numbers", "--yes").returncode == 0
