import errno
import gc
import os
import pickle
import resource
import shutil
import stat
import tempfile
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from turnback.core.errors import ConfigurationError, ElementTypeError, SinkError
from turnback.sinks.files import FileSink
from turnback.sinks.staging import StagedFile
from turnback.types.columns import Batch
from turnback.types.factory import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
FORMATS = ["parquet", "json", "csv"]
# An abandoned file must go in silence, also when its encoder is collected.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


def posts(*rows):
    return Batch(POSTS, list(rows))


def visible(root: Path, extension: str) -> list[str]:
    """What the usual ways of looking for files find."""
    shallow = {p.name for p in root.glob(f"*.{extension}")}
    deep = {p.name for p in root.rglob(f"*.{extension}")}
    listed = {p.name for p in root.iterdir() if p.is_file()} if root.exists() else set()
    assert shallow == deep == listed
    return sorted(deep)


def staged(root: Path) -> list[str]:
    return sorted(p.name for p in root.rglob("*.inprogress"))


def write(sink, ctx, *rows):
    writer = sink.writer(ctx)
    writer.write(posts(*rows))
    return writer.prepare()


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
    committer.discard_others(waiting)
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
    with pytest.raises(SinkError, match=r"'out' of job 'likes': a prepared transaction cannot be"):
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
    with pytest.raises(SinkError, match=r"version 2.*up to 1"):
        committer.commit([msgspec.msgpack.encode(["file", 2, b""])])
    with pytest.raises(SinkError, match="'print' sink, but this uid now has a 'file' sink"):
        committer.commit([msgspec.msgpack.encode(["print", 1, b""])])


@pytest.mark.parametrize("bad", ["orc", "", "Parquet", None, 5, [], "../x"])
def test_bad_format_lists_the_allowed_ones(tmp_path, bad):
    with pytest.raises(ConfigurationError, match="csv, json, parquet"):
        FileSink(tmp_path, bad)


@pytest.mark.parametrize(
    "bad", ["", "  ", "a\0b", 5, None, b"bytes", "s3://bucket/x", "hdfs://h/x"]
)
def test_bad_paths(bad):
    with pytest.raises(ConfigurationError, match="FileSink"):
        FileSink(bad)


@pytest.mark.parametrize(
    "options",
    [{"prefix": p} for p in ("", ".hidden", "_hidden", "a/b", "a\n", "x" * 101, 5)]
    + [{"header": "yes"}, {"header": 1}],
)
def test_bad_options(tmp_path, options):
    with pytest.raises(ConfigurationError, match="FileSink"):
        FileSink(tmp_path, **options)


def test_a_path_that_is_a_file(tmp_path, committer_ctx):
    (tmp_path / "f").write_text("x")
    for path in (tmp_path / "f", tmp_path / "f" / "below"):
        with pytest.raises(ConfigurationError, match=f"{tmp_path / 'f'} is a file"):
            FileSink(path)
    sink = FileSink(tmp_path / "later")
    (tmp_path / "later").write_text("x")
    with pytest.raises(ConfigurationError, match="is a file"):
        sink.committer(committer_ctx())


def test_paths_are_absolute_and_urls_work(tmp_path, monkeypatch, writer_ctx, committer_ctx):
    monkeypatch.chdir(tmp_path)
    assert FileSink("out").path == tmp_path / "out"
    sink = FileSink(f"file://{tmp_path}/with%20space")
    sink.committer(committer_ctx()).commit([write(sink, writer_ctx(), ("a", 1))])
    assert len(visible(tmp_path / "with space", "parquet")) == 1


def test_a_directory_that_cannot_be_written(committer_ctx, writer_ctx):
    sink = FileSink("/proc/turnback")  # refused to root as well
    with pytest.raises(SinkError, match=r"'out' of job 'likes'.*/proc/turnback"):
        sink.committer(committer_ctx())
    with pytest.raises(SinkError, match=r"cannot write /proc/turnback/.*inprogress: "):
        sink.writer(writer_ctx()).write(posts(("a", 1)))


@pytest.fixture
def read_only():
    """A directory this process may not write to, also when the tests are run by root."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield path
    finally:
        os.seteuid(user)
        path.rmdir()


def test_a_read_only_directory(read_only, committer_ctx, writer_ctx):
    sink = FileSink(read_only)
    with pytest.raises(SinkError, match=rf"cannot create {read_only}/.*: Permission denied"):
        sink.committer(committer_ctx())
    with pytest.raises(SinkError, match=rf"cannot write {read_only}/.*: Permission denied"):
        sink.writer(writer_ctx()).write(posts(("a", 1)))


@pytest.mark.parametrize("extension", FORMATS)
def test_the_system_refuses_to_write(tmp_path, writer_ctx, extension):
    writer = FileSink(tmp_path, extension).writer(writer_ctx())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(SinkError, match=r"cannot write .*\.inprogress: File too large") as e:
            for i in range(50):
                writer.write(posts(*((f"{i * 997 + j:x}" * 9, j) for j in range(1000))))
            writer.prepare()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path) in str(e.value)
    assert staged(tmp_path) == []
    # Not "nothing was written": the rows would be lost without a word.
    with pytest.raises(SinkError):
        writer.prepare()
    del writer, e
    gc.collect()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_sync(tmp_path, writer_ctx, monkeypatch, code):
    def fail(fd):
        raise OSError(code, os.strerror(code))

    writer = FileSink(tmp_path, "json").writer(writer_ctx())
    writer.write(posts(("a", 1)))
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SinkError, match=os.strerror(code)):
        writer.prepare()
    assert staged(tmp_path) == []


def test_a_file_system_that_cannot_sync_directories(
    tmp_path, writer_ctx, committer_ctx, monkeypatch
):
    """Some network file systems refuse, because a name is never waiting to be written there."""
    real = os.fsync

    def refuse(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    sink = FileSink(tmp_path / "out", "json")
    transaction = write(sink, writer_ctx(), ("a", 1))
    sink.committer(committer_ctx()).commit([transaction])
    assert len(visible(tmp_path / "out", "json")) == 1


def test_everything_is_synced_before_and_after(tmp_path, writer_ctx, committer_ctx, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), real(fd))
    )
    root = tmp_path / "out"
    sink = FileSink(root)
    transaction = write(sink, writer_ctx(), ("a", 1))
    (file,) = root.rglob("*.inprogress")
    assert file in synced
    for directory in file.parents:
        assert directory in synced
        if directory == root:
            break
    # A new output directory's own name is in its parent.
    assert tmp_path in synced
    synced.clear()
    sink.committer(committer_ctx()).commit([transaction])
    assert synced[-1] == root
    synced.clear()
    sink.committer(committer_ctx()).commit([transaction])
    assert root in synced


@pytest.mark.parametrize("extension", FORMATS)
def test_the_sync_comes_after_the_last_byte(tmp_path, writer_ctx, monkeypatch, extension):
    sizes = {}
    monkeypatch.setattr(
        os,
        "fsync",
        lambda fd: sizes.update({Path(f"/proc/self/fd/{fd}").readlink(): os.fstat(fd).st_size}),
    )
    write(FileSink(tmp_path, extension), writer_ctx(), ("a", 1))
    (file,) = tmp_path.rglob("*.inprogress")
    assert sizes[file] == file.stat().st_size > 0


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
