"""A real Redis server that keeps every write in its append-only file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.missing import missing
from services.process import accepts, free_port, running, stop

PASSWORD = "turnback-redis-secret"


@dataclass
class RedisServer:
    """A running server with a password."""

    port: int
    directory: Path
    process: subprocess.Popen[bytes]
    command: list[str]

    @property
    def url(self) -> str:
        """How to connect, without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    def connect(self, **parameters: Any) -> Any:
        """A client."""
        import redis

        return redis.Redis.from_url(self.url, password=PASSWORD, **parameters)

    def crash(self) -> None:
        """End the server at once."""
        self.process.kill()
        self.process.wait(20)

    def start(self) -> None:
        """Start it again on the same data and port."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while not _ready(self.port):
            if time.monotonic() > end:
                raise TimeoutError((self.directory / "log").read_text()[-2000:])
            time.sleep(0.05)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Run a server; skips the test when Redis is missing, unless CI=true."""
    program = shutil.which("redis-server")
    if program is None:
        missing("Redis is not installed")
    directory = Path(tempfile.mkdtemp(prefix="turnback-redis-"))
    port = free_port()
    command = [
        *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)),
        *("--requirepass", PASSWORD, "--appendonly", "yes", "--appendfsync", "always"),
    ]
    try:
        with running(command, ready=lambda: _ready(port), log=directory / "log") as process:
            server = RedisServer(port, directory, process, command)
            yield server
            stop(server.process)  # it may have been started again
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _ready(port: int) -> bool:
    import redis

    if not accepts(port):
        return False
    try:
        with redis.Redis(port=port, password=PASSWORD) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
