import gc
import os
import pickle
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from sink_support import FORMATS, posts, staged, visible, write

from turnback.connectors.files.sink import FileSink
from turnback.connectors.files.staging import StagedFile
from turnback.errors import ElementTypeError, SinkError

# An abandoned file must go in silence, also when its encoder is collected.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("extension", FORMATS)
def test_nothing_is_visible_before_the_commit(tmp_path, writer_ctx, committer_ctx, extension):
    root = tmp_path / "out"
    sink = FileSink(root, extension)
    committer = sink.committer(committer_ctx())
    writer = sink.writer(writer_ctx())
    assert visible(root, extension) == []
    writer.write(posts(("a", 1)))
    writer.write(posts(("b", 2)))
    assert visible(root, extension) == []
    assert len(staged(root)) == 1
    transaction = writer.prepare()
    assert visible(root, extension) == []
    assert ds.dataset(root, format="parquet").files == []
    committer.commit([transaction])
    (name,) = visible(root, extension)
    assert name.startswith("part-0000000007-00000-")
    assert name.endswith(f".{extension}")
    assert staged(root) == []


def test_committed_rows_are_the_written_rows(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    first = write(sink, writer_ctx(), ("a", 1), ("b", None))
    second = write(sink, writer_ctx(partition=1), (None, 3))
    committer.commit([first, second])
    table = ds.dataset(tmp_path, format="parquet").to_table().sort_by("n")
    assert table.to_pylist() == [
        {"post": "a", "n": 1},
        {"post": None, "n": 3},
        {"post": "b", "n": None},
    ]


def test_no_rows_no_file_no_transaction(tmp_path, writer_ctx):
    sink = FileSink(tmp_path / "out")
    writer = sink.writer(writer_ctx())
    writer.write(posts())
    assert writer.prepare() is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("extension", FORMATS)
def test_commit_is_idempotent(tmp_path, writer_ctx, committer_ctx, extension):
    sink = FileSink(tmp_path, extension)
    transactions = [write(sink, writer_ctx(partition=p), ("a", p)) for p in range(3)]
    sink.committer(committer_ctx()).commit(transactions[:1])
    before = {n: (tmp_path / n).read_bytes() for n in visible(tmp_path, extension)}
    committer = sink.committer(committer_ctx(attempt=4))
    committer.commit(transactions)
    committer.commit(transactions)
    after = {n: (tmp_path / n).read_bytes() for n in visible(tmp_path, extension)}
    assert len(after) == 3
    assert before.items() <= after.items()


def test_both_gone_is_a_loud_error(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    found = write(sink, writer_ctx(partition=1), ("c", 3))
    transaction = write(sink, writer_ctx(), ("a", 1), ("b", 2))
    (path,) = tmp_path.rglob("*-00000-*.inprogress")
    path.unlink()
    lost = r"'out' of job 'likes': 2 rows of epoch 7 are lost"
    for _ in range(2):  # trying again does not make it any less lost
        with pytest.raises(SinkError, match=lost) as e:
            committer.commit([found, transaction])
        assert path.name in str(e.value)
    with pytest.raises(SinkError, match=lost):
        sink.committer(committer_ctx(attempt=4)).recover([found, transaction])


def test_a_staged_file_that_was_cut_is_not_committed(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    transaction = write(sink, writer_ctx(), ("a", 1))
    (path,) = tmp_path.rglob("*.inprogress")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(SinkError, match="bytes"):
        sink.committer(committer_ctx()).commit([transaction])
    assert visible(tmp_path, "parquet") == []


def test_abort_of_the_writer_and_of_a_transaction(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    writer = sink.writer(writer_ctx())
    writer.abort()
    writer = sink.writer(writer_ctx())
    writer.write(posts(("a", 1)))
    writer.abort()
    writer.abort()
    del writer
    gc.collect()
    transaction = write(sink, writer_ctx(), ("a", 1))
    assert len(staged(tmp_path)) == 1
    committer.abort([transaction])
    committer.abort([transaction])
    assert staged(tmp_path) == visible(tmp_path, "parquet") == []


def test_abort_never_removes_a_committed_file(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    transaction = write(sink, writer_ctx(), ("a", 1))
    committer.commit([transaction])
    committer.abort([transaction])
    assert len(visible(tmp_path, "parquet")) == 1


@pytest.mark.parametrize("end", ["prepare", "abort"])
def test_a_writer_is_used_once(tmp_path, writer_ctx, end):
    writer = FileSink(tmp_path).writer(writer_ctx())
    writer.write(posts(("a", 1)))
    getattr(writer, end)()
    with pytest.raises(SinkError, match="'out' of job 'likes'"):
        writer.write(posts(("b", 1)))
    with pytest.raises(SinkError, match="already"):
        writer.prepare()


def test_recover_commits_pending_and_removes_strays(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    pending = [write(sink, writer_ctx(attempt=a), ("kept", a)) for a in (1, 2)]
    write(sink, writer_ctx(attempt=1, epoch=8), ("stray", 1))
    half = sink.writer(writer_ctx(attempt=2, epoch=9))
    half.write(posts(("half", 1)))
    own = write(sink, writer_ctx(attempt=3), ("own", 1))
    newer = write(sink, writer_ctx(attempt=4), ("newer", 1))
    sink.committer(committer_ctx(attempt=3)).recover(pending)
    rows = ds.dataset(tmp_path, format="parquet").to_table().to_pylist()
    assert sorted(r["post"] for r in rows) == ["kept", "kept"]
    assert len(staged(tmp_path)) == 2
    home = tmp_path / ".turnback" / "likes" / "id-1" / "out"
    assert sorted(p.name for p in home.iterdir()) == ["3", "4", "published-3"]
    committer = sink.committer(committer_ctx(attempt=4))
    committer.commit([own, newer])
    assert len(visible(tmp_path, "parquet")) == 4
    half.abort()


def test_recover_twice_and_with_nothing(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path / "new")
    sink.committer(committer_ctx()).recover([])
    pending = [write(sink, writer_ctx(), ("a", 1))]
    for attempt in (4, 5, 6):
        sink.committer(committer_ctx(attempt=attempt)).recover(pending)
    assert len(visible(tmp_path / "new", "parquet")) == 1


def test_recover_leaves_others_alone(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    others = [
        {"job": "other"},
        {"job_id": "id-2"},
        {"uid": "out2"},
        {"uid": "out/../out"},
    ]
    theirs = [(o, write(sink, writer_ctx(attempt=1, **o), ("a", 1))) for o in others]
    sink.committer(committer_ctx(attempt=9)).recover([])
    for changes, transaction in theirs:
        sink.committer(committer_ctx(**changes)).commit([transaction])
    assert len(visible(tmp_path, "parquet")) == len(others)


def test_two_attempts_of_one_task_at_the_same_time(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    loser, winner = (sink.writer(writer_ctx(task_attempt_id=i)) for i in (40, 41))
    late = sink.writer(writer_ctx(task_attempt_id=42))
    for batch in (posts(("a", 1)), posts(("b", 2))):
        loser.write(batch)
        winner.write(batch)
    late.write(posts(("a", 1)))
    transaction, lost = winner.prepare(), loser.prepare()
    neighbour = write(sink, writer_ctx(partition=1), ("c", 3))
    following = write(sink, writer_ctx(epoch=8), ("d", 4))
    assert transaction != lost
    committer.commit([transaction])
    late.write(posts(("b", 2)))
    late.prepare()
    rows = ds.dataset(tmp_path, format="parquet").to_table().to_pylist()
    assert sorted(r["post"] for r in rows) == ["a", "b"]
    # What lost is gone; what other tasks and epochs prepared is not.
    assert len(staged(tmp_path)) == 2
    committer.commit([neighbour, following])
    assert len(visible(tmp_path, "parquet")) == 3


def test_what_tasks_left_is_removed_and_what_waits_is_not(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    waiting = [write(sink, writer_ctx(epoch=e), ("a", e)) for e in (6, 7)]
    newer = write(sink, writer_ctx(attempt=4), ("newer", 1))
    other = write(sink, writer_ctx(uid="other"), ("other", 1))
    # A replayed epoch may write where its first run did not, and the other way round.
    write(sink, writer_ctx(partition=1), ("lost", 7))
    zombie = sink.writer(writer_ctx(task_attempt_id=41))
    zombie.write(posts(("late", 7)))
    committer.abort_orphans(waiting)
    assert len(staged(tmp_path)) == 4
    zombie.write(posts(("later", 7)))
    zombie.prepare()
    committer.commit(waiting)
    sink.committer(committer_ctx(attempt=4)).commit([newer])
    sink.committer(committer_ctx(uid="other")).commit([other])
    rows = ds.dataset(tmp_path, format="parquet").to_table().to_pylist()
    assert sorted(r["post"] for r in rows) == ["a", "a", "newer", "other"]


def test_a_task_that_writes_after_its_attempt_was_cleaned_up(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    zombie = sink.writer(writer_ctx(attempt=1))
    zombie.write(posts(("a", 1)))
    sink.committer(committer_ctx(attempt=2)).recover([])
    zombie.write(posts(("b", 1)))
    with pytest.raises(SinkError):
        transaction = zombie.prepare()
        sink.committer(committer_ctx(attempt=1)).commit([transaction])
    assert visible(tmp_path, "parquet") == staged(tmp_path) == []


def test_recover_does_not_follow_links(tmp_path, committer_ctx):
    root, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    committer = FileSink(root).committer(committer_ctx())
    (root / ".turnback" / "likes" / "id-1" / "out" / "1").symlink_to(outside)
    committer.recover([])
    assert (outside / "precious").read_text() == "x"


def test_recover_while_a_dying_task_still_writes(tmp_path, writer_ctx, committer_ctx, monkeypatch):
    sink = FileSink(tmp_path)
    write(sink, writer_ctx(attempt=1), ("stray", 1))
    real = Path.rmdir

    def rmdir(path):
        if not list(path.iterdir()):
            write(sink, writer_ctx(attempt=1), ("late", 1))
        real(path)

    with monkeypatch.context() as racing:
        racing.setattr(Path, "rmdir", rmdir)
        sink.committer(committer_ctx(attempt=2)).recover([])
    assert len(staged(tmp_path)) == 1
    assert visible(tmp_path, "parquet") == []
    sink.committer(committer_ctx(attempt=3)).recover([])
    assert staged(tmp_path) == []


@pytest.mark.parametrize(
    "uid", ["a/b", "../../up", "..", ".", "/abs", "a\\b", "ünï☃", "😀" * 200, "a b%2Fc"]
)
def test_odd_uids_stay_in_the_directory(tmp_path, writer_ctx, committer_ctx, uid):
    root = tmp_path / "out"
    sink = FileSink(root)
    committer = sink.committer(committer_ctx(uid=uid, job=uid, job_id=uid))
    transaction = write(sink, writer_ctx(uid=uid, job=uid, job_id=uid), ("a", 1))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in root.iterdir()] == [".turnback"]
    committer.commit([transaction])
    assert len(visible(root, "parquet")) == 1


@pytest.mark.parametrize(
    ("staged_name", "final"),
    [
        ("../x.csv.inprogress", "x.csv"),
        (".turnback/../../x.csv.inprogress", "x.csv"),
        ("/etc/x.csv.inprogress", "x.csv"),
        (".turnback/x.csv.inprogress", "../x.csv"),
        (".turnback/x.csv.inprogress", "y.csv"),
        ("x.csv.inprogress", "x.csv"),
        (".turnback/x.csv\0.inprogress", "x.csv\0"),
        ("", ""),
    ],
)
def test_forged_names_touch_nothing(tmp_path, committer_ctx, staged_name, final):
    root = tmp_path / "out"
    committer = FileSink(root).committer(committer_ctx())
    (tmp_path / "x.csv.inprogress").write_text("secret")
    (root / "x.csv.inprogress").write_text("secret")
    forged = StagedFile(staged_name, final, 6, 1, 1, 0).encode()
    for step in (committer.commit, committer.abort, committer.recover):
        with pytest.raises(SinkError, match="nothing was touched"):
            step([forged])
    assert (tmp_path / "x.csv.inprogress").read_text() == "secret"
    assert (root / "x.csv.inprogress").read_text() == "secret"


def test_a_link_out_of_the_directory_is_not_followed(tmp_path, writer_ctx, committer_ctx):
    root, outside = tmp_path / "out", tmp_path / "outside"
    sink = FileSink(root)
    transaction = write(sink, writer_ctx(), ("a", 1))
    committer = sink.committer(committer_ctx())
    (root / ".turnback").rename(outside)
    (root / ".turnback").symlink_to(outside)
    with pytest.raises(SinkError, match="leads out of"):
        committer.commit([transaction])
    with pytest.raises(SinkError, match="leads out of"):
        sink.committer(committer_ctx())
    assert visible(root, "parquet") == []
    assert len(list(outside.rglob("*.inprogress"))) == 1


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"x" * 40, msgspec.msgpack.encode(["file", 1, b"?"])]
)
def test_damaged_transactions(tmp_path, committer_ctx, data):
    with pytest.raises(
        SinkError, match=r"'out' of job 'likes': cannot read a prepared transaction"
    ):
        FileSink(tmp_path).committer(committer_ctx()).commit([data])


def test_every_cut_of_a_transaction_is_refused(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    committer = sink.committer(committer_ctx())
    transaction = write(sink, writer_ctx(), ("a", 1))
    for length in range(len(transaction)):
        with pytest.raises(SinkError):
            committer.commit([transaction[:length]])
    assert visible(tmp_path, "parquet") == []


def test_a_newer_version_and_another_kind_are_named(tmp_path, committer_ctx):
    committer = FileSink(tmp_path).committer(committer_ctx())
    with pytest.raises(SinkError, match=r"version 3.*up to 2"):
        committer.commit([msgspec.msgpack.encode(["file", 3, b""])])
    with pytest.raises(SinkError, match="'print' sink, but this uid now has a 'file' sink"):
        committer.commit([msgspec.msgpack.encode(["print", 1, b""])])


@pytest.mark.parametrize("row", [("a", "not a number"), (5, 1), ("a",), 7])
def test_elements_of_the_wrong_type(tmp_path, writer_ctx, row):
    writer = FileSink(tmp_path).writer(writer_ctx())
    writer.write(posts(("a", 1)))
    with pytest.raises(ElementTypeError):
        writer.write(posts(row))
    assert staged(tmp_path) == []
    with pytest.raises(SinkError):
        writer.prepare()


def test_sinks_are_picklable(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path, "csv", prefix="likes", header=False)
    copy = pickle.loads(pickle.dumps(sink))
    sink.committer(committer_ctx()).commit([write(copy, writer_ctx(), ("a", 1))])
    (name,) = visible(tmp_path, "csv")
    assert name.startswith("likes-")
    assert (tmp_path / name).read_text() == '"a",1\n'
    assert pickle.loads(pickle.dumps(writer_ctx())) == writer_ctx()


def test_commit_moves_with_the_directory(tmp_path, writer_ctx, committer_ctx):
    transaction = write(FileSink(tmp_path / "a"), writer_ctx(), ("a", 1))
    shutil.move(tmp_path / "a", tmp_path / "b")
    FileSink(tmp_path / "b").committer(committer_ctx()).commit([transaction])
    assert len(visible(tmp_path / "b", "parquet")) == 1


def test_small_batches_become_one_row_group(tmp_path, writer_ctx, committer_ctx):
    sink = FileSink(tmp_path)
    writer = sink.writer(writer_ctx())
    for i in range(100):
        writer.write(posts((str(i), i)))
    sink.committer(committer_ctx()).commit([writer.prepare()])
    (path,) = tmp_path.glob("*.parquet")
    metadata = pq.read_metadata(path)
    assert (metadata.num_rows, metadata.num_row_groups) == (100, 1)
    assert pq.read_table(path)["n"].to_pylist() == list(range(100))
    assert pq.read_schema(path).field("n").type == pa.int64()
