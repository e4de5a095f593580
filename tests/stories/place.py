"""One place for a story: input, output, jobs and launches, and the installed program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from services.missing import missing
from turnback.job.run import RunDirectory

TURNBACK = Path(sys.executable).with_name("turnback")
JOB = Path(__file__).with_name("counts.py")
PATIENCE_S = 300.0
USERS = ("ann", "bob", "cid")


class Place:
    """Everything of one story below one directory.

    Args:
        directory: Where it is.
        java: Options for Java; None for drivers without a JVM.
    """

    def __init__(self, directory: Path, java: str | None) -> None:
        self.directory = directory
        self.events = directory / "events"
        self.out = directory / "out"
        self.jobs = directory / "jobs"
        self.savepoints = directory / "savepoints"
        self.runs = directory / "runs"
        self.fed: dict[str, int] = defaultdict(int)
        self.host: str | None = None
        """The name of the machine that programs are started on; None for this one's."""
        self.events.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(self.jobs),
            "TURNBACK_CONF_STATE_SAVEPOINTS_DIR": str(self.savepoints),
            "TURNBACK_CONF_RUN_DIR": str(self.runs),
        }
        engine = {"COUNTS_ENGINE": "local"} if java is None else {"JDK_JAVA_OPTIONS": java}
        self.environment |= engine
        self.environment.pop("TURNBACK_CONF", None)

    # -- the program

    def turnback(self, *arguments: Any, code: int = 0) -> str:
        """Run the installed program; returns what it printed."""
        done = subprocess.run(
            self._command(*arguments),
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        told = f"turnback {arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, told
        return done.stdout + (done.stderr if code else "")

    def _command(self, *arguments: Any) -> list[str]:
        command = [str(TURNBACK), *map(str, arguments)]
        if self.host is None:
            return command
        user = [] if os.getuid() == 0 else ["--map-root-user"]
        renamed = ["unshare", *user, "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.host]
        if subprocess.run([*renamed, "true"], capture_output=True, check=False).returncode:
            missing("this machine does not allow host names of one's own (unshare --uts)")
        return [*renamed, *command]

    def ask(self, *arguments: Any) -> Any:
        """Run the installed program with --json."""
        return json.loads(self.turnback("--json", *arguments))

    def run(self, *options: Any, out: Path | None = None, script: tuple[str, ...] = ()) -> Any:
        """`turnback run -d`; returns the job."""
        return json.loads(
            self.turnback(
                "run", "-d", "--json", *options, JOB, self.events, out or self.out, *script
            )
        )

    def background(self, *arguments: Any) -> subprocess.Popen[str]:
        """Start the installed program."""
        return subprocess.Popen(
            self._command(*arguments),
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    # -- input and output

    def feed(self, files: int = 2, each: int = 30) -> None:
        """Add input files, each visible at once."""
        for _ in range(files):
            rows = []
            for i in range(each):
                user = USERS[i % len(USERS)]
                self.fed[user] += 1
                rows.append(json.dumps({"user": user, "kind": "even" if i % 2 else "odd"}))
            number = len(list(self.events.iterdir()))
            hidden = self.events / f".{number:05d}"
            hidden.write_text("\n".join(rows) + "\n")
            hidden.rename(self.events / f"{number:05d}.json")

    def counted(self, out: Path | None = None, table: str = "users") -> dict[str, list[int]]:
        """What has been written, by user; read by nothing of Turnback."""
        found: dict[str, list[int]] = defaultdict(list)
        for path in (out or self.out).joinpath(table).glob("*.json"):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                found[row["key"]].append(row["n"])
        return {user: sorted(numbers) for user, numbers in found.items()}

    def complete(self, out: Path | None = None, after: dict[str, int] | None = None) -> bool:
        """Whether every number is there; fails at once if one is there twice."""
        counted = self.counted(out)
        for user, numbers in counted.items():
            assert len(set(numbers)) == len(numbers), f"{user} has doubles: {numbers}"
        begin = after or {}
        return counted == {
            user: list(range(begin.get(user, 0) + 1, total + 1))
            for user, total in self.fed.items()
            if total > begin.get(user, 0)
        }

    def await_complete(self, out: Path | None = None, after: dict[str, int] | None = None) -> None:
        self.until(lambda: self.complete(out, after), "all events counted exactly once")

    def until(self, what: Callable[[], Any], told: str) -> Any:
        """Wait for something to be true."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = what()
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"not within {PATIENCE_S:g} s: {told}\n{self.logs()}")

    # -- processes

    def launch(self, number: int = -1) -> RunDirectory:
        """One of the launches, by default the newest."""
        return RunDirectory(sorted(self.runs.iterdir())[number])

    def kill(self, *pids: int) -> None:
        """End processes as an operating system short of memory does."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def logs(self) -> str:
        """Everything drivers have printed."""
        found = sorted(self.runs.glob("*/driver.log")) if self.runs.exists() else []
        return "\n".join(f"--- {path}\n{path.read_text()[-4000:]}" for path in found)

    def close(self) -> None:
        """End what still runs, supervisors first."""
        for path in self.runs.iterdir() if self.runs.exists() else ():
            run = RunDirectory(path)
            for process in (run.supervisor(), run.driver(), run.supervisor()):
                if process is not None and process.is_alive():
                    self.kill(process.pid)
