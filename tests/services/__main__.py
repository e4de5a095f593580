"""Start servers to develop against, side by side, and say how to reach them, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from _pytest.outcomes import Failed, Skipped

from services.azure import azure_server
from services.gcs import gcs_server
from services.hdfs import hdfs_cluster
from services.kafka import connector_jars, kafka_broker
from services.kinesis import REGION, kinesis_server
from services.mariadb import mariadb_server
from services.postgres import postgres_server
from services.rabbitmq import PASSWORD, USER, rabbitmq_server
from services.redis import redis_server
from services.s3 import s3_server

Addresses = Mapping[str, str]
"""What to set or to pass, by name."""


@contextmanager
def _kafka(directory: Path) -> Iterator[Addresses]:
    with kafka_broker(directory) as broker:
        yield {"bootstrap servers": broker.servers, "spark.jars": connector_jars()}


@contextmanager
def _postgres(directory: Path) -> Iterator[Addresses]:
    with postgres_server() as server:
        yield {"dsn": server.dsn}


@contextmanager
def _mariadb(directory: Path) -> Iterator[Addresses]:
    with mariadb_server() as server:
        yield {name: str(value) for name, value in server.parameters.items()}


@contextmanager
def _redis(directory: Path) -> Iterator[Addresses]:
    with redis_server() as server:
        yield {"url": server.url}


@contextmanager
def _rabbitmq(directory: Path) -> Iterator[Addresses]:
    with rabbitmq_server() as server:
        yield {"host": "127.0.0.1", "port": str(server.port), "user": USER, "password": PASSWORD}


@contextmanager
def _kinesis(directory: Path) -> Iterator[Addresses]:
    with kinesis_server() as server:
        yield {"endpoint": server.url, "region": REGION}


@contextmanager
def _s3(directory: Path) -> Iterator[Addresses]:
    with s3_server(directory) as server:
        server.create_bucket("turnback")
        yield server.environment


@contextmanager
def _gcs(directory: Path) -> Iterator[Addresses]:
    with gcs_server(directory) as server:
        yield {"root": server.create_bucket("turnback"), **server.environment}


@contextmanager
def _azure(directory: Path) -> Iterator[Addresses]:
    with azure_server(directory) as server:
        yield {"root": server.create_bucket("turnback"), **server.environment}


@contextmanager
def _hdfs(directory: Path) -> Iterator[Addresses]:
    with hdfs_cluster() as cluster:
        yield {"root": cluster.root()}


SERVERS: dict[str, Callable[[Path], AbstractContextManager[Addresses]]] = {
    "kafka": _kafka,
    "postgres": _postgres,
    "mariadb": _mariadb,
    "redis": _redis,
    "rabbitmq": _rabbitmq,
    "kinesis": _kinesis,
    "s3": _s3,
    "gcs": _gcs,
    "azure": _azure,
    "hdfs": _hdfs,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make services ONLY=...", description=__doc__)
    parser.add_argument("only", nargs="*", help=f"which, default all: {', '.join(SERVERS)}")
    names = parser.parse_args(argv).only or list(SERVERS)
    unknown = [name for name in names if name not in SERVERS]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(SERVERS)}")
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with ExitStack() as running, ThreadPoolExecutor(len(names)) as starting:
        root = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="turnback-services-")))

        def start(name: str) -> Addresses:
            directory = root / name
            directory.mkdir()
            server = SERVERS[name](directory)
            addresses = server.__enter__()
            running.push(server)
            return addresses

        pending = {name: starting.submit(start, name) for name in names}
        for name, started in pending.items():
            try:
                addresses = started.result()
            except (Skipped, Failed) as problem:
                print(f"{name}: not here: {problem}", flush=True)
                continue
            print(name, flush=True)
            for what, value in addresses.items():
                print(f"    {what}: {value}", flush=True)
        print("Ctrl-C stops them; their data go with them.", flush=True)
        ended.wait()
        print("stopping", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
