"""Runs the job, feeds it, kills its processes as planned, and has everything verified."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from soak.place import JOB, CommandError, Place, command_line
from soak.plan import SERVERS, Kind, Step, Victim, plan
from soak.reader import Reader
from soak.replay import Fed
from soak.summary import Summary
from soak.verify import verify_output, verify_rows, verify_savepoint

_PROGRESS_S = 240.0
_FIRST_START_S = 300.0
_SLOW_MACHINE = 4
_LOST_S = 6.0
_APPEARS_S = 3.0
_LEFT_OVER_S = 30.0
_POLL_S = 0.2


class AbandonedError(Exception):
    """It makes no sense to go on."""


class Soak:
    """One soak.

    Args:
        place: Where.
        seed: From which the records and the kills follow.
        without: Processes that are not killed.
        tell: Gets a line for everything that happens.
    """

    def __init__(
        self,
        place: Place,
        seed: int,
        without: Iterable[Victim] = (),
        tell: Callable[[str], None] = print,
    ) -> None:
        self.summary = Summary(seed)
        self._place = place
        missing = () if place.servers is not None else SERVERS
        self._plan = plan(seed, (*without, *missing))
        self._print = tell
        self._began = time.monotonic()
        self._reader = Reader(place.out)
        self._asked: list[tuple[Step, subprocess.Popen[str]]] = []
        self._savepoints: list[str] = []
        self._patience_s = _FIRST_START_S

    def run(self, minutes: float) -> Summary:
        """Do it all; the summary says whether something was wrong."""
        self._tell(f"seed {self.summary.seed}, {minutes:g} minutes, in {self._place.directory}")
        try:
            self._reader.start()
            with self._fed():
                self._begin()
                self._kill_for(minutes * 60)
            self._drain()
            self._verify(self._stop_job())
        except AbandonedError as error:
            self._tell(f"given up: {error}")
        finally:
            self._place.kill_all()
            self._reader.stop()
        self._count()
        return self.summary

    # -- the job

    @contextmanager
    def _fed(self) -> Iterator[None]:
        """Let a process of its own feed the job."""
        place, script = self._place, Path(__file__).with_name("feeder.py")
        stop = place.directory / "stop"
        paths = (place.events, place.fed, stop)
        feeder = subprocess.Popen(
            [sys.executable, script, *paths, "--seed", str(self.summary.seed)],
            stdin=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            stop.touch()
            code = feeder.wait(30)
        if code != 0:
            self._violation(f"the feeder ended with exit status {code}")

    def _begin(self) -> None:
        """Start the job, and see how long a start takes on this machine as it is now."""
        begin = time.monotonic()
        self._start_job("the first start")
        self._await_progress(0, allowed_to_end=False)
        self._patience_s = max(_PROGRESS_S, _SLOW_MACHINE * (time.monotonic() - begin))
        self.summary.slowest_s = 0.0
        self._tell(f"a job without two more epochs for {self._patience_s:.0f} s stands still")

    def _start_job(self, why: str) -> None:
        self._tell(f"turnback run: {why}")
        try:
            self._place.run_job()
        except CommandError as error:
            self._violation(f"turnback run failed ({why}): {error}", log=True)
            raise AbandonedError("the job does not start") from error

    def _drain(self) -> None:
        fed = Fed.read(self._place.events, self._place.fed).total
        self._tell(f"{fed} records were fed, {self._reader.rows()} are in the output")
        rows, since = -1, time.monotonic()
        while (there := self._reader.rows()) < fed:
            self._check_reader()
            if there > rows:
                rows, since = there, time.monotonic()
            elif time.monotonic() - since > self._patience_s:
                self._violation(f"{rows} of {fed} records are in the output, no more", log=True)
                return
            time.sleep(_POLL_S)

    def _stop_job(self) -> str | None:
        """Stop with a savepoint; returns where it is."""
        self._await_savepoints(patient=True)
        try:
            done = self._place.turnback("stop", JOB, "--savepoint", "--yes")
        except CommandError as error:
            self._violation(f"stop --savepoint failed: {error}", log=True)
            return None
        self._tell(f"stopped with {done['path']}")
        end = time.monotonic() + _LEFT_OVER_S
        while (left := self._place.processes()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        if left:
            told = "; ".join(f"{p.pid} {command_line(p)[:200]}" for p in left)
            self._violation(f"{len(left)} processes are left after the end: {told}", log=True)
        if (state := self._place.state()) != "FINISHED":
            self._violation(f"after the stop the job is {state}", log=True)
        return str(done["path"])

    # -- kills

    def _kill_for(self, seconds: float) -> None:
        begin = time.monotonic()
        for step in self._plan:
            time.sleep(step.pause_s)
            self.summary.minutes = (time.monotonic() - begin) / 60
            if time.monotonic() - begin >= seconds:
                return
            self._take(step)
            self._await_savepoints(patient=False)

    def _take(self, step: Step) -> None:
        self._tell(str(step))
        self.summary.steps[step.kind] += 1
        if step.kind is Kind.SAVEPOINT:
            self._ask_for_savepoint(step)
        if step.kind in (Kind.DATABASE, Kind.BROKER):
            self._kill_server(step)
            self._await_progress(self._reader.epoch, allowed_to_end=False)
            return
        for number, victim in enumerate(step.victims):
            if number or step.kind is Kind.SAVEPOINT:
                time.sleep(step.delay_s)
            self._kill(victim, step.pick)
        # A supervisor that dies alone is replaced; if the driver dies as well, nobody may be left.
        may_end = Victim.SUPERVISOR in step.victims and set(step.victims) != {Victim.SUPERVISOR}
        self._await_progress(self._reader.epoch, allowed_to_end=may_end)

    def _kill_server(self, step: Step) -> None:
        """Kill a server, and start it again after a while, as often as planned."""
        servers = self._place.servers
        assert servers is not None
        server = servers.database if step.kind is Kind.DATABASE else servers.broker
        for _ in step.victims:
            server.crash()
            self._tell(f"killed the {step.kind}")
            self.summary.kills[step.kind] += 1
            time.sleep(step.delay_s)
            server.start()

    def _kill(self, victim: Victim, pick: float) -> None:
        end = time.monotonic() + _APPEARS_S
        while not (found := self._place.find(victim)) and time.monotonic() < end:
            time.sleep(0.05)
        process = found[int(pick * len(found))] if found else None
        if process is not None and self._place.kill(process):
            self._tell(f"killed {victim} {process.pid}")
            self.summary.kills[victim] += 1
        else:
            self._tell(f"no {victim} at this moment")
            self.summary.skipped[victim] += 1

    def _await_progress(self, epoch: int, *, allowed_to_end: bool) -> None:
        """Wait until two more epochs are committed and all processes are there again.

        Args:
            epoch: The newest that was committed.
            allowed_to_end: Whether supervisor and driver may both be gone.
        """
        begin = since = alive = time.monotonic()
        while True:
            self._check_reader()
            supervisor = self._place.find(Victim.SUPERVISOR)
            driver = self._place.find(Victim.DRIVER)
            now = time.monotonic()
            if self._reader.epoch >= epoch + 2 and supervisor and driver:
                self.summary.slowest_s = max(self.summary.slowest_s, now - begin)
                return
            if supervisor or driver or self._place.anyone_left():
                alive = now
            if now - alive > _LOST_S:
                self._start_again(allowed_to_end)
                since = alive = time.monotonic()
            elif now - since > self._patience_s:
                self._violation(
                    f"stands still: no two epochs for {self._patience_s:.0f} s", log=True
                )
                self._place.kill_all()
                raise AbandonedError("the job stands still")
            time.sleep(_POLL_S)

    def _start_again(self, allowed: bool) -> None:
        state = self._place.state()
        if not allowed:
            self._violation(f"supervisor and driver have ended, the job is {state}", log=True)
        self.summary.started_by_hand += 1
        self._start_job(f"nobody is left, the job is {state}")

    # -- savepoints

    def _ask_for_savepoint(self, step: Step) -> None:
        """Ask, and return when the request has been put to the job."""
        before = self._place.requests()
        process = self._place.begin(
            "savepoint",
            JOB,
            "--label",
            f"step-{step.number}",
            "--timeout",
            f"{self._patience_s:.0f} s",
        )
        self._asked.append((step, process))
        end = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < end:
            if self._place.requests() - before:
                return
            time.sleep(0.02)

    def _await_savepoints(self, *, patient: bool) -> None:
        """Take note of answers; when patient, wait for those that are missing."""
        left = []
        for step, process in self._asked:
            if not patient and process.poll() is None:
                left.append((step, process))
                continue
            try:
                path = str(self._place.result(process, self._patience_s + 30)["path"])
            except CommandError as error:
                self._violation(f"the savepoint of step {step.number} failed: {error}", log=True)
            else:
                self._tell(f"savepoint of step {step.number}: {path}")
                self._savepoints.append(path)
        self._asked = left

    # -- what came of it

    def _verify(self, last: str | None) -> None:
        self._reader.stop()
        self._check_reader()
        fed = Fed.read(self._place.events, self._place.fed)
        for line in verify_output(fed, self._place.out):
            self._violation(f"output: {line}")
        if (servers := self._place.servers) is not None:
            for line in verify_rows(fed, servers.account_rows(), servers.region_rows()):
                self._violation(f"servers: {line}")
            if left := servers.left_open():
                self._violation(f"transactions are left open: {left}")
        for path in (*self._savepoints, *([last] if last else ())):
            try:
                lines = verify_savepoint(fed, path, complete=path == last)
            except (OSError, ValueError, KeyError) as error:
                lines = [f"cannot be read: {error!r}"]
            for line in lines:
                self._violation(f"savepoint {path}: {line}")
            self.summary.savepoints += 1

    def _check_reader(self) -> None:
        if self._reader.problem is not None:
            self._violation(f"a reader of the output: {self._reader.problem}", log=True)
            raise AbandonedError("the output is wrong")

    def _count(self) -> None:
        status = self._place.status()
        self.summary.attempts = status.get("attempt") or 0
        self.summary.checkpoints = status.get("checkpoint") or 0
        self.summary.epochs = self._reader.epochs
        if self._place.fed.exists():
            fed = Fed.read(self._place.events, self._place.fed)
            self.summary.records_fed, self.summary.files_fed = fed.total, len(fed.files)

    def _violation(self, text: str, *, log: bool = False) -> None:
        at = time.monotonic() - self._began
        self.summary.violations.append(f"after {at:.0f} s: {text}")
        self._tell(f"VIOLATION: {text}")
        if log:
            self._tell(self._place.log_tail())

    def _tell(self, text: str) -> None:
        self._print(f"[{time.monotonic() - self._began:7.1f}] {text}")
