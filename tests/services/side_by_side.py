"""Servers that start at the same time, each in a thread, and end together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any


def _kafka(directory: Path) -> AbstractContextManager[Any]:
    from services.kafka import kafka_broker

    own = directory / "kafka"
    own.mkdir()
    return kafka_broker(own)


def _postgres(directory: Path) -> AbstractContextManager[Any]:
    from services.postgres import postgres_server

    return postgres_server()


def _mariadb(directory: Path) -> AbstractContextManager[Any]:
    from services.mariadb import mariadb_server

    return mariadb_server()


def _redis(directory: Path) -> AbstractContextManager[Any]:
    from services.redis import redis_server

    return redis_server()


def _rabbitmq(directory: Path) -> AbstractContextManager[Any]:
    from services.rabbitmq import rabbitmq_server

    return rabbitmq_server()


def _kinesis(directory: Path) -> AbstractContextManager[Any]:
    from services.kinesis import kinesis_server

    return kinesis_server()


def _hdfs(directory: Path) -> AbstractContextManager[Any]:
    from services.hdfs import hdfs_cluster

    return hdfs_cluster()


def _yarn(directory: Path) -> AbstractContextManager[Any]:
    from services.yarn import yarn_cluster

    return yarn_cluster()


_KINDS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "kafka": _kafka,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "redis": _redis,
    "rabbitmq": _rabbitmq,
    "kinesis": _kinesis,
    "hdfs": _hdfs,
    "yarn": _yarn,
}


class Servers:
    """Servers by name; they run until they are closed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._threads = ThreadPoolExecutor(len(_KINDS), thread_name_prefix="server")
        self._running = ExitStack()
        self._servers: dict[str, Future[Any]] = {}

    def start(self, names: Iterable[str]) -> None:
        """Begin to start those of these names that are servers."""
        for name in names:
            if name in _KINDS:
                server = _KINDS[name](self._directory)
                self._servers[name] = self._threads.submit(self._running.enter_context, server)

    def get(self, name: str) -> Any:
        """The server, once it runs; one that nobody has started yet is started.

        Raises:
            Exception: What kept it from starting; that it is not on this machine skips the test.
        """
        if name not in self._servers:
            self.start([name])
        return self._servers[name].result()

    def close(self) -> None:
        """End them all."""
        self._threads.shutdown()
        self._running.close()
