"""The conformance kit: sinks that are right pass, and every promise that is broken is named."""

import itertools
from functools import partial

import pytest
from journal_sinks import (
    WRONG,
    WRONG_IDEMPOTENT,
    WRONG_WRITE_AHEAD,
    EpochLedger,
    JournalSink,
    LatestFiles,
    OwnedFiles,
    Unowned,
)

from turnback import CollectSink, FileSink
from turnback.errors import ConfigurationError
from turnback.testing import (
    Promise,
    SinkPromiseBroken,
    check_sink,
    conformance,
    scenarios,
)
from turnback.testing import (
    conformance as kit,
)
from turnback.testing.scenarios import ElsewhereError, call_elsewhere
from turnback.values.typeinfo import Types

pytestmark = pytest.mark.slow

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
ELEMENTS = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]


@pytest.fixture
def check(tmp_path):
    """Checks sinks of a class, each on a path of its own."""
    numbers = itertools.count()

    def run(make, read=None, **how):
        return check_sink(
            lambda: make(tmp_path / str(next(numbers))),
            read or (lambda sink: sink.read()),
            **{"type": POSTS, "elements": ELEMENTS, **how},
        )

    return run


@pytest.fixture
def without_processes(monkeypatch):
    """Leaves out what other processes do, which takes a second."""
    quick = {p: s for p, s in scenarios.TRANSACTIONAL.items() if p is not Promise.OTHER_PROCESS}
    monkeypatch.setattr(conformance, "TRANSACTIONAL", quick)


def test_a_right_two_phase_sink(check):
    report = check(JournalSink)
    assert set(report.kept) == {
        *scenarios.FOR_ALL,
        *scenarios.WITH_CLAIM,
        *scenarios.TRANSACTIONAL,
        *scenarios.TRANSACTIONAL_WITH_CLAIM,
        *scenarios.WITH_LIST,
    }
    assert report.skipped == {}


@pytest.mark.usefixtures("without_processes")
def test_a_sink_without_owners_is_not_asked_for_them(check):
    report = check(Unowned)
    assert {Promise.OTHER_JOBS, Promise.COPIED} <= set(report.kept)
    owned = {*scenarios.WITH_CLAIM, *scenarios.TRANSACTIONAL_WITH_CLAIM}
    assert report.skipped == dict.fromkeys(owned, "the sink has no acquire_target()")


def test_a_right_write_ahead_sink(check):
    report = check(EpochLedger)
    assert {Promise.OTHER_PROCESS, *kit.WRITE_AHEAD} <= set(report.kept)
    assert report.skipped.keys() == {Promise.OWNED, Promise.TAKEN_OVER, Promise.PROMISED}
    assert "kept: committed output is visible, completely and once" in str(report)
    assert "not checked: a target belongs to one job (the sink has no acquire_target())" in str(
        report
    )


def test_a_right_idempotent_sink(check):
    report = check(LatestFiles, update=(("a", 1), ("a", 2)))
    assert set(report.kept) == {
        *scenarios.FOR_ALL,
        *kit.IDEMPOTENT,
        *kit.WITH_UPDATE,
    }
    assert Promise.NEWER_STAYS in check(LatestFiles).skipped


def test_a_right_idempotent_sink_with_an_owner(check):
    report = check(OwnedFiles, update=(("a", 1), ("a", 2)))
    assert {*scenarios.WITH_CLAIM, *kit.UPDATE_WITH_CLAIM} <= set(report.kept)
    assert report.skipped == {}
    skipped = check(OwnedFiles).skipped
    assert skipped.keys() == {*kit.WITH_UPDATE, *kit.UPDATE_WITH_CLAIM}


def test_the_file_sink(check):
    import pyarrow.parquet as pq

    def read(sink):
        tables = [pq.read_table(path) for path in sorted(sink.path.glob("*.parquet"))]
        return [tuple(row.values()) for table in tables for row in table.to_pylist()]

    assert Promise.OWNED in check(FileSink, read).kept


def test_the_partitioned_file_sink(check):
    import pyarrow.dataset as ds

    def read(sink):
        if not sink.path.exists():
            return []
        table = ds.dataset(sink.path, partitioning="hive").to_table()
        if table.num_rows == 0:
            return []
        return list(zip(*(table[name].to_pylist() for name in POSTS.names), strict=True))

    def made(path):
        return FileSink(path, partition_by="post")

    assert Promise.OWNED in check(made, read).kept


@pytest.mark.usefixtures("without_processes")
def test_the_collect_sink(check):
    def made(path):
        return CollectSink()

    with pytest.raises(SinkPromiseBroken) as caught:
        check(made, lambda sink: sink.results)
    # It says so: its output is in the memory of the driver, and nothing is remembered elsewhere.
    assert set(caught.value.broken) == {Promise.FENCED}


@pytest.mark.parametrize(("wrong", "promise"), WRONG.items())
def test_every_promise_that_is_broken_is_named(check, wrong, promise, monkeypatch):
    if promise is not Promise.OTHER_PROCESS:
        quick = {p: s for p, s in scenarios.TRANSACTIONAL.items() if p is not Promise.OTHER_PROCESS}
        monkeypatch.setattr(conformance, "TRANSACTIONAL", quick)
    with pytest.raises(SinkPromiseBroken) as caught:
        check(wrong)
    assert promise in caught.value.broken
    assert str(caught.value).startswith(f"{wrong.__name__} broke ")
    assert f"\n- {promise.value}: " in str(caught.value)


@pytest.mark.parametrize(("wrong", "promise"), WRONG_IDEMPOTENT.items())
def test_every_promise_of_idempotent_sinks(check, wrong, promise):
    with pytest.raises(SinkPromiseBroken) as caught:
        check(wrong, update=(("a", 1), ("a", 2)))
    assert promise in caught.value.broken


def test_every_promise_has_a_sink_that_breaks_it():
    wrong = [*WRONG.values(), *WRONG_IDEMPOTENT.values(), *WRONG_WRITE_AHEAD.values()]
    assert set(wrong) == set(Promise)


@pytest.mark.usefixtures("without_processes")
@pytest.mark.parametrize(("wrong", "promise"), WRONG_WRITE_AHEAD.items())
def test_every_promise_of_write_ahead_sinks(check, wrong, promise):
    with pytest.raises(SinkPromiseBroken) as caught:
        check(wrong)
    assert promise in caught.value.broken


@pytest.mark.usefixtures("without_processes")
def test_the_message_tells_what_readers_saw(check):
    wrong = next(sink for sink, promise in WRONG.items() if promise is Promise.COMMITTED_AGAIN)
    with pytest.raises(SinkPromiseBroken) as caught:
        check(wrong)
    assert caught.value.broken[Promise.COMMITTED_AGAIN] == (
        "after the same commit twice, the target shows "
        "[('a', 1), ('b', 2), ('a', 1), ('b', 2)]: [('a', 1), ('b', 2)] too much"
    )


def test_arguments_that_cannot_be_used(check, tmp_path):
    for few in ([], ELEMENTS[:3], [*ELEMENTS, ELEMENTS[0]]):
        with pytest.raises(ConfigurationError, match="at least four elements, all different"):
            check(JournalSink, elements=few)
    with pytest.raises(ConfigurationError, match="must return a sink, got 5"):
        check(lambda path: 5)
    shared = JournalSink(tmp_path / "shared")
    (shared.path / "visible" / "x").write_text('[["a", 1]]')
    with pytest.raises(ConfigurationError, match="its own empty target"):
        check(lambda path: shared)


def test_another_process_shares_nothing_and_is_killed():
    import os

    assert call_elsewhere(os.getpid) != os.getpid()
    assert call_elsewhere(partial(int, base=2), "101") == 5
    with pytest.raises(ElsewhereError, match=r"ValueError: invalid literal"):
        call_elsewhere(int, "x")
    with pytest.raises(ElsewhereError, match="ended by itself"):
        call_elsewhere(os._exit, 3)
