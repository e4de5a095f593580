"""What holds for rows in prepared transactions, whichever SQL database they are in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sql_server import Driver, SqlServer, Task, write

from services.proxy import proxy_to
from turnback.core.errors import SinkError
from turnback.sinks import sql_database, sql_rows
from turnback.types.columns import Batch


class PreparedContract:
    """Rows in prepared transactions."""

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
