"""What holds for sinks of every SQL database, against a real server.

A test file subclasses the contracts and says which server it is.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from services.proxy import proxy_to
from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks import sql_database, sql_rows
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.sinks.sql import SqlSink
from turnback.testing import check_sink
from turnback.testing.trial import Promise
from turnback.types.columns import Batch
from turnback.types.typeinfo import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
Task, Driver = Callable[..., WriterContext], Callable[..., CommitterContext]


class SqlServer(ABC):
    """What a contract needs of a server.

    Attributes:
        password: Of its user; must appear nowhere.
        foreign: Statements with which another program prepares a transaction of table `posts`.
    """

    password: str
    foreign: tuple[str, ...]
    text: str = "text"

    def __init__(self, server: Any) -> None:
        self.server = server

    @abstractmethod
    def sink(self, table: str = "posts", port: int | None = None, **arguments: Any) -> SqlSink:
        """A sink of the server, at another port if wanted."""

    @abstractmethod
    def settle_foreign(self) -> None:
        """Roll back what `foreign` prepared."""

    @abstractmethod
    def roll_back_all(self) -> None:
        """Roll back whatever is prepared."""

    def rows(self) -> list[tuple[Any, ...]]:
        return list(self.server.query("SELECT post, n FROM posts ORDER BY n, post"))

    def ours(self) -> list[str]:
        return [name for name in self.server.prepared() if name.startswith("turnback:")]

    def clear(self) -> None:
        """Make the tables anew."""
        self.roll_back_all()
        tables = ("posts", "latest", *sql_database.HELPERS)
        self.server.run(*(f"DROP TABLE IF EXISTS {table}" for table in tables))
        self.server.run(
            f"CREATE TABLE posts (post {self.text}, n bigint)",
            "CREATE TABLE latest (post varchar(50) PRIMARY KEY, n bigint)",
        )


def write(sink: SqlSink, ctx: WriterContext, *rows: Any) -> bytes:
    writer = sink.writer(ctx)
    writer.write(Batch(ctx.type, list(rows)))
    prepared = writer.prepare()
    assert prepared is not None
    return prepared


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_rows, "GRACE_S", 0.0)


class PreparedContract:
    """Rows in prepared transactions."""

    @pytest.fixture
    def db(self) -> Any:
        raise NotImplementedError

    def test_rows_are_visible_when_they_are_committed_and_once(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        first = write(sink, task(), ("a", 1), ("b", 2))
        second = write(sink, task(partition=1), ("c", 3))
        assert db.rows() == []
        assert len(db.ours()) == 2
        for _ in range(2):  # whoever does not know that it is done does it again
            sink.committer(driver()).commit([first, second])
        assert db.rows() == [("a", 1), ("b", 2), ("c", 3)]
        assert db.ours() == []

    def test_a_task_without_elements_prepares_nothing(self, db: SqlServer, task: Task) -> None:
        writer = db.sink().writer(task())
        writer.write(Batch(task().type, []))
        assert writer.prepare() is None

    def test_a_task_that_is_cancelled_leaves_nothing(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        writer = sink.writer(task())
        writer.write(Batch(task().type, [("a", 1)]))
        writer.abort()
        writer.abort()
        sink.committer(driver()).abort([write(sink, task(), ("a", 1))])
        assert db.rows() == []
        assert db.ours() == []

    def test_the_server_crashes_between_prepare_and_commit(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        committer = sink.committer(driver())
        committer.commit([write(sink, task(epoch=6), ("a", 1))])
        prepared = write(sink, task(), ("b", 2))
        db.server.crash()
        with pytest.raises(SinkError, match="cannot be reached"):
            committer.commit([prepared])
        db.server.start()
        committer.commit([prepared])
        assert db.rows() == [("a", 1), ("b", 2)]
        db.server.crash()
        db.server.start()
        committer.commit([prepared])  # the marker says that it was committed
        assert db.rows() == [("a", 1), ("b", 2)]
        assert db.ours() == []

    def test_the_reply_to_a_commit_is_lost(self, db: SqlServer, task: Task, driver: Driver) -> None:
        db.sink().claim(driver())
        prepared = write(db.sink(), task(), ("a", 1))
        with proxy_to(db.server.port) as proxy:
            committer = db.sink(port=proxy.port).committer(driver())
            with self._lost_replies(proxy):
                committer.commit([prepared])
            assert proxy.lost == 1
        assert db.rows() == [("a", 1)]
        assert db.ours() == []

    @contextmanager
    def _lost_replies(self, proxy: Any) -> Iterator[None]:
        """Lose the reply to the next statement that settles a transaction."""
        rows = sql_rows.PreparedRows
        original = rows._commit

        def losing(inner: Any, database: Any, txn: Any) -> None:
            rows._commit = original  # type: ignore[method-assign]
            proxy.lose_replies(1)
            original(inner, database, txn)

        rows._commit = losing  # type: ignore[method-assign]
        try:
            yield
        finally:
            rows._commit = original  # type: ignore[method-assign]

    def test_the_reply_to_a_prepare_is_lost(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        db.sink().claim(driver())
        with proxy_to(db.server.port) as proxy:
            sink = db.sink(port=proxy.port)
            writer = sink.writer(task())
            writer.write(Batch(task().type, [("a", 1)]))
            database = next(iter(writer._sink._open.values())).database
            prepare = database.prepare

            def losing(txn: Any) -> None:
                proxy.lose_replies(1)
                prepare(txn)

            database.prepare = losing
            with pytest.raises(SinkError):
                writer.prepare()
            assert proxy.lost == 1
        assert db.ours() == []
        assert db.rows() == []

    def test_a_transaction_that_is_lost_is_an_error(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        prepared = write(sink, task(), ("a", 1))
        sink.committer(driver()).abort([prepared])
        with pytest.raises(SinkError, match=r"task 0 in epoch 7 are lost"):
            sink.committer(driver()).commit([prepared])

    def test_an_epoch_number_that_comes_again_is_not_taken_for_done(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        """A job that is turned back runs an epoch again, in a later attempt."""
        sink = db.sink()
        sink.claim(driver())
        sink.committer(driver()).commit([write(sink, task(), ("a", 1))])
        sink.committer(driver(attempt=4)).commit([write(sink, task(attempt=4), ("b", 2))])
        assert db.rows() == [("a", 1), ("b", 2)]

    def test_a_losing_attempt_of_a_task_is_rolled_back(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        write(sink, task(), ("lost", 1))
        other_task = write(sink, task(partition=1), ("b", 2))
        # Its executor died: the same task runs again.
        again = write(sink, task(task_attempt_id=41), ("a", 1))
        assert len(db.ours()) == 2
        # A copy that nobody needs any more prepares late.
        late = sink.writer(task(partition=1, task_attempt_id=42))
        late.write(Batch(task().type, [("copy", 2)]))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sql_rows, "_roll_back_others", lambda *_: None)
            write(sink, task(partition=2, task_attempt_id=43), ("late", 9))
        late.abort()
        committer = sink.committer(driver())
        kept = [again] if self._rolled_back(db, 1) else [again, other_task]
        committer.discard_others(kept)
        assert len(db.ours()) == len(kept)
        committer.commit(kept)
        assert ("a", 1) in db.rows()
        assert not {("lost", 1), ("copy", 2), ("late", 9)} & set(db.rows())
        assert db.ours() == []

    def _rolled_back(self, db: SqlServer, partition: int) -> bool:
        return not any(f".7.{partition}." in name for name in db.ours())

    def test_recovery_commits_what_is_promised_and_rolls_back_only_our_rest(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        newer = write(sink, task(attempt=9), ("newer", 3))
        promised = write(sink, task(epoch=6), ("promised", 1))
        write(sink, task(), ("left", 2))
        other_sink = write(sink, task(uid="another"), ("another", 4))
        db.server.run(*db.foreign)
        everything = db.server.prepared()
        try:
            assert len(everything) == 5
            sink.committer(driver(attempt=4)).recover([promised])
            assert db.rows() == [("promised", 1)]
            assert len(db.ours()) == 2
            assert len(db.server.prepared()) == 3
        finally:
            db.settle_foreign()
            sink.committer(driver(attempt=9)).abort([newer, other_sink])

    def test_what_a_replaced_driver_prepares_late_is_rolled_back_by_the_next_task(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        sink.committer(driver(attempt=4)).recover([])
        zombie = write(sink, task(attempt=3), ("zombie", 1))
        prepared = write(sink, task(attempt=4), ("a", 1))
        assert len(db.ours()) == 1
        with pytest.raises(SinkError, match="lost"):
            sink.committer(driver()).commit([zombie])
        sink.committer(driver(attempt=4)).commit([prepared])
        assert db.rows() == [("a", 1)]

    def test_markers_of_old_epochs_are_removed(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sql_database, "_MARKED_EPOCHS", 2)
        monkeypatch.setattr("turnback.sinks.sql._PRUNE_EVERY", 1)
        sink = db.sink()
        sink.claim(driver())
        committer = sink.committer(driver())
        last = b""
        for epoch in range(1, 6):
            last = write(sink, task(epoch=epoch), ("a", epoch))
            committer.commit([last])
        assert db.server.query("SELECT count(*) FROM turnback_commits") == [(2,)]
        committer.commit([last])
        assert len(db.rows()) == 5

    def test_readers_never_see_a_part_of_a_task(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        committer = sink.committer(driver())
        seen: set[int] = set()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.add(len(db.rows()))

        reader = threading.Thread(target=read)
        reader.start()
        for epoch in range(1, 9):
            rows = [(f"post {n}", n) for n in range(50)]
            committer.commit([write(sink, task(epoch=epoch), *rows)])
        done.set()
        reader.join()
        assert len(seen) > 1
        assert {count % 50 for count in seen} == {0}


class PublishedContract:
    """Rows that the driver inserts or updates."""

    @pytest.fixture
    def db(self) -> Any:
        raise NotImplementedError

    def test_the_last_of_a_key_counts_and_an_epoch_is_published_once(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.claim(driver())
        staged = write(sink, task(), ("a", 1), ("b", 2), ("a", 3))
        assert self.latest(db) == []
        committer = sink.committer(driver())
        committer.commit([staged])
        assert self.latest(db) == [("a", 3), ("b", 2)]
        committer.commit([write(sink, task(epoch=8), ("b", 5), ("c", 6))])
        assert self.latest(db) == [("a", 3), ("b", 5), ("c", 6)]

    def test_a_repeated_publish_and_a_replaced_driver_change_nothing(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.claim(driver())
        old = write(sink, task(), ("a", 1))
        zombie = sink.committer(driver())
        sink.committer(driver(attempt=4)).commit([write(sink, task(attempt=4, epoch=2), ("a", 2))])
        # It has asked how far the table is before the other one published.
        monkeypatch.setattr(sql_rows.PublishedRows, "published", lambda *_: 0)
        zombie.commit([old])
        assert self.latest(db) == [("a", 2)]

    def test_the_server_crashes_while_it_publishes(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.claim(driver())
        staged = write(sink, task(), ("a", 1), ("b", 2))
        committer = sink.committer(driver())
        database = type(sink.connect())
        upsert = database.upsert

        def crashing(self: Any, *arguments: Any) -> None:
            upsert(self, *arguments)
            monkeypatch.setattr(database, "upsert", upsert)
            db.server.crash()

        monkeypatch.setattr(database, "upsert", crashing)
        with pytest.raises(SinkError):
            committer.commit([staged])
        db.server.start()
        assert self.latest(db) == []
        committer.commit([staged])
        assert self.latest(db) == [("a", 1), ("b", 2)]

    def test_only_keys_can_be_written(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink("latest", mode="upsert", key="post", columns=["post"])
        sink.claim(driver())
        committer = sink.committer(driver())
        committer.commit([write(sink, task(), ("a", 1))])
        committer.commit([write(sink, task(epoch=8), ("a", 2), ("b", 2))])
        assert self.latest(db) == [("a", None), ("b", None)]

    def latest(self, db: SqlServer) -> list[tuple[Any, ...]]:
        return list(db.server.query("SELECT post, n FROM latest ORDER BY post"))


class PromisesContract:
    """What `check_sink` asks of every sink."""

    @pytest.fixture
    def db(self) -> Any:
        raise NotImplementedError

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_what_sinks_promise(self, db: SqlServer, mode: str) -> None:
        table, key = ("posts", None) if mode == "exactly-once" else ("latest", "post")

        def make() -> SqlSink:
            db.clear()
            return db.sink(table, mode=mode, key=key)

        def read(_: SqlSink) -> list[tuple[Any, ...]]:
            return list(db.server.query(f"SELECT post, n FROM {table}"))

        elements = [(f"post {n}", n) for n in range(8)]
        report = check_sink(make, read, type=POSTS, elements=elements)
        assert Promise.OTHER_PROCESS in report.kept
        assert Promise.FENCED in report.kept
        assert not report.skipped


class ChecksContract:
    """What is refused before anything is written."""

    @pytest.fixture
    def db(self) -> Any:
        raise NotImplementedError

    def test_a_table_belongs_to_one_job(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink()
        sink.check_claim(driver())
        sink.claim(driver())
        sink.claim(driver(uid="second sink"))
        sink.check_claim(driver())
        for refuse in (sink.check_claim, sink.claim):
            with pytest.raises(ConfigurationError, match="belongs to job 'likes'") as refused:
                refuse(driver("fork"))
            assert "take_over_sinks=True" in str(refused.value)
            assert driver().job_directory in str(refused.value)
        prepared = write(sink, task(), ("a", 1))
        with pytest.raises(ConfigurationError, match="1 prepared transactions"):
            sink.claim(driver("fork", take_over=True))
        committer = sink.committer(driver())
        committer.commit([prepared])
        sink.claim(driver("fork", take_over=True))
        sink.claim(driver("fork"))
        late = write(sink, task(epoch=8), ("late", 2))
        with pytest.raises(ConfigurationError, match="belongs to job 'fork'"):
            committer.commit([late])
        committer.abort([late])
        assert db.rows() == [("a", 1)]

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"table": "nowhere"}, "'nowhere' in .* does not exist"),
            ({"columns": ["likes"]}, r"columns names 'likes', but the stream has 'post', 'n'"),
            ({"columns": {"post": "title"}}, r"has no column 'title' \(string\)"),
            ({"columns": {"post": "n"}}, "has 'n' as (int8|bigint), which does not take string"),
            ({"columns": {"n": "post"}}, "has 'post' as text, which does not take bigint"),
            ({"mode": "upsert", "key": "n"}, r"no primary key or unique constraint on \(n\)"),
            ({"mode": "upsert", "key": "id"}, "is to have the key id, which is not written"),
            (
                {"table": "latest", "columns": ["n"]},
                "requires 'post' .*, which the stream does not have.* It has: post varchar, n",
            ),
        ],
    )
    def test_a_table_that_does_not_fit(
        self, db: SqlServer, driver: Driver, arguments: dict[str, Any], told: str
    ) -> None:
        sink = db.sink(**arguments)
        for check in (sink.check_claim, sink.claim, sink.committer):
            with pytest.raises(ConfigurationError, match=told):
                check(driver())
        names = "', '".join(sql_database.HELPERS)
        created = db.server.query(
            f"SELECT 1 FROM information_schema.tables WHERE table_name IN ('{names}')"
        )
        assert created == []

    def test_a_wrong_password_is_not_told(self, db: SqlServer, driver: Driver) -> None:
        with pytest.raises(ConfigurationError) as refused:
            db.sink(password="not-the-password").check_claim(driver())
        assert "password" in str(refused.value)
        assert "not-the-password" not in str(refused.value)
        assert refused.value.__cause__ is None

    def test_a_server_that_is_not_there(self, db: SqlServer, driver: Driver) -> None:
        with pytest.raises(SinkError, match=r"cannot be reached.*Is the server running") as told:
            db.sink(port=1).check_claim(driver())
        assert db.password not in str(told.value)

    def test_a_database_that_is_not_there(self, db: SqlServer, driver: Driver) -> None:
        sink = db.sink()
        name = "dbname" if "dbname" in sink.parameters else "database"  # type: ignore[attr-defined]
        sink.parameters[name] = "nowhere"  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match="nowhere"):
            sink.check_claim(driver())

    def test_the_password_is_told_nowhere(
        self, db: SqlServer, task: Task, driver: Driver, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = db.sink()
        sink.claim(driver())
        prepared = write(sink, task(), ("a", 1))
        sink.committer(driver()).commit([prepared])
        bad = sink.writer(task(type=Types.ROW_NAMED(["post", "n"], [Types.STRING()] * 2)))
        with pytest.raises(SinkError) as told:
            bad.write(Batch(bad._ctx.type, [("a", "not a number")]))
        everything = f"{sink!r} {sink.describe()} {prepared!r} {told.value} {caplog.text}"
        assert db.password not in everything

    def test_a_sink_is_made_anew_from_its_description(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SHOP_PASSWORD", db.password)
        sink = db.sink(password=None, password_from="SHOP_PASSWORD", columns={"post": "post"})
        sink.claim(driver())
        prepared = write(sink, task(), ("a", 1))
        again = type(sink).from_description(sink.describe())  # type: ignore[attr-defined]
        assert vars(again) == vars(sink)
        again.committer(driver(type=None)).recover([prepared])
        assert db.rows() == [("a", None)]
