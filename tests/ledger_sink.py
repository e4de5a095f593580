"""A sink on the write-ahead template: a real sqlite database that remembers the version."""

import sqlite3
from contextlib import closing

from turnback.sinks import StagedOutput, WriteAheadSink

SCHEMA = """
    create table if not exists likes (post text, n integer);
    create table if not exists marker (job_id text, uid text, version integer,
                                       primary key (job_id, uid));
"""


class LedgerSink(WriteAheadSink):
    """Writes likes; `calls` tells what was called, in order."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.calls: list[str] = []
        with closing(sqlite3.connect(path)) as db:
            db.executescript(SCHEMA)

    def __getstate__(self):
        return {"path": self.path, "calls": []}

    def open(self, ctx) -> None:
        self.calls.append("open")
        self.db = sqlite3.connect(self.path, timeout=5, check_same_thread=False)

    def close(self) -> None:
        self.calls.append("close")
        self.db.close()

    def published(self, ctx) -> int:
        self.calls.append("published")
        return self.marker(ctx)

    def marker(self, ctx) -> int:
        found = self.db.execute(
            "select version from marker where job_id = ? and uid = ?", [ctx.job_id, ctx.uid]
        ).fetchone()
        return found[0] if found else 0

    def publish(self, ctx, output: StagedOutput) -> None:
        self.calls.append(f"publish {output.attempt}/{output.epoch}")
        with self.db:
            self.db.execute("begin immediate")
            if self.marker(ctx) >= output.version:
                return
            for batch in output.batches():
                self.db.executemany("insert into likes values (?, ?)", batch.rows)
            self.db.execute(
                "insert or replace into marker values (?, ?, ?)",
                [ctx.job_id, ctx.uid, output.version],
            )

    def likes(self) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("select post, n from likes order by rowid").fetchall()
