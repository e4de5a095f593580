"""A sink on the idempotent template: the newest value of each key, in a real sqlite database."""

import sqlite3
from contextlib import closing

from turnback.sinks import IdempotentSink

SCHEMA = "create table if not exists latest (post text primary key, n integer, version integer)"
UPSERT = """
    insert into latest values (?, ?, ?) on conflict (post) do update
    set n = excluded.n, version = excluded.version where excluded.version >= latest.version
"""


class LatestSink(IdempotentSink):
    def __init__(self, path: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as db:
            db.execute(SCHEMA)

    def open(self, ctx) -> None:
        self.db = sqlite3.connect(self.path, timeout=5, isolation_level=None)

    def write_batch(self, batch, ctx) -> None:
        self.db.execute("begin immediate")
        self.db.executemany(UPSERT, [(post, n, ctx.version) for post, n in batch.rows])
        self.db.execute("commit")

    def close(self) -> None:
        self.db.close()

    def latest(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("select post, n from latest order by post").fetchall()
