"""A user's sink on the template, with a real sqlite database as the transactional system.

sqlite cannot prepare a transaction, so the sink keeps prepared rows in a table of their own and
commits by moving them, with a marker that decides "did it commit?" later.
"""

import pickle
import sqlite3
from collections.abc import Iterable
from contextlib import closing

import msgspec
import pytest

from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
SCHEMA = """
    create table if not exists likes (post text, n integer);
    create table if not exists prepared (owner text, txn text, post text, n integer);
    create table if not exists marker (txn text primary key);
"""


class Txn(msgspec.Struct, frozen=True):
    owner: str
    name: str
    rows: int = 0


class SqliteSink(TwoPhaseCommitSink[Txn]):
    transaction_type = Txn

    def __init__(self, path: str) -> None:
        self.path = path
        self.open: dict[str, list[tuple[str, int]]] = {}
        with closing(self.connect()) as db:
            db.executescript(SCHEMA)

    def __getstate__(self):
        return {"path": self.path, "open": {}}

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=5)

    def begin(self, ctx) -> Txn:
        owner = f"{ctx.job}/{ctx.job_id}/{ctx.uid}"
        name = f"{owner}/{ctx.attempt}/{ctx.epoch}/{ctx.partition}/{ctx.task_attempt_id}"
        self.open[name] = []
        return Txn(owner, name)

    def write(self, txn, element) -> None:
        if element[1] is None:
            raise ValueError("no count")
        self.open[txn.name].append((element[0], element[1]))

    def pre_commit(self, txn) -> Txn:
        rows = self.open.pop(txn.name)
        with closing(self.connect()) as db, db:
            db.executemany(
                "insert into prepared values (?, ?, ?, ?)",
                [(txn.owner, txn.name, *row) for row in rows],
            )
        return Txn(txn.owner, txn.name, len(rows))

    def commit(self, txn) -> None:
        with closing(self.connect()) as db, db:
            db.execute("begin immediate")
            if db.execute("select 1 from marker where txn = ?", [txn.name]).fetchone():
                return
            moved = db.execute(
                "insert into likes select post, n from prepared where txn = ?", [txn.name]
            ).rowcount
            if moved != txn.rows:
                raise RuntimeError(f"{txn.name} is lost")
            db.execute("delete from prepared where txn = ?", [txn.name])
            db.execute("insert into marker values (?)", [txn.name])

    def abort(self, txn) -> None:
        self.open.pop(txn.name, None)
        with closing(self.connect()) as db, db:
            db.execute("delete from prepared where txn = ?", [txn.name])

    def dangling(self, ctx) -> Iterable[Txn]:
        owner = f"{ctx.job}/{ctx.job_id}/{ctx.uid}"
        with closing(self.connect()) as db:
            found = db.execute(
                "select txn, count(*) from prepared where owner = ? group by 1", [owner]
            ).fetchall()
        return [Txn(owner, name, rows) for name, rows in found]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "likes.db")


def read(path, table="likes"):
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.execute(f"select post, n from {table}").fetchall())


def write(sink, ctx, *rows):
    writer = pickle.loads(pickle.dumps(sink)).writer(ctx)
    writer.write(Batch(POSTS, list(rows)))
    return writer.prepare()


def test_visible_after_the_commit_only_and_once(path, writer_ctx, committer_ctx):
    sink = SqliteSink(path)
    writer = sink.writer(writer_ctx())
    writer.write(Batch(POSTS, [("a", 1)]))
    writer.write(Batch(POSTS, [("b", 2)]))
    assert read(path) == read(path, "prepared") == []
    transaction = writer.prepare()
    assert read(path) == []
    assert len(read(path, "prepared")) == 2
    for attempt in (3, 3, 4):
        SqliteSink(path).committer(committer_ctx(attempt=attempt)).commit([transaction])
    assert read(path) == [("a", 1), ("b", 2)]
    assert read(path, "prepared") == []


def test_nothing_written_nothing_begun(path, writer_ctx):
    sink = SqliteSink(path)
    writer = sink.writer(writer_ctx())
    writer.write(Batch(POSTS, []))
    assert writer.prepare() is None
    assert sink.open == {}


def test_recover_commits_pending_and_aborts_the_rest(path, writer_ctx, committer_ctx):
    sink = SqliteSink(path)
    done = write(sink, writer_ctx(epoch=1), ("done", 1))
    pending = write(sink, writer_ctx(epoch=2), ("pending", 2))
    write(sink, writer_ctx(epoch=3), ("stray", 3))
    other = write(sink, writer_ctx(uid="other"), ("other", 4))
    sink.committer(committer_ctx()).commit([done])
    sink.committer(committer_ctx(attempt=4)).recover([done, pending])
    assert read(path) == [("done", 1), ("pending", 2)]
    assert read(path, "prepared") == [("other", 4)]
    sink.committer(committer_ctx(attempt=5)).recover([done, pending])
    sink.committer(committer_ctx(uid="other")).commit([other])
    assert len(read(path)) == 3


def test_two_attempts_of_one_task(path, writer_ctx, committer_ctx):
    sink = SqliteSink(path)
    first, second = (sink.writer(writer_ctx(task_attempt_id=i)) for i in (40, 41))
    for writer in (first, second):
        writer.write(Batch(POSTS, [("a", 1)]))
    first.prepare()
    sink.committer(committer_ctx()).commit([second.prepare()])
    assert read(path) == [("a", 1)]
    sink.committer(committer_ctx(attempt=4)).recover([])
    assert read(path, "prepared") == []


def test_abort_on_the_driver_and_in_the_task(path, writer_ctx, committer_ctx):
    sink = SqliteSink(path)
    transaction = write(sink, writer_ctx(), ("a", 1))
    committer = sink.committer(committer_ctx())
    committer.abort([transaction])
    committer.abort([transaction])
    assert read(path, "prepared") == []
    with pytest.raises(
        SinkError, match=r"SqliteSink.recover_and_commit failed: RuntimeError: .* is lost"
    ):
        committer.commit([transaction])
    writer = sink.writer(writer_ctx())
    writer.write(Batch(POSTS, [("a", 1)]))
    writer.abort()
    writer.abort()
    assert sink.open == {}


def test_a_failed_write_aborts_and_cannot_be_prepared(path, writer_ctx):
    sink = SqliteSink(path)
    writer = sink.writer(writer_ctx())
    with pytest.raises(SinkError, match=r"'out' of job 'likes': SqliteSink.write failed") as e:
        writer.write(Batch(POSTS, [("a", 1), ("b", None)]))
    assert isinstance(e.value.__cause__, ValueError)
    assert sink.open == {}
    with pytest.raises(SinkError, match="already"):
        writer.prepare()


def test_the_database_is_locked_during_the_commit(path, writer_ctx, committer_ctx, monkeypatch):
    sink = SqliteSink(path)
    transaction = write(sink, writer_ctx(), ("a", 1))
    monkeypatch.setattr(sink, "connect", lambda: sqlite3.connect(path, timeout=0.01))
    committer = sink.committer(committer_ctx())
    with closing(sqlite3.connect(path)) as blocker:
        blocker.execute("begin exclusive")
        with pytest.raises(SinkError, match="database is locked"):
            committer.commit([transaction])
    assert read(path) == []
    committer.commit([transaction])
    assert read(path) == [("a", 1)]


def test_a_commit_that_fails_between_two(path, writer_ctx, committer_ctx, monkeypatch):
    sink = SqliteSink(path)
    transactions = [write(sink, writer_ctx(partition=p), ("a", p)) for p in range(3)]
    real, calls = sink.commit, []

    def fail_second(txn):
        calls.append(txn)
        if len(calls) == 2:
            real(txn)
            raise ConnectionError("reply lost")
        real(txn)

    monkeypatch.setattr(sink, "commit", fail_second)
    committer = sink.committer(committer_ctx())
    with pytest.raises(SinkError, match="reply lost"):
        committer.commit(transactions)
    committer.commit(transactions)
    assert read(path) == [("a", 0), ("a", 1), ("a", 2)]


def test_recovery_has_hooks_of_its_own(path, writer_ctx, committer_ctx):
    calls = []

    class Hooked(SqliteSink):
        def recover_and_commit(self, txn):
            calls.append(("commit", txn.rows))
            super().recover_and_commit(txn)

        def recover_and_abort(self, txn):
            calls.append(("abort", txn.rows))
            super().recover_and_abort(txn)

        def dangling(self, ctx):
            return [*super().dangling(ctx), *listed]

    sink = Hooked(path)
    writer = sink.writer(writer_ctx(epoch=1))
    writer.write(Batch(POSTS, [("a", 1)]))
    pending = writer.prepare()
    writer = sink.writer(writer_ctx(epoch=2))
    writer.write(Batch(POSTS, [("b", 1), ("c", 1)]))
    writer.prepare()
    # A system may go on listing what was just committed; that is not to be aborted.
    listed = [Txn("likes/id-1/out", "likes/id-1/out/3/1/0/40", 1)]
    sink.committer(committer_ctx(attempt=4)).recover([pending])
    assert calls == [("commit", 1), ("abort", 2)]
    assert read(path) == [("a", 1)]


def test_what_tasks_left_is_rolled_back_and_what_waits_is_not(path, writer_ctx, committer_ctx):
    sink = SqliteSink(path)
    committer = sink.committer(committer_ctx())
    done = write(sink, writer_ctx(epoch=1), ("done", 1))
    committer.commit([done])
    waiting = [
        write(sink, writer_ctx(epoch=2), ("waits", 2)),
        write(sink, writer_ctx(epoch=3), ("waits", 3)),
    ]
    other = write(sink, writer_ctx(uid="other"), ("other", 4))
    for task in (50, 51):
        write(sink, writer_ctx(epoch=3, task_attempt_id=task), ("loser", 3))
    committer.abort_orphans(waiting)
    assert read(path, "prepared") == [("other", 4), ("waits", 2), ("waits", 3)]
    committer.commit(waiting)
    write(sink, writer_ctx(epoch=4), ("loser", 4))
    committer.abort_orphans([])
    assert read(path, "prepared") == [("other", 4)]
    assert read(path) == [("done", 1), ("waits", 2), ("waits", 3)]
    sink.committer(committer_ctx(uid="other")).commit([other])


def test_a_sink_that_does_not_list_what_waits_rolls_nothing_back(path, writer_ctx, committer_ctx):
    class Renamed(SqliteSink):
        """Knows of prepared transactions only their names, as many systems do."""

        def dangling(self, ctx):
            return [Txn(txn.owner, txn.name) for txn in super().dangling(ctx)]

    sink = Renamed(path)
    waiting = write(SqliteSink(path), writer_ctx(epoch=2), ("waits", 2))
    write(SqliteSink(path), writer_ctx(epoch=2, task_attempt_id=50), ("loser", 2))
    committer = sink.committer(committer_ctx())
    committer.abort_orphans([waiting])
    assert len(read(path, "prepared")) == 2
    committer.commit([waiting])
    committer.abort_orphans([])
    assert read(path, "prepared") == []
    assert read(path) == [("waits", 2)]


def test_what_is_still_listed_after_its_commit_is_not_rolled_back(path, writer_ctx, committer_ctx):
    aborted = []

    class Slow(SqliteSink):
        def dangling(self, ctx):
            return [Txn("likes/id-1/out", "likes/id-1/out/3/7/0/40", 1)]

        def abort(self, txn):
            aborted.append(txn)

    sink = Slow(path)
    transaction = write(SqliteSink(path), writer_ctx(), ("a", 1))
    committer = sink.committer(committer_ctx())
    committer.commit([transaction])
    committer.abort_orphans([])
    recovered = sink.committer(committer_ctx(attempt=4))
    recovered.recover([transaction])
    recovered.abort_orphans([])
    assert aborted == []


def test_rows_can_be_written_in_bulk(path, writer_ctx, committer_ctx):
    class Bulk(SqliteSink):
        def write(self, txn, element):
            raise AssertionError("one by one")

        def write_batch(self, txn, batch):
            self.open[txn.name] += batch.rows

    sink = Bulk(path)
    writer = sink.writer(writer_ctx())
    writer.write(Batch(POSTS, [("a", 1), ("b", 2)]))
    sink.committer(committer_ctx()).commit([writer.prepare()])
    assert read(path) == [("a", 1), ("b", 2)]


def test_the_transaction_type_is_required_and_checked(path, writer_ctx, committer_ctx):
    class Untyped(SqliteSink):
        transaction_type = None

    class Unstorable(SqliteSink):
        transaction_type = sqlite3.Connection

    class Wrong(SqliteSink):
        transaction_type = int

    with pytest.raises(ConfigurationError, match=r"Untyped.transaction_type is not set"):
        Untyped(path).committer(committer_ctx())
    with pytest.raises(ConfigurationError, match=r"Unstorable.transaction_type cannot be stored"):
        Unstorable(path).committer(committer_ctx())
    writer = Wrong(path).writer(writer_ctx())
    writer.write(Batch(POSTS, [("a", 1)]))
    with pytest.raises(SinkError, match="does not match transaction_type"):
        writer.prepare()
    assert read(path, "prepared") == []


def test_transactions_of_a_changed_type_and_of_other_sinks(path, writer_ctx, committer_ctx):
    class Changed(SqliteSink):
        transaction_type = tuple[str, int]

    transaction = write(SqliteSink(path), writer_ctx(), ("a", 1))
    with pytest.raises(SinkError, match=r"no longer matches Changed.transaction_type"):
        Changed(path).committer(committer_ctx()).recover([transaction])
    with pytest.raises(SinkError, match="'file' sink"):
        SqliteSink(path).committer(committer_ctx()).commit(
            [msgspec.msgpack.encode(["file", 1, b""])]
        )


def test_the_template_is_abstract():
    with pytest.raises(TypeError, match="begin"):
        TwoPhaseCommitSink()
