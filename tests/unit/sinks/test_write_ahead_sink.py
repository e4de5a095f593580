"""A sink on the write-ahead template, and every crash between staging and publishing."""

import shutil
import uuid
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from sink_support import POSTS, posts, write

from ledger_sink import LedgerSink
from turnback.errors import ConfigurationError, FencedError, SinkError, StorageError
from turnback.sinks import staged_elements
from turnback.sinks.base import directory_digest, seal_handle, version_of
from turnback.sinks.staged_elements import StagedTask
from turnback.state.files import StorageRef, storage_of
from turnback.storage.local import LocalStorage
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types


@pytest.fixture(params=["local", "objects"])
def storage(request, tmp_path) -> StorageRef:
    """A file system; and one without directories, as object stores are."""
    if request.param == "local":
        return StorageRef((tmp_path / "job").as_uri())
    return StorageRef(f"memory://{uuid.uuid4().hex}/job")


@pytest.fixture
def sink(tmp_path) -> LedgerSink:
    return LedgerSink(str(tmp_path / "likes.db"))


@pytest.fixture
def task(writer_ctx, storage):
    return partial(writer_ctx, storage=storage)


@pytest.fixture
def driver(committer_ctx, storage):
    return partial(committer_ctx, storage=storage)


def staged(storage: StorageRef) -> list[str]:
    return [path for path in storage_of(storage).list("sinks") if "/staged/" in path]


def published(sink: LedgerSink) -> list[str]:
    return [call for call in sink.calls if call.startswith("publish ")]


def test_visible_after_the_commit_only_and_once(sink, task, driver, storage):
    writer = sink.writer(task())
    writer.write(posts(("a", 1)))
    assert staged(storage) == []
    writer.write(posts(("b", None), (None, 3)))
    transaction = writer.prepare()
    assert len(staged(storage)) == 1
    assert sink.likes() == []
    for attempt in (3, 3, 4):
        committer = sink.committer(driver(attempt=attempt))
        committer.commit([transaction])
    assert sink.likes() == [("a", 1), ("b", None), (None, 3)]
    assert published(sink) == ["publish 3/7"]
    committer.close()
    assert staged(storage) == []


def test_staged_files_are_there_until_the_job_has_recorded_that_they_are_published(
    sink, task, driver, storage
):
    """A backup of the job directory has the files or the record, or it could not be started."""
    committer = sink.committer(driver())
    first = write(sink, task(epoch=7), ("a", 1))
    committer.commit([first])
    files = staged(storage)
    assert len(files) == 1
    second = write(sink, task(epoch=8), ("b", 2))
    committer.commit([second])  # the first has been recorded when the next one comes
    assert len(staged(storage)) == 1
    assert staged(storage) != files
    committer.close()
    assert staged(storage) == []
    assert sink.likes() == [("a", 1), ("b", 2)]


def test_a_record_that_arrives_late_turns_nothing_back(sink, task, driver, storage, monkeypatch):
    """A put that failed may take effect after those that came behind it."""
    committer = sink.committer(driver())
    committer.commit([write(sink, task(epoch=7), ("a", 1))])
    late = []

    def lost(self, path, data):
        late.append((path, data))
        raise StorageError("no answer")

    second = write(sink, task(epoch=8), ("b", 2))
    with monkeypatch.context() as broken:
        broken.setattr(type(storage_of(storage)), "put", lost)
        with pytest.raises(SinkError, match="no answer"):
            committer.commit([second])
    committer.commit([second, write(sink, task(epoch=9), ("c", 3))])
    for path, data in late:
        storage_of(storage).put(path, data)
    last = write(sink, task(attempt=4, epoch=10), ("d", 4))
    sink.committer(driver(attempt=4)).commit([last])
    assert sink.likes() == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


def test_where_it_is_staged(sink, task, storage):
    write(sink, task(uid="out/../put", task_attempt_id=12), ("a", 1))
    assert staged(storage)[0].startswith("sinks/out%2F..%2Fput/staged/3/0000000007-00000-12-")


def test_an_empty_epoch_has_no_transaction(sink, task, storage):
    writer = sink.writer(task())
    writer.write(posts())
    assert writer.prepare() is None
    assert staged(storage) == []
    assert sink.calls == []


def test_several_epochs_in_order_with_one_question(sink, task, driver):
    second = write(sink, task(epoch=8), ("c", 3))
    first = [write(sink, task(partition=p), (f"{p}", p)) for p in (2, 0, 10)]
    committer = sink.committer(driver())
    committer.commit([second, *first])
    assert sink.calls == ["open", "published", "publish 3/7", "publish 3/8"]
    assert sink.likes() == [("0", 0), ("2", 2), ("10", 10), ("c", 3)]
    committer.commit([])
    assert sink.calls[4:] == []


def test_what_publish_gets(sink, task, driver, monkeypatch):
    seen = []

    def look(self, ctx, output):
        batches = [*output.batches(), *output.batches()]
        seen.append((ctx.uid, output, [batch.rows for batch in batches]))

    monkeypatch.setattr(LedgerSink, "publish", look)
    transactions = [write(sink, task(partition=p), ("a", p), ("b", p)) for p in range(2)]
    sink.committer(driver(type=POSTS)).commit(transactions)
    [(uid, output, rows)] = seen
    assert uid == "out"
    assert (output.attempt, output.epoch, output.rows) == (3, 7, 4)
    assert output.version == version_of(3, 7) == (3 << 40) + 7 == task().version
    assert output.type is POSTS
    assert rows == [[("a", 0), ("b", 0)], [("a", 1), ("b", 1)]] * 2


def test_large_output_is_staged_in_several_files(sink, task, driver, storage, monkeypatch):
    monkeypatch.setattr(staged_elements, "FILE_BYTES", 1)
    writer = sink.writer(task())
    for n in range(3):
        writer.write(posts(("a", n)))
    assert len(staged(storage)) == 3
    committer = sink.committer(driver())
    committer.commit([writer.prepare()])
    committer.close()
    assert sink.likes() == [("a", 0), ("a", 1), ("a", 2)]
    assert staged(storage) == []


def test_killed_between_publish_and_cleaning(sink, task, driver, storage):
    transaction = write(sink, task(), ("a", 1))
    files = {path: storage_of(storage).get(path) for path in staged(storage)}
    sink.committer(driver()).commit([transaction])
    for path, data in files.items():
        storage_of(storage).put(path, data)
    sink.committer(driver(attempt=4)).recover([transaction])
    assert sink.likes() == [("a", 1)]
    assert staged(storage) == []


def test_a_publish_that_outlives_its_attempt_does_not_share_a_connection_with_the_next(
    sink, task, driver, monkeypatch
):
    used = []
    opened = LedgerSink.open

    def open_and_remember(self, ctx):
        opened(self, ctx)
        self.opened_by = ctx.attempt

    def publish(self, ctx, output):
        sink.committer(driver(attempt=4))  # this one hangs, and the next attempt begins
        used.append((ctx.attempt, self.opened_by))

    monkeypatch.setattr(LedgerSink, "open", open_and_remember)
    monkeypatch.setattr(LedgerSink, "publish", publish)
    sink.committer(driver(attempt=3)).commit([write(sink, task(), ("a", 1))])
    assert used == [(3, 3)]


def test_recover_publishes_pending_and_removes_the_rest(sink, task, driver, storage):
    pending = write(sink, task(epoch=2), ("pending", 2))
    write(sink, task(epoch=3), ("stray", 3))
    write(sink, task(attempt=2, epoch=9), ("old stray", 3))
    write(sink, task(uid="it was renamed since"), ("stray", 4))
    newer = write(sink, task(attempt=5, epoch=3), ("newer", 5))
    sink.committer(driver(attempt=4)).recover([pending])
    assert sink.likes() == [("pending", 2)]
    assert len(staged(storage)) == 1
    sink.committer(driver(attempt=5)).commit([newer])
    assert sink.likes() == [("pending", 2), ("newer", 5)]


class Attempts:
    """The attempts that a job directory knows of."""

    def __init__(self, *known: int) -> None:
        self.known = known

    def nonce_of(self, attempt: int) -> str | None:
        return "driver" if attempt in self.known else None


@pytest.mark.parametrize("newest", [2, 3])
def test_a_restored_job_directory_does_not_take_its_output_for_published(
    sink, task, driver, storage, newest
):
    """The target remembers more than the job directory ever published, in whatever attempt."""
    sink.committer(driver(attempt=1)).commit([write(sink, task(attempt=1, epoch=1), ("a", 1))])
    kept = {path: storage_of(storage).get(path) for path in storage_of(storage).list("")}
    last = write(sink, task(attempt=newest, epoch=2), ("b", 2))
    sink.committer(driver(attempt=newest)).commit([last])
    for path in storage_of(storage).list(""):
        storage_of(storage).delete(path)
    for path, data in kept.items():
        storage_of(storage).put(path, data)
    restored = driver(attempt=2, attempts=Attempts(1, 2))
    staged_before = staged(storage)
    transaction = write(sink, task(attempt=2, epoch=2), ("c", 3))
    committer = sink.committer(restored)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"attempt {newest} .*restored from a backup"):
            committer.commit([transaction])
    assert len(staged(storage)) == len(staged_before) + 1
    assert sink.likes() == [("a", 1), ("b", 2)]


def test_a_driver_that_meets_the_output_of_its_successor_is_fenced(sink, task, driver, storage):
    late = write(sink, task(attempt=1, epoch=5), ("late", 1))
    zombie = sink.committer(driver(attempt=1, attempts=Attempts(1, 2)))
    new = write(sink, task(attempt=2, epoch=1), ("new", 2))
    sink.committer(driver(attempt=2, attempts=Attempts(1, 2))).commit([new])
    with pytest.raises(FencedError, match="attempt 2 has written"):
        zombie.commit([late])
    assert sink.likes() == [("new", 2)]


class PlacedSink(LedgerSink):
    """Remembers by place how far it is; what it was asked for as."""

    def marker(self, ctx) -> int:
        return super().marker(self.named(ctx))

    def publish(self, ctx, output) -> None:
        super().publish(self.named(ctx), output)

    def named(self, ctx):
        if ctx.job_id.startswith("at "):
            return ctx
        return replace(ctx, job_id=f"at {ctx.directory_id} {ctx.job_id}")


class Places:
    """A job directory, and those it is moved or copied to."""

    def __init__(self, tmp_path, writer_ctx, committer_ctx) -> None:
        self.path = tmp_path
        self.sink = PlacedSink(str(tmp_path / "likes.db"))
        self._writer_ctx = writer_ctx
        self._committer_ctx = committer_ctx

    def stage(self, place: str, attempt: int, epoch: int, n: int) -> bytes:
        where = {"storage": self.storage(place), "directory_id": directory_digest(self.uri(place))}
        return write(self.sink, self._writer_ctx(attempt=attempt, epoch=epoch, **where), ("a", n))

    def driver(self, place: str, attempt: int, known=None):
        attempts = Attempts(*(known or range(1, attempt + 1)))
        where = {"storage": self.storage(place), "job_directory": self.uri(place)}
        return self.sink.committer(self._committer_ctx(attempt=attempt, attempts=attempts, **where))

    def uri(self, place: str) -> str:
        return (self.path / place).as_uri()

    def storage(self, place: str) -> StorageRef:
        return StorageRef(self.uri(place))

    def likes(self) -> list[int]:
        return [n for _, n in self.sink.likes()]


@pytest.fixture
def places(tmp_path, writer_ctx, committer_ctx) -> Places:
    return Places(tmp_path, writer_ctx, committer_ctx)


def test_a_moved_job_publishes_what_is_left_and_not_again_what_was_published(places):
    first, second = (places.stage("old", 1, epoch, epoch) for epoch in (1, 2))
    places.driver("old", 1).commit([first])  # killed before it has recorded that
    (places.path / "old").rename(places.path / "new")
    places.driver("new", 2).commit([first, second])
    places.driver("new", 3).commit([first, second])  # as the one before, which died as well
    assert places.likes() == [1, 2]
    (places.path / "new").rename(places.path / "third")
    driver = places.driver("third", 4)
    driver.recover([])
    driver.commit([places.stage("third", 4, 3, 3)])
    assert places.likes() == [1, 2, 3]


def test_published_staged_files_are_not_missed_after_a_move(places):
    first = places.stage("old", 1, 1, 1)
    driver = places.driver("old", 1)
    driver.commit([first])
    driver.close()
    (places.path / "old").rename(places.path / "new")
    places.driver("new", 2).recover([first])
    assert places.likes() == [1]


def test_a_copy_does_not_publish_what_the_original_has_settled_since(places):
    places.driver("old", 1).commit([places.stage("old", 1, 1, 1)])
    second = places.stage("old", 1, 2, 2)
    shutil.copytree(places.path / "old", places.path / "copy")
    # It goes on in that attempt, and is settled by hand later: an attempt without output.
    places.driver("old", 1).commit([second, places.stage("old", 1, 3, 3)])
    places.driver("old", 2).recover([])
    driver = places.driver("copy", 2)
    driver.recover([second])
    driver.commit([places.stage("copy", 2, 3, 3)])
    assert places.likes() == [1, 2, 3, 3]


@pytest.mark.parametrize("published_before", [True, False])
def test_a_copy_of_a_job_that_has_been_started_since_says_what_to_do(places, published_before):
    if published_before:
        places.driver("old", 1).commit([places.stage("old", 1, 1, 1)])
    second = places.stage("old", 1, 2, 2)
    shutil.copytree(places.path / "old", places.path / "copy")
    # Whether it has published that before or was turned back cannot be seen by anybody.
    places.driver("old", 2).commit([places.stage("old", 2, 3, 3)])
    before = places.likes()
    for known in ([1], [1, 2]):  # the copy may have an attempt 2 of its own
        driver = places.driver("copy", 2, known)
        with pytest.raises(ConfigurationError, match=r"copied .*attempt 2 .*transactions abort"):
            driver.recover([second])
    assert places.likes() == before
    driver.abort([second])
    driver.recover([])
    driver.commit([places.stage("copy", 2, 4, 4)])
    assert places.likes() == [*before, 4]


def test_output_that_was_staged_before_its_place_was_noted(places):
    old = StagedTask.decode(places.stage("old", 1, 1, 1), "likes")
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(old))
    assert fields.pop() == directory_digest(places.uri("old"))
    unplaced = seal_handle("write-ahead", 1, msgspec.msgpack.encode(fields))
    assert StagedTask.decode(unplaced, "likes").directory_id == ""
    places.driver("old", 2).commit([unplaced])
    places.driver("old", 3).commit([unplaced])
    assert places.likes() == [1]


def test_a_target_that_was_written_before_that_was_recorded(sink, task, driver, storage):
    first, second = (write(sink, task(epoch=e), ("a", e)) for e in (1, 2))
    sink.committer(driver()).commit([first])
    for path in storage_of(storage).list("sinks"):
        if "publishing" in path:
            storage_of(storage).delete(path)
    sink.committer(driver(attempt=4, attempts=Attempts(3, 4))).commit([first, second])
    assert sink.likes() == [("a", 1), ("a", 2)]


def test_recover_without_pending(sink, task, driver, storage):
    write(sink, task(), ("stray", 1))
    sink.committer(driver(attempt=4)).recover([])
    assert sink.likes() == staged(storage) == []


def test_a_publish_that_fails_is_done_again(sink, task, driver, storage, monkeypatch):
    transactions = [write(sink, task(epoch=e), ("a", e)) for e in (7, 8)]
    committer = sink.committer(driver())
    publish = LedgerSink.publish

    def fail(self, ctx, output):
        if output.epoch == 8:
            raise ConnectionError("gone")
        publish(self, ctx, output)

    with monkeypatch.context() as broken:
        broken.setattr(LedgerSink, "publish", fail)
        with pytest.raises(SinkError, match=r"'out' of job 'likes'.*LedgerSink.publish.*gone"):
            committer.commit(transactions)
    assert sink.likes() == [("a", 7)]
    assert len(staged(storage)) == 2
    committer.commit(transactions)
    committer.close()
    assert sink.likes() == [("a", 7), ("a", 8)]
    assert staged(storage) == []


def test_a_turned_back_job_writes_its_epochs_again(sink, task, driver):
    for epoch in range(50, 53):
        sink.committer(driver()).commit([write(sink, task(epoch=epoch), ("first", epoch))])
    again = write(sink, task(attempt=4, epoch=51), ("again", 51))
    sink.committer(driver(attempt=4)).commit([again])
    assert [n for _, n in sink.likes()] == [50, 51, 52, 51]


def test_the_late_commit_of_a_zombie_changes_nothing(sink, task, driver):
    zombie = sink.committer(driver())
    late = write(sink, task(epoch=9), ("zombie", 1))
    sink.committer(driver(attempt=4)).commit([write(sink, task(attempt=4, epoch=8), ("new", 2))])
    zombie.commit([late])
    assert sink.likes() == [("new", 2)]


def test_a_zombie_removes_nothing_of_its_successor(sink, task, driver, storage):
    zombie = sink.committer(driver())
    write(sink, task(epoch=9), ("zombie", 1))
    write(sink, task(attempt=4, epoch=9), ("new", 1))
    zombie.abort_orphans([])
    zombie.recover([])
    assert len(staged(storage)) == 1
    assert "/4/" in staged(storage)[0]


def test_of_two_attempts_of_a_task_one_counts(sink, task, driver, storage):
    write(sink, task(task_attempt_id=40), ("a", 1))
    winner = write(sink, task(task_attempt_id=41), ("a", 1))
    committer = sink.committer(driver())
    committer.abort_orphans([winner])
    assert len(staged(storage)) == 1
    committer.commit([winner])
    assert sink.likes() == [("a", 1)]


def test_abort_twice_in_the_task_and_on_the_driver(sink, task, driver, storage):
    writer = sink.writer(task())
    writer.write(posts(("a", 1)))
    transaction = writer.prepare()
    committer = sink.committer(driver())
    for _ in range(2):
        committer.abort([transaction])
    assert staged(storage) == []
    other = sink.writer(task())
    other.write(posts(("b", 1)))
    for _ in range(2):
        other.abort()
    with pytest.raises(SinkError, match="prepared or aborted"):
        other.write(posts(("b", 2)))


def test_a_lost_file_stops_the_job_before_anything_is_published(sink, task, driver, storage):
    first, second = (write(sink, task(epoch=e), ("a", e), ("b", e)) for e in (7, 8))
    storage_of(storage).delete(staged(storage)[1])
    with pytest.raises(SinkError, match=r"2 rows of epoch 8 are lost.*staged/3.*Restore it"):
        sink.committer(driver()).commit([first, second])
    assert sink.likes() == []


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:-9] + b"x" + d[-8:]])
def test_a_damaged_file_is_not_published(sink, task, driver, storage, damage):
    intact = write(sink, task(), ("a", 1))
    damaged = write(sink, task(partition=1), ("b", 1))
    [path] = [p for p in staged(storage) if "-00001-" in p]
    data = storage_of(storage).get(path)
    storage_of(storage).put(path, damage(data))
    with pytest.raises(SinkError, match=r"'out' of job 'likes'.*00001.* is damaged"):
        sink.committer(driver()).commit([intact, damaged])
    assert sink.likes() == []
    storage_of(storage).put(path, data)
    sink.committer(driver()).commit([intact, damaged])
    assert sink.likes() == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("inline", [True, None])
def test_where_the_job_keeps_its_checkpoints_in_memory(sink, writer_ctx, committer_ctx, inline):
    ref = StorageRef(f"memory://{uuid.uuid4().hex}", inline=True) if inline else None
    transaction = write(sink, writer_ctx(storage=ref), ("a", 1))
    committer = sink.committer(committer_ctx(storage=ref))
    committer.recover([transaction])
    committer.abort_orphans([transaction])
    committer.commit([transaction])
    committer.abort([transaction])
    assert sink.likes() == [("a", 1)]
    assert ref is None or staged(ref) == []


def test_too_much_for_the_drivers_memory(sink, writer_ctx, monkeypatch):
    monkeypatch.setattr(staged_elements, "MAX_BYTES", 100)
    with pytest.raises(SinkError, match="set a checkpoint directory"):
        write(sink, writer_ctx(), ("a", 1))


def test_a_job_that_had_a_directory_and_now_has_none(sink, task, committer_ctx):
    transaction = write(sink, task(), ("a", 1))
    with pytest.raises(SinkError, match="previous checkpoint directory"):
        sink.committer(committer_ctx()).commit([transaction])


def test_a_renamed_sink_asks_for_what_it_was(sink, task, driver):
    transaction = write(sink, task(uid="before"), ("a", 1))
    sink.committer(driver(uid="before")).commit([transaction])
    sink.committer(driver(uid="after", attempt=4)).recover([transaction])
    assert sink.likes() == [("a", 1)]


def test_a_fork_has_a_marker_of_its_own(sink, task, driver):
    for job_id in ("id-1", "id-2"):
        transaction = write(sink, task(job_id=job_id), (job_id, 1))
        sink.committer(driver(job_id=job_id)).commit([transaction])
    assert len(sink.likes()) == 2


@pytest.mark.parametrize(
    "path",
    [
        "checkpoints/1.json",
        "sinks/out/staged/3/../../../../x",
        "sinks/out/sink.json",
        "/etc/passwd",
    ],
)
def test_a_transaction_reaches_nothing_but_staged_files(sink, task, driver, storage, path):
    storage_of(storage).put("checkpoints/1.json", b"needed")
    real = StagedTask.decode(write(sink, task(), ("a", 1)), "")
    part = msgspec.structs.replace(real.parts[0], path=path)
    forged = msgspec.structs.replace(real, parts=(part,)).encode()
    committer = sink.committer(driver())
    for settle in (committer.commit, committer.abort):
        with pytest.raises(SinkError, match="nothing was touched"):
            settle([forged])
    assert storage_of(storage).get("checkpoints/1.json") == b"needed"


def test_transactions_of_other_kinds_and_versions_are_refused(sink, driver):
    committer = sink.committer(driver())
    for bad, reason in [
        (seal_handle("file", 1, b""), "'file' sink"),
        (seal_handle("write-ahead", 9, b""), "upgrade Turnback"),
        (seal_handle("write-ahead", 1, b"\xc1"), "cannot read"),
    ]:
        with pytest.raises(SinkError, match=reason):
            committer.commit([bad])


def test_objects_are_unpickled_only_if_the_program_says_so(tmp_path, task, driver):
    class Counting(LedgerSink):
        def publish(self, ctx, output):
            self.calls += [row for batch in output.batches() for row in batch.rows]

    sink, kind = Counting(str(tmp_path / "likes.db")), Types.PICKLED_BYTE_ARRAY()
    writer = sink.writer(task(kind))
    writer.write(Batch(kind, [{1}]))
    transaction = writer.prepare()
    with pytest.raises(SinkError, match="pickled"):
        sink.committer(driver(type=POSTS)).commit([transaction])
    sink.committer(driver(type=kind)).commit([transaction])
    assert sink.calls[-1] == {1}


def test_a_version_has_to_be_a_number(sink, task, driver, monkeypatch):
    monkeypatch.setattr(LedgerSink, "published", lambda self, ctx: None)
    with pytest.raises(SinkError, match=r"published returned None.*or 0"):
        sink.committer(driver()).commit([write(sink, task(), ("a", 1))])


def test_errors_of_the_template_pass_and_others_name_the_sink(sink, driver, monkeypatch):
    monkeypatch.setattr(LedgerSink, "open", lambda self, ctx: 1 / 0)
    with pytest.raises(SinkError, match=r"'out'.*LedgerSink.open failed: ZeroDivisionError"):
        sink.committer(driver())

    def refuse(self, ctx):
        raise ConfigurationError("no such table")

    monkeypatch.setattr(LedgerSink, "open", refuse)
    with pytest.raises(ConfigurationError, match=r"^no such table"):
        sink.committer(driver())


def test_a_disk_that_is_full(sink, writer_ctx, tmp_path, monkeypatch):
    def full(self, path, data):
        raise StorageError("no space left")

    monkeypatch.setattr(LocalStorage, "put", full)
    writer = sink.writer(writer_ctx(storage=StorageRef(tmp_path.as_uri())))
    writer.write(posts(("a", 1)))
    with pytest.raises(SinkError, match=r"'out' of job 'likes': cannot stage.*no space left"):
        writer.prepare()


def test_files_that_cannot_be_removed_do_not_fail_the_commit(
    sink, writer_ctx, committer_ctx, tmp_path, monkeypatch, caplog
):
    def stuck(self, path):
        raise StorageError("read-only")

    ref = StorageRef((tmp_path / "job").as_uri())
    transaction = write(sink, writer_ctx(storage=ref), ("a", 1))
    with monkeypatch.context() as broken:
        broken.setattr(LocalStorage, "delete", stuck)
        committer = sink.committer(committer_ctx(storage=ref))
        committer.commit([transaction])
        committer.close()
    assert "is kept until the next start: read-only" in caplog.text
    sink.committer(committer_ctx(storage=ref, attempt=4)).recover([])
    assert (sink.likes(), staged(ref)) == ([("a", 1)], [])


def test_close_closes_what_open_opened(sink, driver):
    committer = sink.committer(driver())
    committer.close()
    assert sink.calls == ["open", "close"]
