"""Transactions of dead jobs are listed, committed and aborted, and the job goes on as before."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fake_job import FakeJob, schema
from turnback.core.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    JobInUseError,
    JobNotFoundError,
    SinkError,
)
from turnback.inspect.prepared import TransactionState
from turnback.inspect.transactions import Action, list_transactions, settle
from turnback.job.run import ProcessId
from turnback.job.status import JobState, StatusUpdate
from turnback.sinks.base import CommitterContext, WriterContext
from turnback.sinks.files import FileSink
from turnback.sinks.memory import CollectSink, DiscardSink, PrintSink
from turnback.sinks.two_phase import TwoPhaseCommitSink
from turnback.snapshot.find import resume_point
from turnback.spark.sinks import record_sinks, recorded_sinks
from turnback.types.columns import Batch
from turnback.types.factory import Types

POSTS = Types.ROW_NAMED(["post", "n"], [Types.STRING(), Types.LONG()])
STATE = (schema(), {"a": 1})


class Ledger(TwoPhaseCommitSink[str]):
    """Transactions are files in a directory: name.prepared, then name.committed."""

    transaction_type = str

    def __init__(self, root: Path, broken: bool = False) -> None:
        self.root, self.broken = root, broken
        root.mkdir(exist_ok=True)

    def begin(self, ctx):
        return f"{ctx.attempt}-{ctx.epoch}"

    def write(self, txn, element):
        pass

    def pre_commit(self, txn):
        (self.root / f"{txn}.prepared").touch()
        return txn

    def commit(self, txn):
        if self.broken:
            raise OSError("the ledger is closed")
        (self.root / f"{txn}.prepared").rename(self.root / f"{txn}.committed")

    def abort(self, txn):
        if self.broken:
            raise OSError("the ledger is closed")
        (self.root / f"{txn}.prepared").unlink(missing_ok=True)

    def dangling(self, ctx):
        return [path.stem for path in self.root.glob("*.prepared")]

    def names(self):
        return sorted(path.name for path in self.root.iterdir())


class Place:
    """A job with sinks, which dies after its second checkpoint."""

    def __init__(self, tmp_path: Path) -> None:
        self.out = tmp_path / "out"
        self.job = FakeJob(str(tmp_path / "jobs"))
        self.job.attempt()
        self.sinks = {"out": FileSink(self.out, "json")}
        self.log, self.directory = self.job.log, self.job.directory

    def record(self) -> None:
        record_sinks(self.directory, self.job.number, self.sinks)

    def write(self, epoch: int, uid: str = "out", **changes) -> bytes:
        ctx = WriterContext(
            job="likes", job_id=self.job.info.job_id, uid=uid, attempt=self.job.number,
            epoch=epoch, partition=0, task_attempt_id=changes.pop("task", 7), type=POSTS,
        )  # fmt: skip
        writer = self.sinks[uid].writer(ctx)
        writer.write(Batch(POSTS, [("a", epoch), ("b", epoch)]))
        return writer.prepare()

    def die(self) -> None:
        """Epoch 1 is committed, 2 is promised, 3 was never in a checkpoint."""
        self.record()
        ctx = self.context(self.job.number)
        committers = {uid: sink.committer(ctx(uid)) for uid, sink in self.sinks.items()}
        first = {uid: (self.write(1, uid),) for uid in self.sinks}
        self.log.record_commit(self.job.checkpoint(STATE, transactions=first).manifest.number)
        for uid, transactions in first.items():
            committers[uid].commit(transactions)
        promised = {uid: (self.write(2, uid),) for uid in self.sinks}
        self.promising = self.job.checkpoint(STATE, transactions=promised).manifest
        for uid in self.sinks:
            self.write(3, uid)

    def context(self, attempt):
        return lambda uid: CommitterContext("likes", self.job.info.job_id, uid, attempt)

    def visible(self) -> list[int]:
        """The epochs that readers see."""
        lines = [json.loads(line) for f in self.out.glob("*.json") for line in f.open()]
        return sorted({line["n"] for line in lines})

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.out.rglob("*.inprogress"))

    def start_again(self) -> None:
        """What the next attempt does first."""
        point = resume_point(self.log, self.directory)
        manifest = point.manifest
        pending = manifest.transactions if manifest.number > self.log.committed() else {}
        attempt = self.job.attempt(checkpoint=manifest.number)
        for uid, sink in self.sinks.items():
            sink.committer(self.context(attempt)(uid)).recover(pending.get(uid, ()))


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def test_promised_files_and_those_left_behind(place):
    place.die()
    promised, left = list_transactions(place.job)
    assert (promised.sink, promised.kind, promised.state) == ("out", "file", "promised")
    assert (promised.epoch, promised.rows, promised.problem) == (2, 2, None)
    assert promised.what.startswith("part-0000000002-00000-7-")
    assert promised.bytes == Path(promised.path).stat().st_size > 0
    assert (left.state, left.epoch) == (TransactionState.LEFT_BEHIND, 3)
    assert left.what.endswith(".json.inprogress of attempt 1")


def test_commit(place):
    place.die()
    before = resume_point(place.log, place.directory)
    done = settle(place.job, Action.COMMIT)
    assert (done.checkpoint, done.transactions) == (place.promising.number, {"out": 1})
    assert place.visible() == [1, 2]
    assert place.staged() == []
    assert list_transactions(place.job) == []
    assert resume_point(place.log, place.directory) == before
    assert place.log.committed() == place.promising.number
    place.start_again()
    assert place.visible() == [1, 2]


def test_abort(place):
    place.die()
    before = resume_point(place.log, place.directory)
    settle(place.job, Action.ABORT)
    assert place.visible() == [1]
    assert place.staged() == []
    assert list_transactions(place.job) == []
    assert resume_point(place.log, place.directory) == before
    place.start_again()  # does not look for what is gone
    assert place.visible() == [1]


@pytest.mark.parametrize("action", list(Action))
def test_a_paused_driver_is_fenced_out(place, action):
    place.die()
    settle(place.job, action)
    with pytest.raises(FencedError, match="may commit nothing any more"):
        place.job.checkpoint(STATE)
    with pytest.raises(FencedError):
        place.log.check_fence()


@pytest.mark.parametrize("started", [{"snapshot": "file:///sp"}, {}])
def test_a_job_that_would_go_on_from_something_else_still_does(place, started):
    place.die()
    place.job.attempt(**started)  # and dies before its first checkpoint
    before = resume_point(place.log, place.directory)
    assert before is None or before.snapshot == "file:///sp"
    assert {row.state for row in list_transactions(place.job)} == {"left behind"}
    done = settle(place.job, Action.COMMIT)
    assert (done.checkpoint, done.transactions) == (None, {})
    assert place.visible() == [1]
    assert resume_point(place.log, place.directory) == before


def test_nothing_to_settle(place):
    place.record()
    place.job.checkpoint(STATE)
    assert list_transactions(place.job) == []
    assert settle(place.job, Action.COMMIT).transactions == {}


def test_settling_twice(place):
    place.die()
    settle(place.job, Action.COMMIT)
    assert settle(place.job, Action.ABORT).checkpoint is None
    assert place.visible() == [1, 2]


def test_a_record_of_the_commit_that_was_lost(place):
    place.die()
    committer = place.sinks["out"].committer(place.context(1)("out"))
    committer.commit(place.promising.transactions["out"])
    (row, _) = list_transactions(place.job)
    assert row.problem == "published already, only the record of it is missing"
    settle(place.job, Action.COMMIT)
    assert place.visible() == [1, 2]


def test_a_file_that_its_reader_has_taken(place):
    place.die()
    committer = place.sinks["out"].committer(place.context(1)("out"))
    committer.commit(place.promising.transactions["out"])
    next(place.out.glob("*-0000000002-*.json")).unlink()
    (row, _) = list_transactions(place.job)
    assert row.problem.startswith("published already and taken away by its reader")
    settle(place.job, Action.COMMIT)
    assert list_transactions(place.job) == []
    place.start_again()
    assert place.visible() == [1]


def test_a_sink_that_has_committed_is_not_asked_again(place, tmp_path):
    place.sinks["ledger"] = Ledger(tmp_path / "ledger")
    place.die()
    broken = {"ledger": Ledger(tmp_path / "ledger", broken=True)}
    with pytest.raises(SinkError, match="the ledger is closed"):
        settle(place.job, Action.COMMIT, broken)
    assert place.visible() == [1, 2]
    assert {row.sink for row in list_transactions(place.job)} == {"ledger"}
    done = settle(place.job, Action.COMMIT, {"ledger": Ledger(tmp_path / "ledger")})
    assert done.transactions == {"ledger": 1}
    assert list_transactions(place.job) == []


def test_output_that_was_handed_over_can_only_be_rolled_back(place):
    place.die()
    taker = CommitterContext(
        "other", "id", "out", 1, job_directory="file:///jobs/other", take_over=True
    )
    owned = CommitterContext(
        "likes", place.job.info.job_id, "out", 1, job_directory=place.directory.storage.uri
    )
    place.sinks["out"].claim(owned)
    with pytest.raises(ConfigurationError, match="turnback transactions commit likes"):
        place.sinks["out"].claim(taker)
    hidden = place.out / ".turnback" / "likes"
    hidden.rename(place.out / "aside")  # as if the job had still been running
    place.sinks["out"].claim(taker)
    (place.out / "aside").rename(hidden)
    with pytest.raises(SinkError, match="belongs to job 'other'"):
        settle(place.job, Action.COMMIT)
    settle(place.job, Action.ABORT)
    assert place.visible() == [1]
    assert place.staged() == []


def test_a_file_that_somebody_has_removed(place):
    place.die()
    (row, _) = list_transactions(place.job)
    Path(row.path).unlink()
    (row, _) = list_transactions(place.job)
    assert "neither" in row.problem
    with pytest.raises(SinkError, match=r"rows of epoch 2 are lost.*do it again, or start the job"):
        settle(place.job, Action.COMMIT)
    assert place.log.committed() < place.promising.number
    settle(place.job, Action.ABORT)
    place.start_again()


# -- who may settle


def say(place, state, **process):
    status = place.directory.write_status(state, place.job.info.job_id, StatusUpdate(attempt=1))
    changed = msgspec.structs.replace(
        status, process=msgspec.structs.replace(status.process, **process)
    )
    place.job.storage.put("status.json", msgspec.json.encode(changed))


@pytest.mark.parametrize("force", [False, True])
def test_a_live_driver_settles_its_transactions_itself(place, force):
    place.die()
    say(place, JobState.RUNNING)
    numbers = place.log.numbers()
    with pytest.raises(JobInUseError, match=r"job 'likes' is RUNNING as pid .* Stop it first"):
        settle(place.job, Action.COMMIT, force=force)
    assert (place.visible(), place.log.numbers()) == ([1], numbers)


def test_a_driver_elsewhere_may_be_alive(place):
    place.die()
    say(place, JobState.RUNNING, machine="another", host="far")
    with pytest.raises(JobInUseError, match="on far, and whether that still runs"):
        settle(place.job, Action.COMMIT)
    assert place.visible() == [1]
    settle(place.job, Action.COMMIT, force=True)
    assert place.visible() == [1, 2]


def test_a_driver_that_died_and_one_that_ended(place):
    place.die()
    say(place, JobState.RUNNING, started="long ago")
    settle(place.job, Action.COMMIT)
    say(place, JobState.CANCELED)
    settle(place.job, Action.COMMIT)


def test_a_supervisor_may_start_it_again(place):
    place.die()
    place.directory.write_status(
        JobState.RUNNING,
        place.job.info.job_id,
        StatusUpdate(attempt=1, supervisor=ProcessId.current()),
    )
    say(place, JobState.RUNNING, started="long ago")
    with pytest.raises(JobInUseError, match="its supervisor is about to start it again"):
        settle(place.job, Action.COMMIT)
    settle(place.job, Action.COMMIT, force=True)


def test_a_job_that_was_never_started(tmp_path):
    job = FakeJob(str(tmp_path))
    job.storage.delete("job.json")
    for call in (list_transactions, lambda job: settle(job, Action.COMMIT)):
        with pytest.raises(JobNotFoundError, match="job 'likes' was never started"):
            call(job)


@pytest.mark.parametrize("action", ["drop", None, 1])
def test_an_unknown_action(place, action):
    with pytest.raises(ConfigurationError, match="is none of commit, abort"):
        settle(place.job, action)


# -- sinks of all kinds


@pytest.mark.parametrize("action", list(Action))
def test_a_sink_that_only_the_program_can_make(place, tmp_path, action):
    ledger = place.sinks["ledger"] = Ledger(tmp_path / "ledger")
    place.die()
    rows = {row.sink: row for row in list_transactions(place.job) if row.state == "promised"}
    assert (rows["ledger"].kind, rows["ledger"].what) == (
        "two-phase", "transaction of a Ledger sink",
    )  # fmt: skip
    numbers = place.log.numbers()
    with pytest.raises(ConfigurationError, match="sinks 'ledger', which only its program"):
        settle(place.job, action)
    assert (place.visible(), place.log.numbers()) == ([1], numbers)
    settle(place.job, action, {"ledger": ledger})
    committed = action is Action.COMMIT
    assert place.visible() == ([1, 2] if committed else [1])
    assert ledger.names() == (["1-1.committed"] + ["1-2.committed"] * committed)


def test_one_sink_that_fails_holds_up_no_other_and_can_be_told_again(place, tmp_path):
    ledger = place.sinks["a ledger"] = Ledger(tmp_path / "ledger")
    place.sinks = dict(sorted(place.sinks.items()))
    place.die()
    ledger.broken = True
    with pytest.raises(SinkError, match=r"sink 'a ledger'.*the ledger is closed.*do it again"):
        settle(place.job, Action.COMMIT, {"a ledger": ledger})
    assert place.visible() == [1, 2]
    assert place.log.committed() < place.promising.number
    ledger.broken = False
    settle(place.job, Action.COMMIT, {"a ledger": ledger})
    assert ledger.names() == ["1-1.committed", "1-2.committed"]
    assert place.log.committed() == place.promising.number


def test_what_is_aborted_is_never_committed_even_if_that_fails(place, tmp_path):
    ledger = place.sinks["ledger"] = Ledger(tmp_path / "ledger")
    place.die()
    ledger.broken = True
    with pytest.raises(SinkError, match=r"the ledger is closed.*dropped for good"):
        settle(place.job, Action.ABORT, {"ledger": ledger})
    ledger.broken = False
    place.start_again()
    assert (place.visible(), ledger.names()) == ([1], ["1-1.committed"])


def test_sinks_that_end_in_the_driver(place, capsys):
    place.sinks |= {"print": PrintSink("p"), "collect": CollectSink(), "none": DiscardSink()}
    place.die()
    rows = {row.sink: row for row in list_transactions(place.job) if row.state == "promised"}
    assert {row.kind for row in rows.values()} == {"file", "print", "collect", "discard"}
    assert rows["print"].epoch == 2
    capsys.readouterr()
    settle(place.job, Action.COMMIT)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("p> ") == 2
    assert place.visible() == [1, 2]


# -- damage


def test_a_sink_that_was_not_recorded(place):
    place.die()
    place.job.storage.delete("sinks/out/sink.json")
    (row,) = list_transactions(place.job)
    assert row.problem == "where it is staged is not recorded"
    with pytest.raises(ConfigurationError, match="sinks 'out', which only its program"):
        settle(place.job, Action.COMMIT)
    settle(place.job, Action.COMMIT, place.sinks)
    assert place.visible() == [1, 2]


def test_a_damaged_record(place):
    place.die()
    place.job.storage.put("sinks/out/sink.json", b"{}")
    with pytest.raises(CorruptFileError, match=r"sinks/out/sink\.json"):
        list_transactions(place.job)
    with pytest.raises(CorruptFileError):
        settle(place.job, Action.COMMIT)


def test_a_record_that_was_copied(place):
    place.record()
    data = place.job.storage.get("sinks/out/sink.json")
    place.job.storage.put("sinks/other/sink.json", data)
    with pytest.raises(CorruptFileError, match="it was copied or renamed"):
        recorded_sinks(place.directory)


def test_a_transaction_that_cannot_be_read(place):
    place.record()
    place.job.checkpoint(STATE, transactions={"out": (b"rubbish",)})
    (row,) = list_transactions(place.job)
    assert (row.kind, row.bytes) == ("unknown", 7)
    assert "cannot be read" in row.problem
    (place.out).mkdir()
    with pytest.raises(SinkError, match="cannot be read"):
        settle(place.job, Action.COMMIT)


def test_a_directory_that_is_not_on_this_machine(place, tmp_path):
    place.die()
    place.out.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="out, which is not on this machine"):
        settle(place.job, Action.COMMIT)
    assert not place.out.exists()


def test_links_are_not_followed(place, tmp_path):
    place.die()
    secret = tmp_path / "secret"
    secret.mkdir()
    name = "part-0000000009-00000-7-0123456789abcdef.json.inprogress"
    (secret / name).write_text("secret")
    home = next(place.out.rglob("*.inprogress")).parent
    (home.parent / "77").symlink_to(secret)
    (home / name).symlink_to(secret / name)
    assert [row.epoch for row in list_transactions(place.job)] == [2, 3]
    settle(place.job, Action.ABORT)
    assert (secret / name).read_text() == "secret"


def test_a_directory_of_files_that_is_a_link_out_of_its_place(place, tmp_path):
    place.die()
    (place.out / ".turnback").rename(tmp_path / "secret")
    (place.out / ".turnback").symlink_to(tmp_path / "secret")
    place.log.record_commit(place.promising.number)
    assert list_transactions(place.job) == []


def test_a_driver_that_starts_at_the_same_moment_wins_or_loses_as_a_whole(place, monkeypatch):
    place.die()
    taken = type(place.log).check_fence

    def start_first(log):
        place.start_again()
        taken(log)

    monkeypatch.setattr(type(place.log), "check_fence", start_first)
    with pytest.raises(FencedError):
        settle(place.job, Action.ABORT)
    assert place.visible() == [1, 2]
