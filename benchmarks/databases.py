"""Rows per second that one task writes into a real PostgreSQL, MariaDB and Redis."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import section
from benchmarks.table import table
from turnback.connectors.redis import RedisSink
from turnback.connectors.sql import MySqlSink, PostgresSink
from turnback.sinks.base import CommitterContext, Sink, WriterContext
from turnback.state.files import StorageRef
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from services.mariadb import PASSWORD as MARIADB_PASSWORD
from services.mariadb import mariadb_server
from services.postgres import PASSWORD as POSTGRES_PASSWORD
from services.postgres import postgres_server
from services.redis import PASSWORD as REDIS_PASSWORD
from services.redis import redis_server

CLICKS = Types.ROW_NAMED(
    ["id", "account", "page", "amount", "at"],
    [Types.LONG(), Types.STRING(), Types.STRING(), Types.DOUBLE(), Types.SQL_TIMESTAMP()],
)
_BATCH = 10_000


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.databases", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="a trial (%(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="trials each (%(default)s)")
    return section.parse(parser, argv, rows=20_000, repeat=1)


def batches(rows: int) -> list[Batch]:
    """Rows of about 100 bytes, as columns: how they were made is not measured."""
    import numpy as np
    import pyarrow as pa

    made = []
    for start in range(0, rows, _BATCH):
        ids = np.arange(start, min(start + _BATCH, rows))
        arrays = [
            pa.array(ids),
            pa.array([f"account-{n % 5000:08d}" for n in ids]),
            pa.array([f"/products/{n % 997:05d}/details?from=search" for n in ids]),
            pa.array(ids * 0.25),
            pa.array(ids.astype("M8[us]")),
        ]
        names = [name for name, _ in CLICKS.fields()]
        made.append(Batch(CLICKS, pa.RecordBatch.from_arrays(arrays, names)))
    return made


def rate(sink: Sink, epoch: int, rows: list[Batch], storage: StorageRef) -> tuple[float, float]:
    """Rows per second that the task writes and prepares, and that are committed in the end."""
    task = WriterContext("bench", "bench", "out", 1, epoch, 0, epoch, CLICKS, storage)
    driver = CommitterContext("bench", "bench", "out", 1, CLICKS, storage.uri, storage=storage)
    sink.acquire_target(driver)
    committer = sink.committer(driver)
    start = time.perf_counter()
    writer = sink.writer(task)
    for batch in rows:
        writer.write(batch)
    prepared = writer.prepare()
    written = time.perf_counter()
    if prepared is not None:
        committer.commit([prepared])
    count = sum(map(len, rows))
    return count / (written - start), count / (time.perf_counter() - start)


@contextmanager
def targets() -> Iterator[dict[str, Callable[[], Sink]]]:
    """Sinks by name, each with an empty table."""
    columns = "id bigint PRIMARY KEY, account varchar(50), page varchar(100), "
    with postgres_server() as postgres, mariadb_server() as mariadb, redis_server() as redis:
        postgres.run(*_tables(columns + "amount double precision, at timestamp"))
        mariadb.run(*_tables(columns + "amount double, at datetime(6)"))
        more: dict[str, dict[str, Any]] = {
            "exactly-once": {"table": "clicks"},
            "upsert": {"table": "latest", "mode": "upsert", "key": "id"},
        }
        found: dict[str, Callable[[], Sink]] = {}
        for mode, arguments in more.items():
            name = arguments["table"]
            found[f"PostgreSQL, {mode}"] = lambda n=name, a=arguments: _cleared(
                postgres, n, PostgresSink(postgres.dsn, password=POSTGRES_PASSWORD, **a)
            )
            found[f"MariaDB, {mode}"] = lambda n=name, a=arguments: _cleared(
                mariadb, n, MySqlSink(**mariadb.parameters, password=MARIADB_PASSWORD, **a)
            )
        url = redis.url.replace("//", f"//:{REDIS_PASSWORD}@")
        found["Redis, hashes"] = lambda: RedisSink(url, key="account", prefix="h:")
        found["Redis, strings"] = lambda: RedisSink(
            url, key="account", values="amount", layout="string", prefix="s:"
        )
        yield found


def _tables(columns: str) -> list[str]:
    return [f"CREATE TABLE {name} ({columns})" for name in ("clicks", "latest")]


def _cleared(server: Any, table_name: str, sink: Sink) -> Sink:
    server.run(f"DELETE FROM {table_name}")
    return sink


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    rows = batches(args.rows)
    lines = []
    with tempfile.TemporaryDirectory() as directory, targets() as sinks:
        storage = StorageRef(Path(directory).as_uri())
        for name, make in sinks.items():
            trials = [rate(make(), epoch + 1, rows, storage) for epoch in range(args.repeat)]
            written = statistics.median(trial[0] for trial in trials)
            committed = statistics.median(trial[1] for trial in trials)
            lines.append([name, f"{written:,.0f}", f"{committed:,.0f}"])
            print(*lines[-1], sep=" | ", file=sys.stderr, flush=True)
    body = "\n\n".join(
        (
            "## Databases",
            f"{args.rows:,} rows of about 100 bytes written by one task, median of {args.repeat} "
            "trials, servers on the same machine. In exactly-once the task copies or inserts rows "
            "and prepares; in upsert it stages them, and the commit is the driver's work. "
            "PostgreSQL and MariaDB sync each commit to disk, Redis each write.",
            table(["target", "rows/s written by one task", "rows/s until committed"], lines),
        )
    )
    print(body)
    if args.output is not None:
        section.write(args.output, "databases", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())
