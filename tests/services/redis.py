"""A real Redis server that keeps every write in its append-only file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.missing import missing
from services.process import Restartable, accepts, free_port, started

PASSWORD = "turnback-redis-secret"


class RedisServer(Restartable):
    """A running server with a password."""

    @property
    def url(self) -> str:
        """How to connect, without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    def connect(self, **parameters: Any) -> Any:
        """A client."""
        import redis

        return redis.Redis.from_url(self.url, password=PASSWORD, **parameters)

    def is_ready(self) -> bool:
        import redis

        if not accepts(self.port):
            return False
        try:
            with self.connect() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Run a server; skips the test when Redis is missing, unless CI=true."""
    program = shutil.which("redis-server")
    if program is None:
        missing("Redis is not installed")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="turnback-redis-", ignore_cleanup_errors=True) as name:
        command = [
            *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", name),
            *("--requirepass", PASSWORD, "--appendonly", "yes", "--appendfsync", "always"),
        ]
        with started(RedisServer(port, Path(name), command)) as server:
            yield server
