"""A sink on the idempotent template: what is called when, and that old values never win."""

import pickle

import pytest
from sink_support import posts, write

from latest_sink import LatestSink
from turnback.errors import SinkError
from turnback.sinks import IdempotentSink
from turnback.sinks.base import seal_handle


class Recording(IdempotentSink):
    """Notes its calls in a list that all copies share; fails in the steps it is told to."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self.failing = failing

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call.split()[0] in self.failing:
            raise ConnectionError(f"{call} refused")

    def open(self, ctx) -> None:
        self.note("open")
        self.connection = ctx.task_attempt_id

    def write_batch(self, batch, ctx) -> None:
        self.note(f"write {len(batch)} by {self.connection} at {ctx.version >> 40}/{ctx.epoch}")

    def flush(self) -> None:
        self.note("flush")

    def close(self) -> None:
        self.note("close")


@pytest.fixture
def latest(tmp_path) -> LatestSink:
    return LatestSink(str(tmp_path / "latest.db"))


def test_what_is_called_in_a_task(writer_ctx):
    sink = Recording()
    writer = sink.writer(writer_ctx())
    writer.write(posts())
    writer.write(posts(("a", 1), ("b", 1)))
    writer.write(posts(("c", 1)))
    assert writer.prepare() is None
    assert sink.calls == ["open", "write 2 by 40 at 3/7", "write 1 by 40 at 3/7", "flush", "close"]
    with pytest.raises(SinkError, match="already been prepared or aborted"):
        writer.write(posts(("d", 1)))


def test_nothing_is_opened_for_an_empty_epoch(writer_ctx):
    sink = Recording()
    writer = sink.writer(writer_ctx())
    writer.write(posts())
    assert writer.prepare() is None
    assert sink.calls == []


def test_tasks_of_one_process_have_copies_of_their_own(writer_ctx):
    sink = Recording()
    one, two = (sink.writer(writer_ctx(task_attempt_id=id)) for id in (40, 41))
    for writer in (one, two, one):
        writer.write(posts(("a", 1)))
    assert sink.calls[-1] == "write 1 by 40 at 3/7"
    assert not hasattr(sink, "connection")


def test_an_aborted_task_closes_once(writer_ctx):
    sink = Recording()
    writer = sink.writer(writer_ctx())
    writer.abort()
    assert sink.calls == []
    writer = sink.writer(writer_ctx())
    writer.write(posts(("a", 1)))
    for _ in range(2):
        writer.abort()
    assert sink.calls[2:] == ["close"]


@pytest.mark.parametrize(
    ("step", "method"), [("open", "open"), ("write", "write_batch"), ("flush",) * 2]
)
def test_a_failure_names_the_sink_and_closes(writer_ctx, step, method):
    sink = Recording(step)
    with pytest.raises(
        SinkError, match=rf"'out' of job 'likes': Recording.{method} failed.*refused"
    ):
        write(sink, writer_ctx(), ("a", 1))
    assert sink.calls[-1] == "close"


def test_a_close_that_fails_does_not_hide_why(writer_ctx):
    with pytest.raises(SinkError, match="flush refused") as caught:
        write(Recording("flush", "close"), writer_ctx(), ("a", 1))
    assert "close refused" in caught.value.__notes__[0]
    with pytest.raises(SinkError, match="close refused"):
        write(Recording("close"), writer_ctx(), ("a", 1))


def test_writing_again_changes_nothing(latest, writer_ctx):
    for attempt in (3, 3, 4):
        worker = pickle.loads(pickle.dumps(latest))
        write(worker, writer_ctx(attempt=attempt), ("a", 1), ("b", 2), ("a", 3))
    assert latest.latest() == [("a", 3), ("b", 2)]


def test_a_late_task_of_an_older_attempt_does_not_win(latest, writer_ctx):
    late = latest.writer(writer_ctx(epoch=9))
    late.write(posts(("b", 0)))
    write(latest, writer_ctx(attempt=4, epoch=8), ("a", 2), ("b", 2))
    late.write(posts(("a", 1), ("b", 1)))
    late.prepare()
    assert latest.latest() == [("a", 2), ("b", 2)]


def test_a_turned_back_job_overwrites(latest, writer_ctx):
    write(latest, writer_ctx(epoch=100), ("a", 100))
    write(latest, writer_ctx(attempt=4, epoch=51), ("a", 51))
    assert latest.latest() == [("a", 51)]


def test_there_is_nothing_to_commit(latest, committer_ctx):
    committer = latest.committer(committer_ctx())
    committer.recover([])
    committer.commit([])
    committer.abort_orphans([])
    foreign = seal_handle("file", 1, b"")
    committer.abort([foreign])
    with pytest.raises(SinkError, match="another kind of sink"):
        committer.recover([foreign])
