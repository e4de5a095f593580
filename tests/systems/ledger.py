"""The input of the ledger job, the processes that run it, and an independent check of its output.

The check uses nothing of Turnback: it knows the input, and has a reader of its own.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledger_targets import Target

from crash.driver import Driver
from turnback.connectors.sql import MySqlSink, PostgresSink
from turnback.sinks.base import WriterContext
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

_JOB = Path(__file__).with_name("ledger_job.py")
_HOT = 8
CALM = ("--epoch-interval", "100")
"""At most ten epochs a second, so that a kill by the clock comes before the end of the input."""
Kill = str | float
"""A named point, or how many seconds after the start."""


def ledger_size(files: int) -> dict[str, int]:
    """How much there is to do; TURNBACK_LEDGER=500x400 makes it more."""
    keys, _, length = os.environ.get("TURNBACK_LEDGER", "60x30").partition("x")
    return {"keys": int(keys), "length": int(length), "files": files}


class Ledger:
    """Transfers between accounts, numbered within their key.

    Args:
        base: Where files go.
        target: Where the job writes; it is made empty.
        keys: How many sequences; there are twice as many accounts, and some hot ones.
        length: Of each.
        files: How many files, of which an epoch reads one.
        seed: Decides the transfers.
    """

    def __init__(
        self,
        base: Path,
        target: Target,
        *,
        keys: int,
        length: int,
        files: int,
        seed: int = 7,
    ) -> None:
        print(f"{keys} keys x {length}, {files} files, seed {seed}")
        self._base, self.target = base, target
        self._drivers: list[Driver] = []
        self._most: dict[str, int] = {}
        self.problems: list[str] = []
        self.reads = 0
        self.truth = self._write(keys, length, files, random.Random(seed))
        self.balances: Counter[str] = Counter()
        for transfer in self.truth:
            self.balances[transfer["source"]] -= transfer["amount"]
            self.balances[transfer["target"]] += transfer["amount"]
        target.create()

    def _write(self, keys: int, length: int, files: int, choose: random.Random) -> list[Any]:
        directory = self._base / "input"
        directory.mkdir(parents=True)
        order = [key for key in range(keys) for _ in range(length)]
        choose.shuffle(order)
        numbers = dict.fromkeys(range(keys), 0)
        accounts = [f"hot {n}" for n in range(_HOT)] + [f"account {n}" for n in range(2 * keys)]
        transfers = []
        for key in order:
            source, target = choose.sample(accounts, 2)
            transfers.append(
                {"key": f"k{key}", "seq": numbers[key], "source": source, "target": target}
                | {"amount": choose.randrange(1, 1000)}
            )
            numbers[key] += 1
        size = -(-len(transfers) // files)
        for file in range(files):
            path = directory / f"{file:04d}.json"
            part = transfers[file * size : (file + 1) * size]
            path.write_text("".join(json.dumps(transfer) + "\n" for transfer in part))
            os.utime(path, (1_700_000_000 + file,) * 2)
        return transfers

    # -- drivers

    def start(self, *arguments: str, **environment: str) -> Driver:
        """Start a driver, which waits for `go`."""
        number = len(self._drivers)
        gate = self._base / f"gate-{number}"
        command = [
            *("--root", str(self._base / "jobs"), "--input", str(self._base / "input")),
            *("--gate", str(gate), "--kind", self.target.kind),
            *("--server", json.dumps(self.target.parameters), *arguments),
        ]
        given = {"LEDGER_PASSWORD": self.target.password, **environment}
        directory = self._base / f"driver-{number}"
        self._drivers.append(Driver(command, directory, gate, given, _JOB))
        return self._drivers[-1]

    def start_to_kill(self, kill: Kill | None, *arguments: str) -> Driver:
        """Start a driver that dies at a point, if one is given."""
        at = {"TURNBACK_KILL_AT": kill} if isinstance(kill, str) else {}
        return self.start(*arguments, **at)

    def run_with_kills(self, kills: Sequence[Kill], *arguments: str) -> None:
        """Run the job to its end, with one driver killed each time; the next one waits ready.

        Raises:
            AssertionError: A driver was not killed, or failed otherwise.
        """
        waiting = self.start_to_kill(kills[0], *arguments)
        for kill, following in zip(kills, [*kills[1:], None], strict=True):
            driver, waiting = waiting, self.start_to_kill(following, *arguments)
            if isinstance(kill, float):
                driver.until_ready()
            driver.go()
            if isinstance(kill, float):
                time.sleep(kill)
                driver.process.kill()
            status = driver.wait()
            assert status == -signal.SIGKILL, f"{kill}: {status}\n{driver.errors}"
        waiting.go()
        assert waiting.wait() == 0, waiting.errors

    def kill(self) -> None:
        """End all drivers."""
        for driver in self._drivers:
            driver.kill()

    # -- what a dead job has left

    def turnback(self, *arguments: str) -> Any:
        """What the command line tool says."""
        done = subprocess.run(
            [Path(sys.executable).with_name("turnback"), "--json", *arguments],
            env=os.environ
            | {
                "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(self._base / "jobs"),
                "LEDGER_PASSWORD": self.target.password,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert self.target.password not in done.stdout + done.stderr
        return json.loads(done.stdout)

    @property
    def job(self) -> Path:
        """The job directory."""
        (info,) = (self._base / "jobs").glob("*/job.json")
        return info.parent

    def write_behind_the_jobs_back(self) -> None:
        """Prepare a transaction that no checkpoint promises, as a task that died does."""
        found = re.search(r'"job_id": ?"([^"]+)"', (self.job / "job.json").read_text())
        assert found is not None
        job_id = found[1]
        kind = Types.ROW_NAMED(
            ["key", "seq", "previous"], [Types.STRING(), Types.LONG(), Types.LONG()]
        )
        make = PostgresSink if self.target.kind == "postgres" else MySqlSink
        sink = make(**self.target.parameters, password=self.target.password, table="sequence")
        writer = sink.writer(WriterContext("ledger", job_id, "rows", 1, 10**6, 0, 10**6, kind))
        writer.write(Batch(kind, [("left", 0, -1)]))
        writer.prepare()

    # -- what readers see

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the target all the time; what is wrong goes to `problems`."""
        done = threading.Event()

        def read() -> None:
            pause = 0.02
            while not done.wait(pause):
                began = time.monotonic()
                try:
                    found = self.examine(partial=True)
                except Exception as error:  # noqa: BLE001 - a reader that fails is a problem too
                    found = [repr(error)]
                self.reads += 1
                self.problems += [problem for problem in found if problem not in self.problems]
                pause = max(0.02, 2 * (time.monotonic() - began))  # the job needs the machine too

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            done.set()
            reader.join()

    def examine(self, *, partial: bool = False) -> list[str]:
        """Say what is wrong with what readers see; while it runs, the ends may be missing."""
        rows = self.target.sequence()
        problems = []
        seen: dict[str, list[int]] = {}
        for key, seq, previous in rows:
            seen.setdefault(key, []).append(seq)
            if previous != seq - 1:
                problems.append(f"{key}: {previous} came before {seq}")
        for key, numbers in seen.items():
            if sorted(numbers) != list(range(len(numbers))):
                problems.append(f"{key}: {Counter(numbers) - Counter(set(numbers))} twice, or gaps")
        problems += self._vanished({key: len(numbers) for key, numbers in seen.items()})
        balances = self.target.balances()
        total = sum(balances.values())
        if total and (self.target.whole_epochs or not partial):
            problems.append(f"{total} was made or lost")
        if not partial:
            if len(rows) != len(self.truth):
                problems.append(f"{len(rows)} rows instead of {len(self.truth)}")
            if balances != self.balances:
                problems.append("balances differ")
        return problems

    def _vanished(self, counts: dict[str, int]) -> list[str]:
        """Rows that a reader has seen before, and that are gone."""
        problems = []
        for key, most in self._most.items():
            if counts.get(key, 0) < most:
                problems.append(f"{key}: {most - counts.get(key, 0)} rows have vanished")
        self._most |= {n: max(count, self._most.get(n, 0)) for n, count in counts.items()}
        return problems
