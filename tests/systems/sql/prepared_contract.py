"""What holds for rows in prepared transactions, whichever SQL database they are in."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sql_server import Checkpoints, Driver, History, SqlServer, Task, write

from services.proxy import proxy_to
from turnback.connectors.sql import database as sql_database
from turnback.connectors.sql import sink as sql_rows
from turnback.errors import ConfigurationError, EpochConflictError, SinkError
from turnback.values.columns import Batch


class PreparedContract:
    """Rows in prepared transactions."""

    def test_rows_are_visible_when_they_are_committed_and_once(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
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
        sink.acquire_target(driver())
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
        sink.acquire_target(driver())
        committer = sink.committer(driver())
        committer.commit([write(sink, task(epoch=6), ("a", 1))])
        prepared = write(sink, task(), ("b", 2))
        db.server.crash()
        with pytest.raises(SinkError, match="cannot reach"):
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
        db.sink().acquire_target(driver())
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
        db.sink().acquire_target(driver())
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
        sink.acquire_target(driver())
        prepared = write(sink, task(), ("a", 1))
        sink.committer(driver()).abort([prepared])
        with pytest.raises(SinkError, match=r"task 0 in epoch 7 are lost"):
            sink.committer(driver()).commit([prepared])

    def test_an_epoch_number_that_comes_again_is_not_taken_for_done(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        """A job that is turned back runs an epoch again, in a later attempt."""
        sink = db.sink()
        sink.acquire_target(driver())
        sink.committer(driver()).commit([write(sink, task(), ("a", 1))])
        sink.committer(driver(attempt=4)).commit([write(sink, task(attempt=4), ("b", 2))])
        assert db.rows() == [("a", 1), ("b", 2)]

    def test_no_task_rolls_back_what_another_attempt_of_it_has_prepared(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        """Only the driver knows whose acknowledgement counts."""
        sink = db.sink()
        sink.acquire_target(driver())
        winner = write(sink, task(), ("a", 1))
        copy = sink.writer(task(task_attempt_id=41))
        copy.write(Batch(task().type, [("a", 1)]))
        assert len(db.ours()) == 1
        committer = sink.committer(driver())
        committer.commit([winner])
        assert copy.prepare() is not None
        assert db.rows() == [("a", 1)]
        committer.abort_orphans([])
        assert db.rows() == [("a", 1)]
        assert db.ours() == []

    def test_a_copy_that_prepares_late_is_rolled_back_with_a_later_commit(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
        committer = sink.committer(driver())
        committer.commit([write(sink, task(), ("a", 1))])
        committer.abort_orphans([])
        write(sink, task(task_attempt_id=41), ("late", 1))
        next_epoch = write(sink, task(epoch=8), ("b", 2))
        running = write(sink, task(epoch=9), ("c", 3))
        committer.commit([next_epoch])
        assert len(db.ours()) == 1, "only the epoch that is running is left"
        committer.commit([running])
        assert db.rows() == [("a", 1), ("b", 2), ("c", 3)]

    def test_a_losing_attempt_of_a_task_is_rolled_back_by_the_driver(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
        write(sink, task(), ("lost", 1))
        kept = [
            write(sink, task(task_attempt_id=41), ("a", 1)),  # its executor died, it ran again
            write(sink, task(partition=1), ("b", 2)),
        ]
        write(sink, task(partition=1, task_attempt_id=42), ("copy", 2))
        other_sink = write(sink, task(uid="another"), ("another", 3))
        committer = sink.committer(driver())
        committer.abort_orphans(kept)
        assert len(db.ours()) == 3
        committer.commit(kept)
        assert db.rows() == [("a", 1), ("b", 2)]
        sink.committer(driver(uid="another")).commit([other_sink])
        assert db.rows() == [("a", 1), ("b", 2), ("another", 3)]
        assert db.ours() == []

    def test_rows_of_a_task_that_died_make_the_driver_replay_the_epoch(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest", lock_timeout=1)
        sink.acquire_target(driver())
        write(sink, task(), ("a", 1))
        with pytest.raises(EpochConflictError, match=r"another attempt of this task.*[Ll]ock"):
            write(sink, task(task_attempt_id=41), ("a", 1))
        with pytest.raises(SinkError, match=r"[Ll]ock"):  # another task: a key that comes twice
            write(sink, task(partition=9), ("a", 1))
        assert len(db.ours()) == 1
        committer = sink.committer(driver())
        committer.abort_orphans([])
        again = write(sink, task(task_attempt_id=42), ("a", 1))
        committer.commit([again])
        assert db.server.query("SELECT post, n FROM latest") in ([("a", 1)], (("a", 1),))

    def test_recovery_commits_what_is_promised_and_rolls_back_only_our_rest(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
        newer = write(sink, task(attempt=9), ("newer", 3))
        promised = write(sink, task(epoch=6), ("promised", 1))
        write(sink, task(), ("left", 2))
        db.server.run(*db.foreign)
        everything = db.server.prepared()
        try:
            assert len(everything) == 4
            sink.committer(driver(attempt=4)).recover([promised])
            assert db.rows() == [("promised", 1)]
            assert len(db.ours()) == 1
            assert len(db.server.prepared()) == 2
        finally:
            db.settle_foreign()
            sink.committer(driver(attempt=9)).abort([newer])

    @pytest.mark.parametrize("changes", [{"uid": "renamed"}, {"job_id": "id-before---fresh"}])
    def test_recovery_finds_what_the_job_prepared_under_other_names(
        self, db: SqlServer, task: Task, driver: Driver, changes: dict[str, str]
    ) -> None:
        sink = db.sink("latest", lock_timeout=1)
        sink.acquire_target(driver())
        write(sink, task(**changes), ("a", 1))
        sink.committer(driver(attempt=4)).recover([])
        assert db.ours() == []
        again = write(sink, task(attempt=4), ("a", 1))
        sink.committer(driver(attempt=4)).commit([again])

    def test_who_cannot_take_over_because_of_prepared_rows_is_told_which(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
        left = write(sink, task(), ("a", 1))
        with pytest.raises(ConfigurationError, match="1 prepared transactions") as refused:
            sink.acquire_target(driver("fork", take_over=True))
        name = sink.explain(left, driver()).id
        assert f"no longer exists, roll them back in the database (the first is {name!r})" in (
            str(refused.value)
        )
        sink.committer(driver()).abort([left])
        sink.acquire_target(driver("fork", take_over=True))

    def test_a_backup_of_a_running_job_is_refused(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        history = {"attempts": History(a3="one", a4="two")}
        sink = db.sink()
        first = driver(nonce="one", **history)
        sink.acquire_target(first)
        promised = write(sink, task(epoch=6, nonce="one"), ("a", 6))
        later = write(sink, task(epoch=7, nonce="one"), ("a", 7))
        sink.committer(first).commit([promised, later])
        # It was made after epoch 6, and the job went on in the same attempt.
        restored = driver(attempt=4, nonce="two", promised=Checkpoints(a3=6), **history)
        for start in (sink.check_target, sink.acquire_target):
            with pytest.raises(ConfigurationError, match=r"attempt 3 .*restored from a backup"):
                start(restored)
        sink.acquire_target(replace(restored, attempt=0, nonce="", take_over=True))
        sink.acquire_target(restored)
        committer = sink.committer(restored)
        committer.commit([promised])
        committer.commit([write(sink, task(epoch=7, attempt=4, nonce="two"), ("a", 7))])
        assert db.rows() == [("a", 6), ("a", 7), ("a", 7)]

    def test_rows_from_before_the_mode_was_changed_are_rolled_back(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        before = db.sink("latest")
        before.acquire_target(driver())
        write(before, task(), ("a", 1))
        sink = db.sink("latest", mode="upsert", key="post", lock_timeout=1)
        committer = sink.committer(driver(attempt=4))
        committer.recover([])
        assert db.ours() == []
        committer.commit([write(sink, task(attempt=4), ("a", 2))])
        assert db.server.query("SELECT post, n FROM latest") == [("a", 2)]

    def test_a_copy_of_the_job_leaves_the_original_alone(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        """It has the same id and the same uids, and another directory and table."""
        sink, elsewhere = db.sink(), db.sink("latest")
        sink.acquire_target(driver())
        promised = write(sink, task(), ("a", 1))
        copy = replace(driver("copy"), job="likes", job_id="id-1", attempt=4)
        elsewhere.acquire_target(copy)
        committer = elsewhere.committer(copy)
        committer.recover([])
        of_copy = task(attempt=4, directory_id=copy.directory_id)
        theirs = write(elsewhere, of_copy, ("b", 2))
        committer.abort_orphans([theirs])
        sink.committer(driver()).commit([promised])
        assert db.rows() == [("a", 1)]
        committer.commit([theirs])
        assert db.ours() == []

    def test_what_another_machine_has_in_a_directory_of_the_same_name_stays(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        here = {"attempts": History(a3="here", a4="here"), "nonce": "here"}
        sink.acquire_target(driver(**here))
        theirs = write(sink, task(job_id="theirs", nonce="there"), ("there", 1))
        write(sink, task(nonce="here"), ("here", 2))
        sink.committer(driver(attempt=4, **here)).recover([])
        assert len(db.ours()) == 1
        sink.committer(driver()).abort([theirs])
        assert db.ours() == []

    def test_transactions_with_names_of_older_versions(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        """They do not tell the directory: only the owner of the table rolls them back."""
        sink = db.sink()
        sink.acquire_target(driver())
        promised = write(sink, task(directory_id="", epoch=6), ("promised", 1))
        write(sink, task(directory_id=""), ("left", 2))
        assert all(name.startswith("turnback:id-1:out") for name in db.ours())
        copy = replace(driver("copy"), job="likes", job_id="id-1", attempt=4)
        other = db.sink("latest")
        other.acquire_target(copy)
        other.committer(copy).recover([])
        assert len(db.ours()) == 2
        listed = list(other.list_orphans(copy))
        assert sorted(info.epoch or 0 for info in listed) == [6, 7]
        db.server.run(f"DELETE FROM turnback_owners WHERE directory = '{copy.job_directory}'")
        sink.committer(driver(attempt=4)).recover([promised])
        assert db.rows() == [("promised", 1)]
        assert db.ours() == []

    def test_what_a_replaced_driver_prepares_late_is_rolled_back_by_the_next_commit(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
        committer = sink.committer(driver(attempt=4))
        committer.recover([])
        zombie = write(sink, task(attempt=3), ("zombie", 1))
        prepared = write(sink, task(attempt=4), ("a", 1))
        assert len(db.ours()) == 2, "a task cannot know that it is nobody else's"
        committer.commit([prepared])
        assert db.ours() == []
        with pytest.raises(SinkError, match="lost"):
            sink.committer(driver()).commit([zombie])
        assert db.rows() == [("a", 1)]

    @pytest.mark.parametrize("changes", [{}, {"uid": "renamed"}, {"job_id": "id-before---fresh"}])
    def test_what_a_replaced_driver_prepares_late_makes_the_driver_replay_the_epoch(
        self, db: SqlServer, task: Task, driver: Driver, changes: dict[str, str]
    ) -> None:
        sink = db.sink("latest")
        sink.acquire_target(driver())
        committer = sink.committer(driver(attempt=4))
        committer.recover([])
        write(sink, task(attempt=3, **changes), ("a", 1))
        with pytest.raises(EpochConflictError, match=r"another attempt of the job.*[Ll]ock"):
            write(sink, task(attempt=4), ("a", 1))
        committer.abort_orphans([])
        assert db.ours() == []
        committer.commit([write(sink, task(attempt=4), ("a", 1))])
        assert db.server.query("SELECT post, n FROM latest") == [("a", 1)]

    def test_tasks_of_a_clone_leave_what_the_original_has_promised(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        """A clone of the whole machine is at the same path; only nonces tell the two apart."""
        sink, elsewhere = db.sink(), db.sink("latest")
        original = driver(attempt=4, nonce="o4", attempts=History(a4="o4"))
        clone = driver(attempt=5, nonce="clone", attempts=History(a4="c4", a5="clone"))
        sink.acquire_target(original)
        promised = write(sink, task(attempt=4, nonce="o4"), ("a", 1))
        of_clone = elsewhere.committer(clone)
        of_clone.recover([])
        theirs = write(elsewhere, task(attempt=5, nonce="clone"), ("b", 2))
        of_clone.abort_orphans([theirs])
        assert len(db.ours()) == 2
        sink.committer(original).commit([promised])
        assert db.rows() == [("a", 1)]
        of_clone.abort([theirs])

    def test_markers_of_old_epochs_are_removed(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sql_database, "_MARKED_EPOCHS", 2)
        monkeypatch.setattr("turnback.connectors.sql.sink._PRUNE_EVERY", 1)
        sink = db.sink()
        sink.acquire_target(driver())
        committer = sink.committer(driver())
        last = b""
        for epoch in range(1, 6):
            last = write(sink, task(epoch=epoch), ("a", epoch))
            committer.commit([last])
        assert db.server.query("SELECT count(*) FROM turnback_commits") == [(2,)]
        committer.commit([last])
        assert len(db.rows()) == 5

    def test_markers_of_what_was_just_committed_stay_however_many_epochs_it_is(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sql_database, "_MARKED_EPOCHS", 2)
        sink = db.sink()
        sink.acquire_target(driver())
        promised = [write(sink, task(epoch=epoch), ("a", epoch)) for epoch in range(1, 6)]
        sink.committer(driver()).commit(promised)
        # The driver dies before it is recorded that they are committed.
        sink.committer(driver(attempt=4)).commit(promised)
        assert len(db.rows()) == 5

    def test_readers_never_see_a_part_of_a_task(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
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
