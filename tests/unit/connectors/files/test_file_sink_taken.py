"""A reader may move a published file away at once, also while the driver is being killed."""

import os
from pathlib import Path

import pytest
from sink_support import write

from turnback.connectors.files import sink as file_committer
from turnback.connectors.files.sink import FileSink
from turnback.errors import SinkError
from turnback.storage.local import LocalStorage


class Killed(BaseException):
    pass


class Reader:
    """Moves every file away that it sees."""

    def __init__(self, root: Path) -> None:
        self.root, self.rows = root, []

    def take(self) -> None:
        for path in sorted(self.root.glob("*.json")):
            self.rows += path.read_text().splitlines()
            path.unlink()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def sink(root):
    return FileSink(root, "json")


@pytest.fixture
def reader(root):
    return Reader(root)


def test_what_was_taken_is_not_lost(sink, reader, writer_ctx, committer_ctx):
    pending = [write(sink, writer_ctx(partition=p), ("a", p)) for p in range(2)]
    committer = sink.committer(committer_ctx())
    committer.commit(pending)
    reader.take()
    committer.commit(pending)
    sink.committer(committer_ctx(attempt=4)).recover(pending)
    sink.committer(committer_ctx(attempt=5)).recover(pending)
    assert len(reader.rows) == 2


def test_killed_between_two_renames(sink, reader, writer_ctx, committer_ctx, monkeypatch):
    pending = [write(sink, writer_ctx(partition=p), ("a", p)) for p in range(2)]
    real, seen = Path.rename, []

    def rename(path, target):
        if path.suffix == ".inprogress":
            seen.append(path)
            if len(seen) == 2:
                raise Killed
        return real(path, target)

    with monkeypatch.context() as killing:
        killing.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            sink.committer(committer_ctx()).commit(pending)
    reader.take()
    assert len(reader.rows) == 1
    sink.committer(committer_ctx(attempt=4)).recover(pending)
    reader.take()
    assert sorted(reader.rows) == ['{"post":"a","n":0}', '{"post":"a","n":1}']


def test_killed_at_any_step_of_recovery(tmp_path, writer_ctx, committer_ctx, monkeypatch):
    """Everything that changes the file system is a step; a reader takes what it sees after it."""
    count = 0
    while True:
        count += 1
        root = tmp_path / f"out{count}"
        sink, reader = FileSink(root, "json"), Reader(root)
        done = write(sink, writer_ctx(attempt=2, epoch=6), ("a", 6))
        sink.committer(committer_ctx(attempt=2)).commit([done])
        pending = [write(sink, writer_ctx(attempt=2, partition=p), ("a", p)) for p in range(2)]
        write(sink, writer_ctx(attempt=2, epoch=8), ("stray", 8))
        steps = Steps(count)
        with monkeypatch.context() as killing:
            steps.watch(killing)
            try:
                sink.committer(committer_ctx(attempt=3)).recover(pending)
                killed = False
            except Killed:
                killed = True
        reader.take()
        sink.committer(committer_ctx(attempt=4)).recover(pending)
        reader.take()
        assert sorted(reader.rows) == [f'{{"post":"a","n":{n}}}' for n in (0, 1, 6)], count
        assert list(root.rglob("*.inprogress")) == []
        if not killed:
            break
    assert count > 8


class Steps:
    """Kills at the n-th change of the file system."""

    def __init__(self, last: int) -> None:
        self.left = last

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name in (
            (Path, "rename"),
            (Path, "unlink"),
            (Path, "rmdir"),
            (Path, "mkdir"),
            (LocalStorage, "put"),
            (LocalStorage, "delete"),
            (file_committer, "sync_directory"),
        ):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, real):
        def step(*args, **kwargs):
            self.left -= 1
            if not self.left:
                raise Killed
            return real(*args, **kwargs)

        return step


def test_an_epoch_that_is_counted_again_after_turning_back(
    root, sink, reader, writer_ctx, committer_ctx
):
    first = write(sink, writer_ctx(attempt=1, epoch=9), ("first", 9))
    sink.committer(committer_ctx(attempt=1)).commit([first])
    reader.take()
    # The job was turned back: its second attempt comes to epoch 7 once more.
    again = write(sink, writer_ctx(attempt=2, epoch=7), ("again", 7))
    (staged,) = root.rglob("*.inprogress")
    staged.unlink()
    with pytest.raises(SinkError, match="1 rows of epoch 7 are lost"):
        sink.committer(committer_ctx(attempt=3)).recover([again])
    sink.committer(committer_ctx(attempt=3)).recover([first])


def test_what_was_rolled_back_does_not_count_as_taken(
    sink, reader, writer_ctx, committer_ctx, monkeypatch
):
    """The driver was killed in the middle of its renames, and its successor was turned back."""
    pending = [write(sink, writer_ctx(partition=p), ("a", p)) for p in range(2)]
    real = Path.rename

    def rename(path, target):
        if path.suffix == ".inprogress" and reader.rows:
            raise Killed
        real(path, target)
        reader.take()

    with monkeypatch.context() as killing:
        killing.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            sink.committer(committer_ctx()).commit(pending)
    sink.committer(committer_ctx(attempt=4)).recover([])
    for attempt in (5, 6):
        with pytest.raises(SinkError, match="1 rows of epoch 7 are lost"):
            sink.committer(committer_ctx(attempt=attempt)).recover(pending)
    sink.committer(committer_ctx(attempt=7)).commit(pending[:1])  # this one was published
    assert reader.rows == ['{"post":"a","n":0}']


def test_what_was_dropped_by_hand_does_not_count_as_taken(sink, writer_ctx, committer_ctx):
    done, promised = (write(sink, writer_ctx(partition=p), ("a", p)) for p in range(2))
    sink.committer(committer_ctx()).commit([done])
    sink.committer(committer_ctx(attempt=4)).abort([promised])
    with pytest.raises(SinkError, match="1 rows of epoch 7 are lost"):
        sink.committer(committer_ctx(attempt=5)).commit([done, promised])


def test_a_replaced_driver_does_not_turn_the_record_back(sink, reader, writer_ctx, committer_ctx):
    zombie = sink.committer(committer_ctx(attempt=1))
    zombie.commit([write(sink, writer_ctx(attempt=1, epoch=1), ("a", 1))])
    late = write(sink, writer_ctx(attempt=1, epoch=2), ("a", 2))
    new = write(sink, writer_ctx(attempt=2, epoch=3), ("a", 3))
    sink.committer(committer_ctx(attempt=2)).commit([new])
    zombie.commit([late])
    reader.take()
    sink.committer(committer_ctx(attempt=3)).recover([late, new])
    assert len(reader.rows) == 3


def test_the_record_is_durable_before_the_first_rename(
    sink, writer_ctx, committer_ctx, monkeypatch
):
    pending = [write(sink, writer_ctx(partition=p), ("a", p)) for p in range(2)]
    committer = sink.committer(committer_ctx())
    happened = []
    real_fsync, real_rename = os.fsync, Path.rename
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: (happened.append(f"{Path(f'/proc/self/fd/{fd}').readlink()}"), real_fsync(fd)),
    )
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (happened.append("rename"), real_rename(path, to))
    )
    committer.commit(pending)
    home = str(sink.path / ".turnback" / "likes" / "id-1" / "out")
    assert home in happened[: happened.index("rename")]
    happened.clear()
    committer.commit(pending)  # what is known already is not written again
    assert happened == [str(sink.path)]


def test_a_damaged_record_is_an_error(root, sink, reader, writer_ctx, committer_ctx):
    pending = [write(sink, writer_ctx(), ("a", 1))]
    sink.committer(committer_ctx()).commit(pending)
    reader.take()
    (record,) = root.rglob("published-*")
    record.write_bytes(b"rubbish")
    with pytest.raises(SinkError, match=r"'out' of job 'likes': cannot .*published-3"):
        sink.committer(committer_ctx(attempt=4)).recover(pending)


def test_the_hidden_records_keep_their_kinds(root, sink, writer_ctx, committer_ctx, tmp_path):
    """What an older version has recorded is read by a newer one."""
    committer = sink.committer(committer_ctx(job_directory=(tmp_path / "job").as_uri()))
    committer.commit([write(sink, writer_ctx(), ("a", 1))])
    (record,), (owner,) = root.rglob("published-*"), root.rglob(".owner")
    assert record.read_bytes().startswith(b"turnback published 1 ")
    assert owner.read_bytes().startswith(b"turnback sink-owner 1 ")
