"""Everything of one soak below one directory: input, output, the job, and its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from soak.plan import Victim
from soak.servers import Servers
from turnback.job.run import ProcessId, RunDirectory

JOB = "soak"
_TURNBACK = Path(sys.executable).with_name("turnback")
_SCRIPT = Path(__file__).with_name("job.py")
_SETTINGS = """
state.checkpoints.dir: {0}/jobs
state.savepoints.dir: {0}/savepoints
state.backend.type: rocksdb
state.backend.local-dir: {0}/local
run.dir: {0}/runs
parallelism.default: 2
execution.checkpointing.num-retained: 2
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 100000
restart-strategy.fixed-delay.delay: 1 s
spark.driver.memory: 1g
spark.sql.shuffle.partitions: 2
spark.ui.enabled: false
"""
_ALONE = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class CommandError(Exception):
    """A command of the installed program failed or took too long."""


class Place:
    """The directories of one soak, and the job in them.

    Args:
        directory: An empty one.
        java: Options for Java.
        servers: What the job works with besides files, if anything.
    """

    def __init__(self, directory: Path, java: str, servers: Servers | None = None) -> None:
        self.servers = servers
        self.directory = directory.resolve()
        self.events = self.directory / "events"
        self.fed = self.directory / "fed.jsonl"
        self.out = self.directory / "out"
        self.runs = self.directory / "runs"
        self.job = self.directory / "jobs" / JOB
        for path in (self.events, self.runs, self.directory / "tmp"):
            path.mkdir(parents=True)
        settings = self.directory / "turnback.yaml"
        more = _ALONE if servers is None else servers.settings
        lines = "".join(f"{key}: {value}\n" for key, value in more.items())
        settings.write_text(_SETTINGS.format(self.directory) + lines)
        self._mark = f"TURNBACK_CONF={settings}"
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TURNBACK_")},
            "TURNBACK_CONF": str(settings),
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory / "tmp"),
            "SPARK_LOCAL_DIRS": str(self.directory / "tmp"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": f"{java} -Djava.io.tmpdir={self.directory / 'tmp'}",
            **({} if servers is None else servers.environment),
        }
        self._arguments = () if servers is None else servers.arguments

    # -- the installed program

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the installed program with --json."""
        return subprocess.Popen(
            [str(_TURNBACK), "--json", *arguments],
            env=self._environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self, process: subprocess.Popen[str], timeout_s: float) -> Any:
        """Wait for a command's end and return what it printed.

        Raises:
            CommandError: It failed or took too long.
        """
        words = " ".join(map(str, process.args)) if isinstance(process.args, list) else ""
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise CommandError(f"no end after {timeout_s:g} s: {words}") from None
        if process.returncode != 0:
            raise CommandError(f"exit {process.returncode}: {words}\n{out}\n{err}")
        return json.loads(out)

    def turnback(self, *arguments: str, timeout_s: float = 300) -> Any:
        """Run the installed program with --json; returns what it printed."""
        return self.result(self.begin(*arguments), timeout_s)

    def run_job(self) -> None:
        """Start the job, or start it again."""
        script = (str(_SCRIPT), str(self.events), str(self.out))
        self.turnback("run", "-d", *script, *self._arguments)

    def run_bounded(self) -> None:
        """Run the job until the end of its input."""
        self.turnback("run", str(_SCRIPT), str(self.events), str(self.out), "--bounded")

    def state(self) -> str:
        """Return the state of the job, in the words of `turnback status`."""
        return str(self.turnback("status", JOB)["summary"]["state"])

    # -- what the job tells

    def status(self) -> dict[str, Any]:
        """Return what the driver last said; nothing if there is no word yet."""
        try:
            status: dict[str, Any] = json.loads((self.job / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return status

    def requests(self) -> set[str]:
        """Return the names of the requests that were put to the job."""
        return {path.name for path in self.job.glob("ops/*.json") if path.name.count(".") == 1}

    def log_tail(self, lines: int = 60) -> str:
        """Return the end of what the newest launch printed."""
        launch = self._launch()
        if launch is None or not launch.log.exists():
            return "no log"
        text = launch.log.read_text(errors="replace")
        return "\n".join([f"--- {launch.log}", *text.splitlines()[-lines:]])

    # -- processes

    def find(self, victim: Victim) -> list[ProcessId]:
        """Return the live processes of a kind; workers may be several."""
        launch = self._launch()
        if launch is None:
            return []
        if victim is Victim.SUPERVISOR:
            return _alive(launch.supervisor())
        drivers = _alive(launch.driver())
        if victim is Victim.DRIVER or not drivers:
            return drivers
        children = _children()
        if self.servers is not None and victim in (Victim.EXECUTOR, Victim.WORKER):
            executors = self.servers.cluster.executors()
            if victim is Victim.EXECUTOR:
                return [ProcessId.of(pid) for pid in executors]
            return [ProcessId.of(pid) for jvm in executors for pid in _below(jvm, children)]
        jvms = [pid for pid in children.get(drivers[0].pid, ()) if _name(pid) == "java"]
        if victim is Victim.JVM:
            return [ProcessId.of(pid) for pid in jvms]
        return [ProcessId.of(pid) for jvm in jvms for pid in _below(jvm, children)]

    def kill(self, process: ProcessId) -> bool:
        """Kill a process; returns whether it was still there."""
        if not process.is_alive():
            return False
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def processes(self) -> list[ProcessId]:
        """Return all processes that were started for this soak, also orphaned ones."""
        found = []
        for path in Path("/proc").iterdir():
            if path.name.isdecimal() and int(path.name) != os.getpid():
                try:
                    environment = (path / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if self._mark.encode() in environment:
                    found.append(ProcessId.of(int(path.name)))
        return [process for process in found if process.is_alive()]

    def anyone_left(self) -> bool:
        """Return whether a supervisor or a driver lives, also one that has not said so yet."""
        words = ("turnback.launch.supervisor", str(_SCRIPT))
        return any(w in command_line(p) for p in self.processes() for w in words)

    def kill_all(self) -> None:
        """Kill whatever was started for this soak and is still there."""
        while left := self.processes():
            for process in left:
                self.kill(process)

    def _launch(self) -> RunDirectory | None:
        launches = sorted(self.runs.iterdir())
        return RunDirectory(launches[-1]) if launches else None


def command_line(process: ProcessId) -> str:
    """Return how a process was started, as far as that can still be told."""
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "gone"
    return " ".join(word.decode(errors="replace") for word in words)


def _alive(process: ProcessId | None) -> list[ProcessId]:
    return [process] if process is not None and process.is_alive() else []


def _children() -> dict[int, list[int]]:
    """Numbers of processes by that of their parent."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            children.setdefault(int(parent), []).append(int(path.name))
    return children


def _below(pid: int, children: dict[int, list[int]]) -> list[int]:
    found = []
    for child in sorted(children.get(pid, ())):
        found += [child, *_below(child, children)]
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
