"""What holds for sinks of every SQL database, against a real server.

A test file has a fixture `db`, subclasses the contracts, and says which server it is.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prepared_contract import PreparedContract
from sql_server import Checkpoints, Driver, History, Promising, SqlServer, Task, write

from turnback import StreamExecutionEnvironment
from turnback.connectors.sql import database as sql_database
from turnback.connectors.sql import sink as sql_rows
from turnback.connectors.sql.sink import SqlSink
from turnback.errors import ConfigurationError, FencedError, JobFailedError, SinkError
from turnback.sinks.base import WriterContext, version_of
from turnback.testing import LocalEngine, check_sink
from turnback.testing.protocol_run import Promise
from turnback.values.columns import Batch
from turnback.values.typeinfo import TypeInfo, Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])


class PublishedContract:
    """Rows that the driver inserts or updates."""

    def test_the_last_of_a_key_counts_and_an_epoch_is_published_once(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.acquire_target(driver())
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
        sink.acquire_target(driver())
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
        sink.acquire_target(driver())
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

    def test_a_former_owner_that_wakes_up_while_it_publishes_writes_nothing(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.acquire_target(driver())
        late = write(sink, task(), ("a", 1))
        paused = sink.committer(driver())
        publish = sql_rows.PublishedRows._publish

        def taken_over_before(*arguments: Any) -> None:
            monkeypatch.setattr(sql_rows.PublishedRows, "_publish", publish)
            fork = driver("fork", take_over=True)
            sink.acquire_target(fork)
            staged = write(sink, task(job_id=fork.job_id, storage=fork.storage), ("a", 2))
            sink.committer(fork).commit([staged])
            publish(*arguments)

        monkeypatch.setattr(sql_rows.PublishedRows, "_publish", taken_over_before)
        with pytest.raises(ConfigurationError, match="belongs to job 'fork'"):
            paused.commit([late])
        assert self.latest(db) == [("a", 2)]

    def test_a_table_is_not_taken_over_while_its_owner_has_promised_rows(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.acquire_target(driver())
        promised = write(sink, task(), ("a", 1))
        for count, told in (
            (1, "1 in-doubt transactions.*transactions commit likes"),
            (None, "no"),
        ):
            fork = driver("fork", take_over=True, other_jobs=Promising(count))
            for step in (sink.check_target, sink.acquire_target):
                with pytest.raises(ConfigurationError, match=told):
                    step(fork)
        sink.committer(driver()).commit([promised])
        settled = Promising(0)
        sink.acquire_target(driver("fork", take_over=True, other_jobs=settled))
        assert set(settled.asked) == {driver().job_directory}
        assert len(settled.asked) == 2, "and again when the owner can publish nothing any more"
        assert self.latest(db) == [("a", 1)]

    def test_helper_tables_of_older_versions_are_extended(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest", mode="upsert", key="post")
        sink.acquire_target(driver())
        old = write(sink, task(), ("a", 1))
        version = version_of(3, 7)
        db.server.run(
            "ALTER TABLE turnback_progress DROP COLUMN nonce",
            f"INSERT INTO turnback_progress VALUES ('turnback:id-1:out', {version})",
        )
        sink.acquire_target(driver())
        committer = sink.committer(driver())
        committer.commit([old])
        assert self.latest(db) == [], "it was published under the old name"
        committer.commit([write(sink, task(epoch=8), ("b", 2))])
        assert self.latest(db) == [("b", 2)]

    def test_only_keys_can_be_written(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink("latest", mode="upsert", key="post", columns=["post"])
        sink.acquire_target(driver())
        committer = sink.committer(driver())
        committer.commit([write(sink, task(), ("a", 1))])
        committer.commit([write(sink, task(epoch=8), ("a", 2), ("b", 2))])
        assert self.latest(db) == [("a", None), ("b", None)]

    def test_two_drivers_publish_the_first_epochs_one_after_the_other(
        self, db: SqlServer, task: Task, driver: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The slower one must find that the table is further, also if it had nothing at first."""
        sink = db.sink("latest", mode="upsert", key="post")
        sink.acquire_target(driver())
        epochs = [write(sink, task(epoch=epoch), ("a", epoch)) for epoch in (1, 2)]
        kind = type(sink.connect())
        upsert = kind.upsert
        begun, goes_on = threading.Event(), threading.Event()

        def paused(self: Any, *args: Any) -> None:
            if not begun.is_set():
                begun.set()
                goes_on.wait(20)
            upsert(self, *args)

        monkeypatch.setattr(kind, "upsert", paused)
        slow = threading.Thread(target=sink.committer(driver()).commit, args=(epochs[:1],))
        slow.start()
        assert begun.wait(20)
        fast = threading.Thread(target=sink.committer(driver(attempt=4)).commit, args=(epochs,))
        fast.start()
        fast.join(1)
        goes_on.set()
        slow.join(20)
        fast.join(20)
        assert self.latest(db) == [("a", 2)]
        done = db.server.query("SELECT version FROM turnback_progress")
        assert done == [(version_of(3, 2),)]

    def latest(self, db: SqlServer) -> list[tuple[Any, ...]]:
        return list(db.server.query("SELECT post, n FROM latest ORDER BY post"))


class RestoredContract:
    """A job directory that is older than its table, because it was restored from a backup."""

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_it_is_refused_and_nothing_is_dropped(
        self, db: SqlServer, task: Task, driver: Driver, mode: str
    ) -> None:
        sink = db.sink("latest", mode=mode, key="post" if mode == "upsert" else None)
        before = {"attempts": History(a1="one", a3="three")}
        sink.acquire_target(driver(attempt=3, nonce="three", **before))
        committer = sink.committer(driver(attempt=3, nonce="three", **before))
        committer.commit([write(sink, task(attempt=3, nonce="three"), ("a", 1))])
        committer.close()
        restored = {"attempts": History(a1="one", a2="again"), "nonce": "again", "attempt": 2}
        for step in (sink.check_target, sink.acquire_target):
            with pytest.raises(ConfigurationError, match=r"attempt 3 .*restored from a backup"):
                step(driver(**restored))
        # It was started before the check was there: nothing counts as published.
        staged = write(sink, task(attempt=2, nonce="again"), ("b", 2))
        with pytest.raises(ConfigurationError, match="restored from a backup"):
            sink.committer(driver(**restored)).commit([staged])
        assert len(list(sink.list_orphans(driver(**restored)))) == 1, "it is still there"
        taken = {**restored, "attempt": 0, "take_over": True}
        if mode == "exactly-once":
            sink.committer(driver(**restored)).abort([staged])
        sink.acquire_target(driver(**taken))
        sink.acquire_target(driver(**restored))
        goes_on = sink.committer(driver(**restored))
        goes_on.recover([])
        goes_on.commit([write(sink, task(attempt=2, epoch=8, nonce="again"), ("b", 2))])
        assert list(db.server.query("SELECT post, n FROM latest ORDER BY post")) == [
            ("a", 1),
            ("b", 2),
        ]

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_the_same_attempt_of_another_driver_is_refused(
        self, db: SqlServer, task: Task, driver: Driver, mode: str
    ) -> None:
        sink = db.sink("latest", mode=mode, key="post" if mode == "upsert" else None)
        lost = {"attempts": History(a3="lost"), "nonce": "lost"}
        sink.acquire_target(driver(**lost))
        sink.committer(driver(**lost)).commit([write(sink, task(nonce="lost"), ("a", 1))])
        with pytest.raises(ConfigurationError, match="restored from a backup"):
            sink.check_target(driver(attempts=History(a3="again"), nonce="again"))

    @pytest.mark.parametrize("changes", [{"uid": "renamed"}, {"job_id": "id-after--a-fresh-start"}])
    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_it_is_refused_whatever_the_sink_was_called_since(
        self, db: SqlServer, task: Task, driver: Driver, mode: str, changes: dict[str, str]
    ) -> None:
        sink = db.sink("latest", mode=mode, key="post" if mode == "upsert" else None)
        before = {"attempts": History(a3="three"), "nonce": "three"}
        sink.acquire_target(driver(**before))
        sink.committer(driver(**before)).commit([write(sink, task(nonce="three"), ("a", 1))])
        later = {"attempts": History(a3="three", a4="four"), "nonce": "four", "attempt": 4}
        sink.acquire_target(driver(**later, **changes))
        staged = write(sink, task(attempt=4, nonce="four", **changes), ("b", 2))
        sink.committer(driver(**later, **changes)).commit([staged])
        restored = {"attempts": History(a3="three", a4="again"), "nonce": "again", "attempt": 4}
        for step in (sink.check_target, sink.acquire_target):
            with pytest.raises(ConfigurationError, match=r"attempt 4 .*restored from a backup"):
                step(driver(**restored))
        sink.acquire_target(driver(**{**restored, "attempt": 0, "nonce": "", "take_over": True}))
        sink.acquire_target(driver(**restored))
        goes_on = sink.committer(driver(**restored))
        goes_on.recover([])
        goes_on.commit([write(sink, task(attempt=4, epoch=8, nonce="again"), ("c", 3))])
        sink.acquire_target(driver(**restored))
        posts = db.server.query("SELECT post FROM latest ORDER BY post")
        assert list(posts) == [("a",), ("b",), ("c",)]

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_a_sink_renamed_after_the_backup_is_refused_under_its_new_name(
        self, db: SqlServer, task: Task, driver: Driver, mode: str
    ) -> None:
        sink = db.sink("latest", mode=mode, key="post" if mode == "upsert" else None)
        first = {"attempts": History(a3="three", a4="four"), "nonce": "three"}
        sink.acquire_target(driver(**first))
        rows = [write(sink, task(epoch=e, nonce="three"), (str(e), e)) for e in (6, 7)]
        sink.committer(driver(**first)).commit(rows)
        # It was made after epoch 6, and the job went on in the same attempt.
        restored = driver(
            **{**first, "nonce": "four"}, attempt=4, uid="renamed", promised=Checkpoints(a3=6)
        )
        for step in (sink.check_target, sink.acquire_target):
            with pytest.raises(ConfigurationError, match=r"attempt 3 .*restored from a backup"):
                step(restored)
        sink.acquire_target(replace(restored, attempt=0, nonce="", take_over=True))
        sink.acquire_target(restored)
        sink.committer(restored).commit(rows[:1])
        assert ("6",) in list(db.server.query("SELECT post FROM latest"))

    def test_a_job_that_was_deleted_and_made_again_is_not_taken_for_restored(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest")
        deleted = {"attempts": History(a3="three"), "nonce": "three"}
        sink.acquire_target(driver(**deleted))
        sink.committer(driver(**deleted)).commit([write(sink, task(nonce="three"), ("a", 1))])
        nothing = {"attempts": History(), "attempt": 0}
        sink.acquire_target(driver(**nothing, job_id=""))
        again = {"attempts": History(a1="one"), "nonce": "one", "attempt": 1, "job_id": "id-2"}
        for _ in range(2):
            sink.acquire_target(driver(**again))
            committer = sink.committer(driver(**again))
            committer.recover([])
        committer.commit([write(sink, task(attempt=1, job_id="id-2", nonce="one"), ("b", 2))])
        sink.acquire_target(driver(**again))
        assert len(list(db.server.query("SELECT post FROM latest"))) == 2

    def test_prepared_rows_of_a_lost_attempt_are_rolled_back_by_a_take_over(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        sink = db.sink("latest", lock_timeout=1)
        sink.acquire_target(driver())
        write(sink, task(nonce="lost"), ("a", 1))
        again = {"attempts": History(a3="again"), "nonce": "again"}
        with pytest.raises(ConfigurationError, match="restored from a backup"):
            sink.acquire_target(driver(**again))
        assert len(db.ours()) == 1
        sink.acquire_target(driver(**again, take_over=True))
        committer = sink.committer(driver(**again))
        committer.commit([write(sink, task(nonce="again"), ("a", 1))])
        assert db.ours() == []

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_a_driver_that_was_replaced_is_told(
        self, db: SqlServer, task: Task, driver: Driver, mode: str
    ) -> None:
        sink = db.sink("latest", mode=mode, key="post" if mode == "upsert" else None)
        both = History(a3="old", a4="new")
        sink.acquire_target(driver())
        late = write(sink, task(nonce="old"), ("late", 1))
        zombie = sink.committer(driver(attempts=both, nonce="old"))
        new = sink.committer(driver(attempt=4, attempts=both, nonce="new"))
        new.commit([write(sink, task(attempt=4, nonce="new"), ("a", 2))])
        with pytest.raises(FencedError, match="Stop this driver"):
            zombie.commit([late])
        assert list(db.server.query("SELECT post, n FROM latest")) == [("a", 2)]


class ValuesContract:
    """Values that a table would refuse after they were promised, or change."""

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    @pytest.mark.parametrize(
        ("column", "kind", "value", "told"),
        [
            ("varchar(3)", Types.STRING(), "long", "'long': the limit is 3 characters"),
            ("varchar(3)", Types.STRING(), "abc  ", "the limit is 3 characters"),
            ("varchar(9) NOT NULL", Types.STRING(), None, "does not accept null"),
            ("varchar(300)", Types.STRING(), "x" * 301, r"'x{39}\.\.\.: the limit is 300"),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused_in_the_task(
        self,
        db: SqlServer,
        task: Task,
        driver: Driver,
        mode: str,
        column: str,
        kind: TypeInfo,
        value: Any,
        told: str,
    ) -> None:
        db.create(f"k bigint PRIMARY KEY, v {column}")
        row = Types.ROW_NAMED(["k", "v"], [Types.LONG(), kind])
        sink = db.sink("kinds", mode=mode, key="k" if mode == "upsert" else None)
        sink.acquire_target(driver(type=row))
        with pytest.raises(SinkError, match=rf"job 'likes': column 'v' of \w+\.kinds .*{told}"):
            write(sink, task(type=row), (1, value))
        assert db.ours() == []

    def test_what_only_the_database_can_tell_is_refused_before_it_is_staged(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        db.create("k bigint PRIMARY KEY, v integer CHECK (v < 10)")
        row = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.INT()])
        sink = db.sink("kinds", mode="upsert", key="k")
        sink.acquire_target(driver(type=row))
        writer = sink.writer(task(type=row))
        with pytest.raises(SinkError, match=r"check|CONSTRAINT"):
            writer.write(Batch(row, [(1, 7), (2, 11)]))
        with pytest.raises(SinkError, match="failed"):
            writer.write(Batch(row, [(1, 7)]))
        sink.committer(driver(type=row)).commit([write(sink, task(type=row), (1, 7), (1, 8))])
        assert db.kinds() == [(1, 8)]

    def test_null_keys_are_refused_in_the_task(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        db.create("k bigint UNIQUE, v bigint")
        row = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
        sink = db.sink("kinds", mode="upsert", key="k")
        sink.acquire_target(driver(type=row))
        with pytest.raises(SinkError, match=r"column 'k' of .* does not accept null"):
            write(sink, task(type=row), (None, 1))

    @pytest.mark.parametrize(
        ("column", "kind", "told"),
        [
            ("decimal(10,2)", Types.BIG_DEC(38, 18), "rounds to 2 decimals"),
            ("decimal(10,2)", Types.BIG_DEC(12, 2), "8 digits before the point, of 10"),
            ("decimal(18,0)", Types.LONG(), "18 digits before the point, of 19"),
            ("decimal(20,0)", Types.BIG_INT(), "20 digits before the point, of 38"),
            ("time(3)", Types.SQL_TIME(), "of a second"),
        ],
    )
    def test_a_column_that_would_change_values_is_refused_at_the_start(
        self, db: SqlServer, driver: Driver, column: str, kind: TypeInfo, told: str
    ) -> None:
        db.create(f"value {column}")
        with pytest.raises(ConfigurationError, match=f"does not accept .*: .*{told}"):
            db.sink("kinds").check_target(driver(type=kind))

    def test_another_unique_index_is_refused(self, db: SqlServer, driver: Driver) -> None:
        row = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
        db.create("k bigint PRIMARY KEY, v bigint UNIQUE")
        sink = db.sink("kinds", mode="upsert", key="k")
        with pytest.raises(ConfigurationError, match=r"another unique index, .* on \(v\)"):
            sink.check_target(driver(type=row))

    def test_unique_indexes_that_are_never_in_the_way(
        self, db: SqlServer, task: Task, driver: Driver
    ) -> None:
        row = Types.ROW_NAMED(["k", "v"], [Types.LONG(), Types.LONG()])
        db.create(f"id {self.numbered} PRIMARY KEY, k bigint UNIQUE, v bigint, UNIQUE (v, k)")
        sink = db.sink("kinds", mode="upsert", key="k")
        sink.acquire_target(driver(type=row))
        sink.committer(driver(type=row)).commit([write(sink, task(type=row), (1, 2), (3, 4))])
        assert sorted(r[1:] for r in db.kinds()) == [(1, 2), (3, 4)]

    def test_errors_hold_no_rows(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink("latest")
        sink.acquire_target(driver())
        sink.committer(driver()).commit([write(sink, task(), ("Ann's secret", 1))])
        with pytest.raises(SinkError, match=r"latest_pkey|PRIMARY") as told:
            write(sink, task(epoch=8), ("Ann's secret", 1))
        assert "secret" not in str(told.value)

    numbered: str


class JobsContract:
    """Whole jobs, whose directories are copied and restored."""

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_a_job_directory_is_restored_from_a_backup(
        self, db: SqlServer, tmp_path: Path, mode: str
    ) -> None:
        job = _Job(db, tmp_path, mode)
        job.run("a")
        shutil.copytree(job.directory, tmp_path / "backup")
        job.run("b")
        shutil.rmtree(job.directory)
        shutil.copytree(tmp_path / "backup", job.directory)
        with pytest.raises(ConfigurationError, match=r"latest' .*restored from a backup"):
            job.run("c")
        assert job.rows() == ["a", "b"]
        job.clear()  # as the message advises: the table as it was at that time
        job.run(take_over_sinks=True)
        assert job.rows() == ["b", "c"]
        job.run("d")
        assert job.rows() == ["b", "c", "d"]

    def test_a_copy_of_a_job_writes_beside_it_and_takes_over(
        self, db: SqlServer, tmp_path: Path
    ) -> None:
        job = _Job(db, tmp_path, "exactly-once")
        job.run("a")
        copy = _Job(db, tmp_path, "exactly-once", root="copies")
        shutil.copytree(job.directory, copy.directory)
        with pytest.raises(ConfigurationError, match="belongs to job 'likes'"):
            copy.run("b")
        copy.run(take_over_sinks=True)
        with pytest.raises(ConfigurationError, match="copies"):
            job.run()
        assert job.rows() == ["a", "b"]

    def test_rows_of_a_sink_that_the_program_has_no_more_are_rolled_back(
        self, db: SqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OF_DATABASE", db.password)
        job = _Job(db, tmp_path, "exactly-once", password=None, password_from="OF_DATABASE")
        begin = sql_rows.PreparedRows.begin
        tasks: list[WriterContext] = []

        def noted(rows: Any, ctx: WriterContext) -> Any:
            tasks.append(ctx)
            return begin(rows, ctx)

        monkeypatch.setattr(sql_rows.PreparedRows, "begin", noted)
        job.run("a")
        write(job.sink, replace(tasks[0], epoch=99), ("killed", 1))  # and then the driver died
        assert len(db.ours()) == 1
        job.run("b", without_sink=True)
        assert db.ours() == []
        assert job.rows() == ["a"]
        job.run("c")
        assert job.rows() == ["a", "c"]

    def test_rows_that_a_replaced_driver_prepares_late_make_the_epoch_run_again(
        self, db: SqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = _Job(db, tmp_path, "exactly-once")
        begin = sql_rows.PreparedRows.begin
        tasks: list[WriterContext] = []

        def noted(rows: Any, ctx: WriterContext) -> Any:
            if tasks and tasks[-1].attempt < ctx.attempt:
                tasks.append(ctx)  # first, as this is called for the late rows as well
                late = replace(tasks[0], epoch=tasks[0].epoch + 1)
                write(job.sink, late, ("b", 1))
                assert len(db.ours()) == 1
            tasks.append(ctx)
            return begin(rows, ctx)

        monkeypatch.setattr(sql_rows.PreparedRows, "begin", noted)
        job.run("a")
        job.run("b")
        assert job.rows() == ["a", "b"]
        assert db.ours() == []
        runs = [(ctx.attempt, ctx.epoch) for ctx in tasks[-2:]]
        assert runs[0] == runs[1], "the epoch was replayed, in the same attempt"


class _Job:
    """A job that writes the names of its files into `latest`."""

    def __init__(
        self, db: SqlServer, base: Path, mode: str, root: str = "jobs", **arguments: Any
    ) -> None:
        self._db, self._base, self._root = db, base, base / root
        key = "post" if mode == "upsert" else None
        self.sink = db.sink("latest", mode=mode, key=key, **arguments)
        self.directory = self._root / "likes"

    def run(self, *posts: str, without_sink: bool = False, **how: Any) -> None:
        files = self._base / "input"
        files.mkdir(exist_ok=True)
        for post in posts:
            (files / f"{post}.json").write_text(json.dumps({"post": post, "n": 1}))
        env = StreamExecutionEnvironment(None, str(self._root), {}, engine=LocalEngine())
        env.set_parallelism(1).enable_checkpointing(10)
        likes = env.from_files(str(files), "json", "post string, n bigint", uid="files")
        if without_sink:
            likes.print().uid("nowhere")
        else:
            likes.sink_to(self.sink).uid("out")
        try:
            env.execute("likes", bounded=True, **how)
        except JobFailedError as error:
            raise error.__cause__ or error from None

    def rows(self) -> list[str]:
        return [post for (post,) in self._db.server.query("SELECT post FROM latest ORDER BY post")]

    def clear(self) -> None:
        self._db.server.run("DELETE FROM latest")


class PromisesContract:
    """What `check_sink` asks of every sink."""

    @pytest.mark.parametrize("mode", ["exactly-once", "upsert"])
    def test_what_sinks_promise(self, db: SqlServer, mode: str) -> None:
        key = "post" if mode == "upsert" else None
        tables = map("promises_{}".format, itertools.count())

        def make() -> SqlSink:
            table = next(tables)
            unique = "PRIMARY KEY" if key else ""
            columns = f"post varchar(50) {db.exact} {unique}, n bigint"
            db.server.run(f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} ({columns})")
            return db.sink(table, mode=mode, key=key)

        def read(sink: SqlSink) -> list[tuple[Any, ...]]:
            return list(db.server.query(f"SELECT post, n FROM {sink.table}"))

        elements = [(f"post {n}", n) for n in range(8)]
        report = check_sink(make, read, type=POSTS, elements=elements)
        assert {Promise.OWNED, Promise.FENCED, Promise.OTHER_PROCESS} <= set(report.kept)
        assert not report.skipped
        db.server.roll_back_prepared()


class ChecksContract:
    """What is refused before anything is written."""

    def test_a_table_belongs_to_one_job(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink()
        sink.check_target(driver())
        sink.acquire_target(driver())
        sink.acquire_target(driver(uid="second sink"))
        sink.check_target(driver())
        for refuse in (sink.check_target, sink.acquire_target):
            with pytest.raises(ConfigurationError, match="belongs to job 'likes'") as refused:
                refuse(driver("fork"))
            assert "take_over_sinks=True" in str(refused.value)
            assert driver().job_directory in str(refused.value)
        prepared = write(sink, task(), ("a", 1))
        with pytest.raises(ConfigurationError, match="1 prepared transactions"):
            sink.acquire_target(driver("fork", take_over=True))
        committer = sink.committer(driver())
        committer.commit([prepared])
        sink.acquire_target(driver("fork", take_over=True))
        sink.acquire_target(driver("fork"))
        with pytest.raises(ConfigurationError, match="taken over by job 'fork'"):
            write(sink, task(epoch=8), ("late", 2))
        # It was prepared at the very moment.
        late = write(sink, task(epoch=8, directory_id=""), ("late", 2))
        with pytest.raises(ConfigurationError, match="belongs to job 'fork'"):
            committer.commit([late])
        committer.abort([late])
        assert db.rows() == [("a", 1)]

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"table": "nowhere"}, "'nowhere' in .* does not exist"),
            ({"columns": ["likes"]}, r"columns contains 'likes', but the stream has 'post', 'n'"),
            ({"columns": {"post": "title"}}, r"has no column 'title' \(string\)"),
            ({"columns": {"post": "n"}}, "has 'n' as (int8|bigint), which does not accept string"),
            ({"columns": {"n": "post"}}, "has 'post' as text, which does not accept bigint"),
            ({"mode": "upsert", "key": "n"}, r"no primary key or unique constraint on \(n\)"),
            ({"mode": "upsert", "key": "id"}, "has the key id, which the sink does not write"),
            (
                {"table": "latest", "columns": ["n"]},
                r"requires 'post' .*, which the stream does not have.*: post [a-z ]+\(50\), n",
            ),
        ],
    )
    def test_a_table_that_does_not_fit(
        self, db: SqlServer, driver: Driver, arguments: dict[str, Any], told: str
    ) -> None:
        sink = db.sink(**arguments)
        for check in (sink.check_target, sink.acquire_target, sink.committer):
            with pytest.raises(ConfigurationError, match=told):
                check(driver())
        names = "', '".join(sql_database.HELPERS)
        created = db.server.query(
            f"SELECT 1 FROM information_schema.tables WHERE table_name IN ('{names}')"
        )
        assert created == []

    def test_a_wrong_password_is_not_told(self, db: SqlServer, driver: Driver) -> None:
        with pytest.raises(ConfigurationError) as refused:
            db.sink(password="not-the-password").check_target(driver())
        assert "password" in str(refused.value)
        assert "not-the-password" not in str(refused.value)
        assert refused.value.__cause__ is None

    def test_a_server_that_is_not_there(self, db: SqlServer, driver: Driver) -> None:
        with pytest.raises(
            SinkError, match=r"cannot reach .*Check that the server is running"
        ) as told:
            db.sink(port=1).check_target(driver())
        assert db.password not in str(told.value)

    def test_a_database_that_is_not_there(self, db: SqlServer, driver: Driver) -> None:
        sink = db.sink()
        name = "dbname" if "dbname" in sink.parameters else "database"  # type: ignore[attr-defined]
        sink.parameters[name] = "nowhere"  # type: ignore[attr-defined]
        with pytest.raises(ConfigurationError, match="nowhere"):
            sink.check_target(driver())

    def test_the_password_is_told_nowhere(
        self, db: SqlServer, task: Task, driver: Driver, caplog: pytest.LogCaptureFixture
    ) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
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
        sink.acquire_target(driver())
        prepared = write(sink, task(), ("a", 1))
        again = type(sink).from_description(sink.describe())  # type: ignore[attr-defined]
        assert vars(again) == vars(sink)
        again.committer(driver(type=None)).recover([prepared])
        assert db.rows() == [("a", None)]


class SqlContract(
    PreparedContract,
    PublishedContract,
    RestoredContract,
    JobsContract,
    ValuesContract,
    PromisesContract,
    ChecksContract,
):
    """All of them, and the strings that a server has to be given with care."""

    odd: Sequence[str | None]

    def test_odd_strings(self, db: SqlServer, task: Task, driver: Driver) -> None:
        sink = db.sink()
        sink.acquire_target(driver())
        rows = [(text, n) for n, text in enumerate(self.odd)]
        sink.committer(driver()).commit([write(sink, task(), *rows)])
        assert db.rows() == rows
