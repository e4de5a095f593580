"""The process of a driver: the script in it, and how it looks after its supervisor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch_support import until

from turnback.job.run import LAUNCH, Launch, ProcessId, RunDirectory, RunEnd
from turnback.launch import program
from turnback.launch.program import SupervisorWatch, driver_command
from turnback.launch.runs import SUPERVISOR

HERE = ProcessId.current()
GONE = ProcessId(HERE.host, HERE.machine, 2**22 + 1, "0")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "run")
    made.path.mkdir()
    made.write(LAUNCH, Launch(script="job.py", supervisor=SUPERVISOR))
    return made


class StandIn:
    """Starts in place of a supervisor; ends when it is told to."""

    def __init__(self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[subprocess.Popen[bytes]] = []
        monkeypatch.setattr(RunDirectory, "start_supervisor", lambda _: self.start())

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "input()"]
        self.started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        return self.started[-1]

    def end(self) -> None:
        process = self.started[-1]
        process.communicate(b"\n")


@pytest.fixture
def stand_in(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    made = StandIn(run, monkeypatch)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def test_a_supervisor_that_lives_is_left_alone(run: RunDirectory, stand_in: StandIn) -> None:
    run.set_supervisor(HERE)
    assert SupervisorWatch(run).check() == HERE
    assert not stand_in.started


def test_one_that_is_gone_is_replaced_once(run: RunDirectory, stand_in: StandIn) -> None:
    run.set_supervisor(GONE)
    watch = SupervisorWatch(run)
    for _ in range(3):
        assert watch.check() is None
    (new,) = stand_in.started
    run.set_supervisor(ProcessId.of(new.pid))  # as it does by itself
    assert watch.check() == ProcessId.of(new.pid)
    stand_in.end()
    assert watch.check() is None
    assert len(stand_in.started) == 2


@pytest.mark.parametrize("pidfd", [True, False])
def test_its_death_is_noticed_in_the_background(
    run: RunDirectory, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, pidfd: bool
) -> None:
    if not pidfd:
        monkeypatch.delattr("os.pidfd_open", raising=False)
    monkeypatch.setattr(program.atexit, "register", lambda check: None)
    first = stand_in.start()
    run.set_supervisor(ProcessId.of(first.pid))
    SupervisorWatch(run).start()
    first.communicate(b"\n")
    until(lambda: len(stand_in.started) >= 2)  # the watch of the test before may start one too
    run.set_end(RunEnd(0, "so that no other one is started"))


def test_a_launch_that_is_over_needs_none(run: RunDirectory, stand_in: StandIn) -> None:
    run.set_supervisor(GONE)
    run.set_end(RunEnd(0, "the job is FINISHED"))
    SupervisorWatch(run).check()
    assert not stand_in.started


def test_one_that_cannot_be_started_is_told_once(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    (run.path / LAUNCH).unlink()
    watch = SupervisorWatch(run)
    for _ in range(3):
        assert watch.check() is None
    assert caplog.text.count("cannot start a supervisor") == 1


def driver(run: RunDirectory, tmp_path: Path, script: str, *arguments: str):
    path = tmp_path / "the_script.py"
    path.write_text(script)
    launch = Launch(script=str(path), arguments=arguments, supervisor=SUPERVISOR)
    run.write(LAUNCH, launch)
    run.set_supervisor(HERE)
    command = driver_command(launch, run)
    return command, subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_is_run_as_python_runs_it(run: RunDirectory, tmp_path: Path) -> None:
    script = """\
        import pickle, sys, threading
        class Mine:
            pass
        def later():
            threading.main_thread().join()
            print(type(pickle.loads(pickle.dumps(Mine()))) is Mine)
        print(__name__, __file__ == sys.argv[0], sys.argv[1:], sys.path[0])
        threading.Thread(target=later).start()
    """
    lines = "\n".join(line.removeprefix("        ") for line in script.splitlines())
    command, done = driver(run, tmp_path, lines, "--password=letmein", "b")
    assert done.stdout == (f"__main__ True ['--password=letmein', 'b'] {tmp_path}\nTrue\n"), (
        done.stderr
    )
    assert command[-1] == "b"
    assert "letmein" not in " ".join(command)


@pytest.mark.parametrize("script", ["import json\njson.loads('{')\n", "1 +\n"])
def test_tracebacks_begin_in_the_script(run: RunDirectory, tmp_path: Path, script: str) -> None:
    _, done = driver(run, tmp_path, script)
    path = tmp_path / "the_script.py"
    plain = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.stderr == plain.stderr
    assert done.returncode == plain.returncode == 1
