"""Sinks make themselves anew from descriptions, list what they have left, and say who waits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from dead_job import Ledger

from ledger_sink import LedgerSink
from turnback import CollectSink
from turnback.connectors import registry
from turnback.errors import ConfigurationError, SinkError
from turnback.operations.transactions import Action, list_transactions, settle
from turnback.sinks.base import CommitterContext, Sink, TransactionInfo


class Rebuildable(LedgerSink):
    """On the write-ahead template."""

    def describe(self):
        return {"kind": "rebuildable", "database": self.path}

    @classmethod
    def from_description(cls, description):
        return cls(description["database"])


class Broker(Ledger):
    """On the two-phase template, with readers that wait, and a password in the environment."""

    reachable = True

    def describe(self):
        return {"kind": "broker", "root": str(self.root)}

    @classmethod
    def from_description(cls, description):
        return cls(Path(description["root"]))

    def list_orphans(self, ctx):
        if not self.reachable:
            raise SinkError("the broker does not answer")
        for info in super().list_orphans(ctx):
            waiting = "readers of topic likes"
            yield TransactionInfo(what=f"open: {info.what}", id=info.id, waiting=waiting)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    for kind in (Rebuildable, Broker):
        path = f"{kind.__module__}:{kind.__name__}"
        monkeypatch.setitem(registry._SINKS, kind.__name__.lower(), path)


@pytest.fixture
def ledger(place, tmp_path):
    """A write-ahead sink beside the file sink."""
    sink = place.sinks["ledger"] = Rebuildable(str(tmp_path / "likes.db"))
    return sink


def rows_of(place, sink):
    return [row for row in list_transactions(place.job) if row.sink == sink]


def test_staged_output_is_listed_and_settled_without_the_program(place, ledger):
    place.die()
    promised, published, left = rows_of(place, "ledger")
    assert (published.state, published.epoch) == ("orphaned", 1)  # only its files are left
    assert (promised.kind, promised.state, promised.epoch, promised.rows) == (
        "write-ahead", "in doubt", 2, 2,
    )  # fmt: skip
    assert promised.what == "output of task 0, attempt 1"
    assert promised.bytes > 0
    assert promised.problem is None
    assert (left.kind, left.state, left.epoch) == ("rebuildable", "orphaned", 3)
    assert left.path.startswith("sinks/ledger/staged/1/0000000003-00000-7-")
    settle(place.job, Action.COMMIT)
    assert ledger.likes() == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert rows_of(place, "ledger") == []


def test_staged_output_that_is_dropped(place, ledger):
    place.die()
    settle(place.job, Action.ABORT)
    assert ledger.likes() == [("a", 1), ("b", 1)]
    assert rows_of(place, "ledger") == []


def test_staged_output_that_somebody_has_removed(place, ledger):
    place.die()
    promised, *_ = rows_of(place, "ledger")
    place.job.storage.delete(promised.path)
    assert "2 rows of epoch 2 are lost" in rows_of(place, "ledger")[0].problem


def test_staged_output_of_a_sink_that_was_not_recorded(place, ledger):
    place.die()
    place.job.storage.delete("sinks/ledger/sink.json")
    [promised] = rows_of(place, "ledger")
    assert (promised.what, promised.rows) == ("output of task 0, attempt 1", 2)


def test_what_holds_others_up_is_said(place, tmp_path):
    place.sinks["broker"] = Broker(tmp_path / "broker")
    place.die()
    promised, left = rows_of(place, "broker")
    assert (promised.what, promised.state, promised.waiting) == ("'1-2'", "in doubt", None)
    assert (left.what, left.state) == ("open: '1-3'", "orphaned")
    assert left.waiting == "readers of topic likes"
    settle(place.job, Action.COMMIT)
    assert place.sinks["broker"].names() == ["1-1.committed", "1-2.committed"]


def test_a_target_that_does_not_answer_hides_nothing_of_others(place, tmp_path, monkeypatch):
    place.sinks["broker"] = Broker(tmp_path / "broker")
    place.die()
    monkeypatch.setattr(Broker, "reachable", False)
    assert len(rows_of(place, "out")) == 2
    _, silent = rows_of(place, "broker")
    assert (silent.what, silent.problem) == ("cannot be listed", "the broker does not answer")


def test_a_sink_that_cannot_be_made_hides_nothing_of_others(place, tmp_path, monkeypatch):
    place.sinks["broker"] = Broker(tmp_path / "broker")
    place.die()

    def refuse(cls, description):
        raise ConfigurationError("BROKER_PASSWORD is not set")

    monkeypatch.setattr(Broker, "from_description", classmethod(refuse))
    promised, left = rows_of(place, "broker")
    assert promised.what == "transaction of a broker sink"
    assert left.problem == "BROKER_PASSWORD is not set"
    with pytest.raises(ConfigurationError, match="BROKER_PASSWORD"):
        settle(place.job, Action.COMMIT)
    assert place.visible() == [1]


def test_a_sink_that_cannot_be_opened_holds_up_no_other(place, ledger, monkeypatch):
    place.die()
    opened = LedgerSink.open

    def closed(self, ctx):
        raise ConnectionError("no route")

    monkeypatch.setattr(LedgerSink, "open", closed)
    with pytest.raises(
        SinkError, match=r"Rebuildable.open failed.*no route.*run the command again"
    ):
        settle(place.job, Action.COMMIT)
    assert place.visible() == [1, 2]
    monkeypatch.setattr(LedgerSink, "open", opened)
    settle(place.job, Action.COMMIT)
    assert len(ledger.likes()) == 4


def test_all_kinds_can_be_loaded_and_make_themselves_anew():
    for path in registry._SINKS.values():
        module, _, name = path.partition(":")
        __import__(module)
        sink = getattr(sys.modules[module], name)
        assert sink.from_description.__func__ is not Sink.from_description.__func__


def test_a_sink_describes_a_transaction_in_general_by_default(committer_context):
    class Plain(CollectSink):
        explain = Sink.explain

    info = Plain().explain(b"12345", committer_context)
    assert (info.what, info.bytes) == ("transaction of a collect sink", 5)
    assert list(Plain().list_orphans(committer_context)) == []
    assert Plain().unusable_here() is None


@pytest.fixture
def committer_context():
    return CommitterContext("likes", "id-1", "out", 3)
