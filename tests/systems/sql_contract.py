"""What holds for sinks of every SQL database, against a real server.

A test file has a fixture `db`, subclasses the contracts, and says which server it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from prepared_contract import PreparedContract
from sql_server import Driver, SqlServer, Task, write

from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks import sql_database, sql_rows
from turnback.sinks.sql import SqlSink
from turnback.testing import check_sink
from turnback.testing.trial import Promise
from turnback.types.columns import Batch
from turnback.types.typeinfo import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])


class PublishedContract:
    """Rows that the driver inserts or updates."""

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
        assert {Promise.OWNED, Promise.FENCED, Promise.OTHER_PROCESS} <= set(report.kept)
        assert not report.skipped
        assert db.ours() == []


class ChecksContract:
    """What is refused before anything is written."""

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


class SqlContract(PreparedContract, PublishedContract, PromisesContract, ChecksContract):
    """All of them, and the strings that a server has to be given with care."""

    odd: Sequence[str | None]

    def test_odd_strings(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink()
        sink.claim(driver())
        rows = [(text, n) for n, text in enumerate(self.odd)]
        sink.committer(driver()).commit([write(sink, task(), *rows)])
        assert db.rows() == rows
