"""The input of the ledger job, the processes that run it, and an independent reader of its tables.

The reader uses nothing of Turnback: it knows the input, and has a connection of its own.
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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crash.driver import Driver
from turnback import MySqlSink, PostgresSink
from turnback.sinks.base import WriterContext
from turnback.types.columns import Batch
from turnback.types.typeinfo import Types

_JOB = Path(__file__).with_name("ledger_job.py")
_HOT = 8


def ledger_size(files: int) -> dict[str, int]:
    """How much there is to do; TURNBACK_LEDGER=500x400 makes it more."""
    keys, _, length = os.environ.get("TURNBACK_LEDGER", "60x30").partition("x")
    return {"keys": int(keys), "length": int(length), "files": files}


class Ledger:
    """Transfers between accounts, numbered within their key.

    Args:
        base: Where files go.
        server: A PostgreSQL or MariaDB that has a user and a database.
        kind: Which of them.
        parameters: How sinks connect.
        password: For them.
        keys: How many sequences.
        length: Of each.
        files: How many files, of which an epoch reads one.
    """

    def __init__(
        self,
        base: Path,
        server: Any,
        kind: str,
        parameters: dict[str, Any],
        password: str,
        *,
        keys: int,
        length: int,
        files: int,
        seed: int = 7,
    ) -> None:
        print(f"{keys} keys x {length}, {files} files, seed {seed}")
        self._base, self._server, self._kind = base, server, kind
        self._parameters, self._password = parameters, password
        self._drivers: list[Driver] = []
        self.problems: list[str] = []
        self.reads = 0
        self.truth = self._write(keys, length, files, random.Random(seed))
        self.balances: Counter[str] = Counter()
        for transfer in self.truth:
            self.balances[transfer["source"]] -= transfer["amount"]
            self.balances[transfer["target"]] += transfer["amount"]

    def _write(self, keys: int, length: int, files: int, choose: random.Random) -> list[Any]:
        directory = self._base / "input"
        directory.mkdir(parents=True)
        order = [key for key in range(keys) for _ in range(length)]
        choose.shuffle(order)
        numbers = dict.fromkeys(range(keys), 0)
        transfers = []
        for key in order:
            accounts = [f"hot {n}" for n in range(_HOT)] + [f"account {n}" for n in range(keys)]
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

    def start(self, *arguments: str, kill_at: str | None = None) -> Driver:
        """Start a driver, which waits for `go`; it dies at the point, if one is given."""
        number = len(self._drivers)
        gate = self._base / f"gate-{number}"
        environment = {"LEDGER_PASSWORD": self._password}
        if kill_at:
            environment["TURNBACK_KILL_AT"] = kill_at
        command = [
            *("--root", str(self._base / "jobs"), "--input", str(self._base / "input")),
            *("--gate", str(gate), "--kind", self._kind),
            *("--server", json.dumps(self._parameters), *arguments),
        ]
        directory = self._base / f"driver-{number}"
        self._drivers.append(Driver(command, directory, gate, environment, _JOB))
        return self._drivers[-1]

    def run_with_kills(self, points: list[str], *arguments: str) -> None:
        """Run the job to its end, with one driver killed at each point; the next one waits ready.

        Raises:
            AssertionError: A driver did not come to its point, or failed otherwise.
        """
        waiting = self.start(*arguments, kill_at=points[0])
        for point, following in zip(points, [*points[1:], None], strict=True):
            driver, waiting = waiting, self.start(*arguments, kill_at=following)
            driver.go()
            status = driver.wait()
            assert status == -signal.SIGKILL, f"{point}: {status}\n{driver.errors}"
        waiting.go()
        assert waiting.wait() == 0, waiting.errors

    def turnback(self, *arguments: str) -> Any:
        """What the command line tool says."""
        done = subprocess.run(
            [Path(sys.executable).with_name("turnback"), "--json", *arguments],
            env=os.environ
            | {
                "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": str(self._base / "jobs"),
                "LEDGER_PASSWORD": self._password,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert self._password not in done.stdout + done.stderr
        return json.loads(done.stdout)

    def write_behind_the_jobs_back(self) -> None:
        """Prepare a transaction that no checkpoint promises, as a task that died does."""
        (info,) = (self._base / "jobs").glob("*/job.json")
        found = re.search(r'"job_id": ?"([^"]+)"', info.read_text())
        assert found is not None
        job_id = found[1]
        kind = Types.ROW_NAMED(
            ["key", "seq", "previous"], [Types.STRING(), Types.LONG(), Types.LONG()]
        )
        make = PostgresSink if self._kind == "postgres" else MySqlSink
        sink = make(**self._parameters, password=self._password, table="sequence")
        writer = sink.writer(WriterContext("ledger", job_id, "rows", 1, 10**6, 0, 10**6, kind))
        writer.write(Batch(kind, [("left", 0, -1)]))
        writer.prepare()

    def kill(self) -> None:
        """End all drivers."""
        for driver in self._drivers:
            driver.kill()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the tables all the time; what is wrong goes to `problems`."""
        done = threading.Event()

        def read() -> None:
            while not done.wait(0.02):
                try:
                    found = self.examine(partial=True)
                except Exception as error:  # noqa: BLE001 - the server may be down
                    found = [] if "connect" in str(error).lower() else [repr(error)]
                self.reads += 1
                self.problems += [problem for problem in found if problem not in self.problems]

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            done.set()
            reader.join()

    def examine(self, *, partial: bool = False) -> list[str]:
        """Say what is wrong with what readers see; while it runs, the ends may be missing."""
        columns = f"{self._key}, seq, previous"
        rows = self._server.query(f"SELECT {columns} FROM sequence")
        problems = []
        seen: dict[str, list[int]] = {}
        for key, seq, previous in rows:
            seen.setdefault(key, []).append(seq)
            if previous != seq - 1:
                problems.append(f"{key}: {previous} came before {seq}")
        for key, numbers in seen.items():
            if sorted(numbers) != list(range(len(numbers))):
                problems.append(f"{key}: {Counter(numbers) - Counter(set(numbers))} twice, or gaps")
        ((total,),) = self._server.query("SELECT sum(balance) FROM balances")
        if total:
            problems.append(f"{total} was made or lost")
        if not partial:
            if len(rows) != len(self.truth):
                problems.append(f"{len(rows)} rows instead of {len(self.truth)}")
            found = dict(self._server.query("SELECT account, balance FROM balances"))
            if found != self.balances:
                problems.append("balances differ")
        return problems

    @property
    def _key(self) -> str:
        return "`key`" if self._kind == "mysql" else '"key"'

    def create_tables(self) -> None:
        """Make the tables anew."""
        names = ("sequence", "balances", "turnback_owners", "turnback_commits", "turnback_progress")
        self._server.run(*(f"DROP TABLE IF EXISTS {name}" for name in names))
        self._server.run(
            f"CREATE TABLE sequence ({self._key} varchar(20), seq bigint, previous bigint)",
            "CREATE TABLE balances (account varchar(20) PRIMARY KEY, balance bigint)",
        )
