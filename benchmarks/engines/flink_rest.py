"""What Flink's own REST interface says of a job in the mini cluster of this process."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.request import ProxyHandler, build_opener


class FlinkRest:
    """Asks the mini cluster that was started with `settings`."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self._port = free.getsockname()[1]
        # Whatever proxy is set for the world outside is not for this machine.
        self._opener = build_opener(ProxyHandler({}))

    @property
    def settings(self) -> dict[str, str]:
        return {
            "rest.address": "localhost",
            "rest.port": str(self._port),
            "rest.bind-port": str(self._port),
            "metrics.fetcher.update-interval": "100 ms",
        }

    def records_read(self, job: str, operator: str) -> int:
        """Records that have entered the task with `operator` in it."""
        for vertex in self._get(f"/jobs/{job}")["vertices"]:
            if operator in vertex["name"]:
                return int(vertex["metrics"]["read-records"])
        raise LookupError(f"job {job} has no {operator}")

    def wait_until_read(self, job: str, operator: str, records: int, timeout: float) -> None:
        """Wait until exactly so many records have entered; more are an error."""
        deadline = time.monotonic() + timeout
        while (read := self.records_read(job, operator)) < records:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{read} records read in {timeout:.0f} s, not {records}")
            time.sleep(0.1)
        if read > records:
            raise RuntimeError(f"{read} records read, but there are only {records}")

    def checkpoints(self, job: str) -> int:
        """How many are complete."""
        return int(self._get(f"/jobs/{job}/checkpoints")["counts"]["completed"])

    def _get(self, path: str) -> Any:
        with self._opener.open(f"http://localhost:{self._port}{path}", timeout=30) as answer:
            return json.load(answer)
