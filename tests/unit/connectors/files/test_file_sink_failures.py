"""Options that cannot be used, and file systems that fail."""

import errno
import gc
import os
import resource
import stat
import tempfile
from pathlib import Path

import pytest
from sink_support import FORMATS, posts, staged, visible, write

from turnback.connectors.files.sink import FileSink
from turnback.errors import ConfigurationError, SinkError

# An abandoned file must go in silence, also when its encoder is collected.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


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
