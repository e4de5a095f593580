"""Partitioned output: what is where, once and only when it is committed."""

import shutil
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from turnback.connectors.files import partitions as partitions_module
from turnback.connectors.files import sink as sink_module
from turnback.connectors.files.sink import FileSink
from turnback.connectors.files.staging import StagedFile, decode_files, encode_files
from turnback.errors import ConfigurationError, SinkError
from turnback.storage.local import LocalStorage
from turnback.values.columns import Batch
from turnback.values.typeinfo import Types

VISITS = Types.ROW_NAMED(
    ["shop", "n", "day", "hour", "paid"],
    [Types.STRING(), Types.LONG(), Types.SQL_DATE(), Types.SHORT(), Types.BOOLEAN()],
)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("shop", pa.string()),
        ("day", pa.date32()),
        ("hour", pa.int16()),
        ("paid", pa.bool_()),
    ]
)
DAY = date(2026, 11, 18)
SHOPS = ["a b", "07", "x/y", "%41", "..", "a=b", "ünï", "q\"'*?#", "[a]{b}^", "C:\\d", "\x01\t\n"]
ROWS = [(shop, n, DAY, n % 3, n % 2 == 0) for n, shop in enumerate([*SHOPS, None])]
ROWS += [("a b", 100, None, 7, None), ("a b", 101, DAY, None, True), ("07", 102, DAY, -1, False)]
COLUMNS = ["shop", "day", "hour", "paid"]


def prepared(sink, ctx, rows=ROWS, size=4):
    writer = sink.writer(ctx)
    for start in range(0, len(rows), size):
        writer.write(Batch(VISITS, rows[start : start + size]))
    return writer.prepare()


def read(root, columns=COLUMNS, format="parquet"):
    partitioning = ds.partitioning(
        pa.schema([SCHEMA.field(name) for name in columns]), flavor="hive"
    )
    dataset = ds.dataset(root, schema=SCHEMA, format=format, partitioning=partitioning)
    table = dataset.to_table(columns=list(VISITS.names)).to_pylist()
    return sorted((tuple(row.values()) for row in table), key=lambda row: row[1])


@pytest.fixture
def ctx(writer_ctx):
    return lambda **changes: writer_ctx(VISITS, **changes)


@pytest.mark.parametrize("columns", [["shop"], ["day", "hour"], COLUMNS], ids=len)
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_what_was_written_is_read_back(tmp_path, ctx, committer_ctx, columns, format):
    sink = FileSink(tmp_path / "out", format, partition_by=columns)
    committer = sink.committer(committer_ctx())
    transaction = prepared(sink, ctx())
    assert list((tmp_path / "out").rglob(f"*.{format}")) == []
    assert ds.dataset(tmp_path / "out", format=format).files == []
    committer.commit([transaction])
    if format == "parquet":
        assert read(tmp_path / "out", columns) == ROWS
        for path in (tmp_path / "out").rglob("*.parquet"):
            names = pa.parquet.read_schema(path).names
            assert names == [name for name in VISITS.names if name not in columns]
    assert len(decode_files(transaction, committer_ctx())) == len(
        {tuple(dict(zip(VISITS.names, row, strict=True))[c] for c in columns) for row in ROWS}
    )
    assert list((tmp_path / "out").rglob("*.inprogress")) == []


def test_directories_are_named_as_hive_does(tmp_path, ctx, committer_ctx):
    sink = FileSink(tmp_path, partition_by=["day", "shop", "paid"])
    rows = [("a:b/%", 1, DAY, 7, True), (None, 2, None, 7, False), ("", 3, DAY, 7, None)]
    sink.committer(committer_ctx()).commit([prepared(sink, ctx(), rows)])
    found = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert found == {
        "day=2026-11-18/shop=a%3Ab%2F%25/paid=true",
        f"day={null}/shop={null}/paid=false",
        f"day=2026-11-18/shop={null}/paid={null}",
    }


def test_a_null_and_an_empty_string_share_a_file(tmp_path, ctx, committer_ctx):
    sink = FileSink(tmp_path, partition_by="shop")
    rows = [(None if n % 2 else "", n, DAY, 7, True) for n in range(6)]
    sink.committer(committer_ctx()).commit([prepared(sink, ctx(), rows)])
    (file,) = tmp_path.rglob("*.parquet")
    assert pa.parquet.read_table(file)["n"].to_pylist() == list(range(6))


def test_the_rows_of_all_directories_are_sorted_at_once():
    """For each directory, Arrow would copy all rows that the task holds."""
    batch = pa.record_batch({"shop": [f"{n}" for n in range(500)], "text": ["x" * 9] * 500})
    found = list(partitions_module.parts([batch] * 20, ["shop"], "sink"))
    assert [part.rows.num_rows for part in found] == [20] * 500
    texts = {chunk.buffers()[2].address for part in found for chunk in part.rows["text"].chunks}
    assert len(texts) == 1


def test_many_partitions_are_written_in_bounded_memory(tmp_path, ctx, committer_ctx, monkeypatch):
    monkeypatch.setattr(sink_module, "_HELD_BYTES", 1 << 20)
    sink = FileSink(tmp_path, partition_by="shop")
    writer = sink.writer(ctx())
    before, most, number = pa.total_allocated_bytes(), 0, 0
    for _ in range(24):
        rows = [(f"{n % 200}", n, DAY, 1, True) for n in range(number, number + 8000)]
        number += len(rows)
        writer.write(Batch(VISITS, rows))
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 4 << 20  # all rows together have more than 8 MiB
    sink.committer(committer_ctx()).commit([writer.prepare()])
    files = list(tmp_path.rglob("*.parquet"))
    assert 200 < len(files) < 200 * 24
    assert [row[1] for row in read(tmp_path, ["shop"])] == list(range(number))


def test_no_rows_no_transaction(tmp_path, ctx):
    sink = FileSink(tmp_path / "out", partition_by=["day"])
    assert prepared(sink, ctx(), []) is None
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("renamed", range(4))
def test_a_commit_that_was_cut_off_is_finished(tmp_path, ctx, committer_ctx, monkeypatch, renamed):
    sink = FileSink(tmp_path, partition_by=["paid"])
    transaction = prepared(sink, ctx())
    rename, done = Path.rename, []

    def failing(path, target):
        if len(done) == renamed:
            raise OSError(5, "Input/output error")
        done.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    committer = sink.committer(committer_ctx())
    if renamed < 3:
        with pytest.raises(SinkError, match="Input/output"):
            committer.commit([transaction])
    else:
        committer.commit([transaction])
    monkeypatch.setattr(Path, "rename", rename)
    info = sink.explain(transaction, committer_ctx(attempt=4))
    assert info.rows == len(ROWS)
    assert (info.problem is None) is (renamed == 0)
    left = sink.list_orphans(committer_ctx(attempt=4))
    assert [orphan.id for orphan in left] == ([info.id] if renamed < 3 else [])
    sink.committer(committer_ctx(attempt=4)).recover([transaction])
    sink.committer(committer_ctx(attempt=5)).recover([transaction])
    assert read(tmp_path, ["paid"]) == ROWS


def test_what_was_rolled_back_is_not_taken_for_published(tmp_path, ctx, committer_ctx, monkeypatch):
    sink = FileSink(tmp_path, partition_by=["paid"])
    transaction = prepared(sink, ctx())
    rename, done = Path.rename, []

    def failing(path, target):
        if done:
            raise OSError(5, "Input/output error")
        done.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(SinkError, match="Input/output"):
        sink.committer(committer_ctx()).commit([transaction])
    monkeypatch.setattr(Path, "rename", rename)
    committer = sink.committer(committer_ctx(attempt=4))
    committer.recover([])
    with pytest.raises(SinkError, match="are lost"):
        committer.commit([transaction])


def test_two_attempts_of_one_task_and_what_they_leave(tmp_path, ctx, committer_ctx):
    sink = FileSink(tmp_path, partition_by=["day", "hour"])
    committer = sink.committer(committer_ctx())
    winner, loser = (prepared(sink, ctx(task_attempt_id=n)) for n in (40, 41))
    other = prepared(sink, ctx(partition=1), [("z", 500, DAY, 1, True)])
    listed = {info.id: info.bytes for info in sink.list_orphans(committer_ctx())}
    for transaction in (winner, loser, other):
        info = sink.explain(transaction, committer_ctx())
        assert listed.pop(info.id) == info.bytes
    assert listed == {}
    committer.commit([winner])
    assert len(list(tmp_path.rglob("*.inprogress"))) == 1  # what lost is gone
    committer.abort_orphans([other])
    committer.commit([other])
    assert read(tmp_path, ["day", "hour"]) == [*ROWS, ("z", 500, DAY, 1, True)]


def test_aborts_leave_nothing(tmp_path, ctx, committer_ctx, monkeypatch):
    monkeypatch.setattr(sink_module, "_HELD_BYTES", 1)
    sink = FileSink(tmp_path, partition_by=["shop"])
    writer = sink.writer(ctx())
    writer.write(Batch(VISITS, ROWS))
    assert len(list(tmp_path.rglob("*.inprogress"))) > 5
    writer.abort()
    writer.abort()
    assert list(tmp_path.rglob("*.inprogress")) == []
    with pytest.raises(SinkError, match="already"):
        writer.prepare()
    transaction = prepared(sink, ctx())
    committer = sink.committer(committer_ctx())
    committer.abort([transaction])
    committer.abort([transaction])
    assert list(tmp_path.rglob("*.inprogress")) == list(tmp_path.rglob("*.parquet")) == []


def test_an_abort_records_all_files_at_once(tmp_path, ctx, committer_ctx, monkeypatch):
    sink = FileSink(tmp_path, partition_by=["shop"])
    transaction = prepared(sink, ctx())
    rename, done, puts = Path.rename, [], []

    def failing(path, target):
        if done:
            raise OSError(5, "Input/output error")
        done.append(path)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(SinkError, match="Input/output"):
        sink.committer(committer_ctx()).commit([transaction])
    monkeypatch.setattr(Path, "rename", rename)
    committer = sink.committer(committer_ctx(attempt=4))
    put = LocalStorage.put
    monkeypatch.setattr(
        LocalStorage, "put", lambda self, *args: (puts.append(args), put(self, *args))
    )
    committer.abort([transaction])
    assert len(puts) == 1
    assert list(tmp_path.rglob("*.inprogress")) == []
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    with pytest.raises(SinkError, match="are lost"):  # not taken for published
        committer.commit([transaction])


def test_readers_take_files_away_and_directories_with_them(tmp_path, ctx, committer_ctx):
    sink = FileSink(tmp_path, partition_by=["day", "hour"])
    committer = sink.committer(committer_ctx())
    transaction = prepared(sink, ctx())
    committer.commit([transaction])
    for path in tmp_path.glob("day=*"):
        shutil.rmtree(path)
    sink.committer(committer_ctx(attempt=4)).recover([transaction])
    assert list(tmp_path.glob("day=*")) == []


def test_a_directory_that_vanishes_between_two_steps(tmp_path, ctx, committer_ctx, monkeypatch):
    sink = FileSink(tmp_path, partition_by=["paid"])
    transaction = prepared(sink, ctx())
    rename, removed = Path.rename, []

    def late(path, target):
        if not removed:
            removed.append(target.parent.rmdir())
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    sink.committer(committer_ctx()).commit([transaction])
    assert read(tmp_path, ["paid"]) == ROWS


def test_a_link_does_not_lead_out(tmp_path, ctx, committer_ctx):
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/paid=true").symlink_to(tmp_path / "outside")
    sink = FileSink(tmp_path / "out", partition_by=["paid"])
    with pytest.raises(SinkError, match="leads out of"):
        sink.committer(committer_ctx()).commit([prepared(sink, ctx())])
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("value", ["x" * 251, "/" * 90])
def test_a_name_that_is_too_long_is_refused_in_the_task(tmp_path, ctx, value):
    sink = FileSink(tmp_path, partition_by=["shop"])
    with pytest.raises(SinkError, match=r"'out' of job 'likes'.* too long .* partition by somethi"):
        prepared(sink, ctx(), [(value, 1, DAY, 1, True)])
    assert list(tmp_path.rglob("*.inprogress")) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (7, "takes names of columns"),
        ([1], "takes names of columns"),
        ([""], "cannot partition by ''"),
        (["_x"], "readers skip directories"),
        ([".x"], "readers skip directories"),
        (["day", "day"], "twice"),
    ],
)
def test_columns_that_cannot_be_used(columns, message):
    with pytest.raises(ConfigurationError, match=message):
        FileSink("out", partition_by=columns)


@pytest.mark.parametrize(
    ("columns", "type", "message"),
    [
        (["dya"], VISITS, "cannot partition by 'dya': the stream has the columns shop, n, day"),
        (["n"], Types.LONG(), "the stream has no columns, but"),
        (["n"], Types.ROW_NAMED(["n"], [Types.LONG()]), "all columns"),
        (["n"], Types.ROW_NAMED(["n", "N"], [Types.LONG()] * 2), "also has the column 'N'"),
        (["n", "x"], Types.ROW_NAMED(["n", "x"], [Types.LONG(), Types.DOUBLE()]), "of type"),
    ],
)
def test_columns_that_the_stream_does_not_have(
    tmp_path, writer_ctx, committer_ctx, columns, type, message
):
    sink = FileSink(tmp_path, partition_by=columns)
    with pytest.raises(ConfigurationError, match=message):
        sink.check_target(committer_ctx(type=type))
    with pytest.raises(ConfigurationError, match=message):
        sink.writer(writer_ctx(type))


def test_the_description_makes_the_sink_again(tmp_path):
    sink = FileSink(tmp_path, "csv", partition_by=["a,b", "c"])
    assert FileSink.from_description(sink.describe()).partition_by == ("a,b", "c")
    assert "partition_by" not in FileSink(tmp_path).describe()
    with pytest.raises(ConfigurationError, match="no columns in partition_by"):
        FileSink.from_description(sink.describe() | {"partition_by": "[a"})


@pytest.mark.parametrize(
    "final", ["../x.json", "a/x.json", "/day=1/x.json", "day=1/../../x.json", "a=\0/x.json"]
)
def test_transactions_that_lead_elsewhere_are_refused(committer_ctx, final):
    name = final.rpartition("/")[2]
    file = StagedFile(f".turnback/likes/id-1/out/3/{name}.inprogress", final, 1, 1, 7, 0)
    with pytest.raises(SinkError, match="outside of the sink's directory"):
        decode_files(encode_files([file]), committer_ctx())
    with pytest.raises(SinkError, match="outside of the sink's directory"):
        decode_files(file.encode(), committer_ctx())
