"""Print, collect and discard: what rides in the transaction."""

import gc
import io
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from turnback.connectors.files.sink import FileSink
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks import memory
from turnback.sinks.memory import CollectSink, DiscardSink, PrintSink
from turnback.values.columns import Batch
from turnback.values.typeinfo import RowTypeInfo, Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])


def write(sink, ctx, *rows):
    writer = sink.writer(ctx)
    writer.write(Batch(ctx.type, list(rows)))
    return writer.prepare()


@pytest.mark.parametrize("make", [CollectSink, DiscardSink, PrintSink])
def test_nothing_written_no_transaction(make, writer_ctx):
    sink = make()
    assert sink.writer(writer_ctx()).prepare() is None
    assert write(sink, writer_ctx()) is None
    writer = sink.writer(writer_ctx())
    writer.write(Batch(POSTS, [("a", 1)]))
    writer.abort()
    assert writer.prepare() is None


def test_collect_after_the_commit_once_and_in_order(writer_ctx, committer_ctx):
    sink = CollectSink()
    committer = sink.committer(committer_ctx())
    later = write(sink, writer_ctx(epoch=8), ("c", 3))
    second = write(sink, writer_ctx(partition=1), ("b", 2))
    first = write(sink, writer_ctx(), ("a", 1), (None, None))
    write(sink, writer_ctx(task_attempt_id=41), ("a", 1))
    assert sink.results == []
    committer.commit([later, second, first])
    assert sink.results == [("a", 1), (None, None), ("b", 2), ("c", 3)]
    assert sink.results[0].post == "a"
    committer.commit([later, second, first])
    sink.committer(committer_ctx(attempt=4)).recover([later])
    assert len(sink.results) == 4


def test_collect_through_copies_of_the_sink(writer_ctx, committer_ctx):
    sink = CollectSink()
    worker, driver = (pickle.loads(pickle.dumps(sink)) for _ in range(2))
    driver.committer(committer_ctx()).commit([write(worker, writer_ctx(), ("a", 1))])
    assert sink.results == driver.results == [("a", 1)]
    assert CollectSink().results == []
    sink.results.clear()
    assert sink.results == [("a", 1)]


def test_collect_of_a_stream_without_rows(writer_ctx, committer_ctx):
    sink = CollectSink()
    kind = Types.LIST(Types.INSTANT())
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    transaction = write(sink, writer_ctx(kind), [moment, None], None, [])
    sink.committer(committer_ctx()).commit([transaction])
    assert sink.results == [[moment, None], None, []]


@dataclass
class Post:
    post: str
    n: int


def test_collect_gives_the_programs_own_class(writer_ctx, committer_ctx):
    kind = RowTypeInfo(POSTS.names, POSTS.types, Post)
    sink = CollectSink()
    committer = sink.committer(committer_ctx(type=kind))
    committer.commit([write(sink, writer_ctx(kind), Post("a", 1))])
    assert sink.results == [Post("a", 1)]


class Bomb:
    def __init__(self, fuse: Callable[[str], None]) -> None:
        self.fuse = fuse

    def __reduce__(self):
        return exploded.append, ("boom",)


exploded: list[str] = []


@pytest.mark.parametrize(
    "kind",
    [
        Types.PICKLED_BYTE_ARRAY(),
        Types.LIST(Types.PICKLED_BYTE_ARRAY()),
        Types.ROW([Types.MAP(Types.STRING(), Types.PICKLED_BYTE_ARRAY())]),
    ],
)
def test_collect_unpickles_only_what_the_program_declared(writer_ctx, committer_ctx, kind):
    sink = CollectSink()
    value = {"list": [1], "row": ({"k": 1},)}.get(next(iter(kind.describe())), 1)
    transaction = write(sink, writer_ctx(kind), value)
    for declared in (None, POSTS):
        with pytest.raises(SinkError, match="pickled"):
            sink.committer(committer_ctx(type=declared)).commit([transaction])
    assert sink.results == []
    sink.committer(committer_ctx(type=kind)).commit([transaction])
    assert sink.results == [value]


def test_a_pickle_bomb_in_a_checkpoint_does_not_go_off(writer_ctx, committer_ctx):
    sink = CollectSink()
    transaction = write(sink, writer_ctx(Types.PICKLED_BYTE_ARRAY()), Bomb(print))
    with pytest.raises(SinkError, match="nothing of it was read"):
        sink.committer(committer_ctx(type=POSTS)).recover([transaction])
    assert exploded == []


def test_a_field_called_pickled_is_no_pickle(writer_ctx, committer_ctx):
    kind = Types.ROW_NAMED(["pickled"], [Types.STRING()])
    sink = CollectSink()
    sink.committer(committer_ctx()).commit([write(sink, writer_ctx(kind), ("pickled",))])
    assert sink.results == [("pickled",)]


def test_print_at_the_commit(writer_ctx, committer_ctx, capsys):
    sink = PrintSink("likes")
    committer = sink.committer(committer_ctx())
    second = write(sink, writer_ctx(Types.STRING(), epoch=8), "zwei ☃", "a\0b")
    first = write(sink, writer_ctx(Types.LONG()), 1, None)
    assert capsys.readouterr().out == ""
    committer.commit([second, first])
    assert capsys.readouterr().out == "likes> 1\nlikes> None\nlikes> zwei ☃\nlikes> a\0b\n"
    committer.commit([second, first])
    pickle.loads(pickle.dumps(sink)).committer(committer_ctx(attempt=4)).recover([second])
    assert capsys.readouterr().out == ""


def test_print_without_prefix_and_of_rows(writer_ctx, committer_ctx, capsys):
    sink = PrintSink()
    sink.committer(committer_ctx()).commit([write(sink, writer_ctx(), ("a", 1))])
    assert capsys.readouterr().out == f"{Batch(POSTS, [('a', 1)]).rows[0]}\n"


def test_print_on_a_terminal_that_knows_no_unicode(writer_ctx, committer_ctx, monkeypatch):
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    sink = PrintSink()
    transaction = write(sink, writer_ctx(Types.STRING()), "a☃")
    sink.committer(committer_ctx()).commit([transaction])
    assert out.getvalue() == b"a\\u2603\n"


def test_print_when_nobody_listens(writer_ctx, committer_ctx, monkeypatch):
    gone = io.StringIO()
    gone.close()
    sink = PrintSink()
    transaction = write(sink, writer_ctx(Types.STRING()), "a")
    monkeypatch.setattr(sys, "stdout", gone)
    with pytest.raises(SinkError, match="closed file"):
        sink.committer(committer_ctx()).commit([transaction])


@pytest.mark.parametrize("bad", [None, 5, b"x"])
def test_print_prefix_is_text(bad):
    with pytest.raises(ConfigurationError, match="prefix"):
        PrintSink(bad)


def test_discard_counts_what_was_committed(writer_ctx, committer_ctx):
    sink = DiscardSink()
    committer = sink.committer(committer_ctx())
    transactions = [write(sink, writer_ctx(partition=p), *[("a", 1)] * p) for p in range(4)]
    assert transactions[0] is None
    assert sink.count == 0
    committer.commit(transactions[1:])
    committer.commit(transactions[1:])
    committer.abort(transactions[1:])
    assert sink.count == 6


def test_too_much_for_a_checkpoint(writer_ctx, monkeypatch):
    monkeypatch.setattr(memory, "MAX_BYTES", 1000)
    for sink in (CollectSink(), PrintSink()):
        with pytest.raises(SinkError, match=r"'out' of job 'likes'.*use a FileSink"):
            write(sink, writer_ctx(), ("a" * 2000, 1))


def test_a_failed_apply_is_done_again(writer_ctx, committer_ctx, monkeypatch):
    sink = DiscardSink()
    committer = sink.committer(committer_ctx())
    transaction = write(sink, writer_ctx(), ("a", 1))
    with monkeypatch.context() as broken:
        broken.setattr(DiscardSink, "apply", lambda *_: 1 / 0)
        with pytest.raises(SinkError, match=r"'out' of job 'likes'.*ZeroDivisionError"):
            committer.commit([transaction])
    committer.commit([transaction])
    assert sink.count == 1


def test_transactions_of_another_sink_are_refused(tmp_path, writer_ctx, committer_ctx):
    transaction = write(FileSink(tmp_path), writer_ctx(), ("a", 1))
    for sink in (CollectSink(), PrintSink(), DiscardSink()):
        with pytest.raises(SinkError, match="'file' sink"):
            sink.committer(committer_ctx()).commit([transaction])
        with pytest.raises(SinkError, match="cannot read"):
            sink.committer(committer_ctx()).commit(
                [msgspec.msgpack.encode([sink.kind, 1, b"\xc1"])]
            )


def test_forgotten_sinks_free_what_they_gathered(writer_ctx, committer_ctx):
    sink = CollectSink()
    key = sink._key
    sink.committer(committer_ctx()).commit([write(sink, writer_ctx(), ("a", 1))])
    assert memory.OutputLedger.of(key).value == [("a", 1)]
    del sink
    gc.collect()
    assert memory.OutputLedger.of(key).value is None


def test_the_memory_of_what_was_done_is_bounded(monkeypatch):
    monkeypatch.setattr(memory, "_REMEMBERED", 10)
    ledger = memory.OutputLedger()
    done = []
    for i in range(100):
        ledger.once(str(i), lambda i=i: done.append(i))
    ledger.once("99", lambda: done.append("again"))
    assert len(done) == 100
    assert len(ledger._seen) == 10
