"""What may not be settled, and sinks that cannot be asked."""

from __future__ import annotations

import msgspec
import pytest
from dead_job import STATE, Ledger

from fake_job import FakeJob
from turnback.driver.sinks import recorded_sinks
from turnback.errors import (
    ConfigurationError,
    CorruptFileError,
    FencedError,
    JobInUseError,
    JobNotFoundError,
    SinkError,
)
from turnback.job.run import ProcessId
from turnback.job.status import JobState, StatusUpdate
from turnback.operations import transactions
from turnback.operations.transactions import Action, list_transactions, settle
from turnback.sinks.memory import CollectSink, DiscardSink, PrintSink


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
    with pytest.raises(
        JobInUseError, match="on far, and it is unknown from here whether that is still running"
    ):
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
    running = StatusUpdate(attempt=1, supervisor=ProcessId.current())
    place.directory.write_status(JobState.RUNNING, place.job.info.job_id, running)
    say(place, JobState.RUNNING, started="long ago")
    with pytest.raises(JobInUseError, match="its supervisor is about to restart it"):
        settle(place.job, Action.COMMIT)
    settle(place.job, Action.COMMIT, force=True)


def test_a_job_that_was_never_started(tmp_path):
    job = FakeJob(str(tmp_path))
    job.storage.delete("job.json")
    for call in (list_transactions, lambda job: settle(job, Action.COMMIT)):
        with pytest.raises(JobNotFoundError, match="job 'likes' was never started"):
            call(job)


# -- sinks of all kinds


@pytest.mark.parametrize("action", list(Action))
def test_a_sink_that_only_the_program_can_make(place, tmp_path, action):
    ledger = place.sinks["ledger"] = Ledger(tmp_path / "ledger")
    place.die()
    rows = {row.sink: row for row in list_transactions(place.job) if row.state == "in doubt"}
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
    with pytest.raises(
        SinkError, match=r"sink 'a ledger'.*the ledger is closed.*run the command again"
    ):
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
    with pytest.raises(SinkError, match=r"the ledger is closed.*permanently dropped"):
        settle(place.job, Action.ABORT, {"ledger": ledger})
    ledger.broken = False
    place.start_again()
    assert (place.visible(), ledger.names()) == ([1], ["1-1.committed"])


def test_sinks_that_end_in_the_driver(place, capsys):
    place.sinks |= {"print": PrintSink("p"), "collect": CollectSink(), "none": DiscardSink()}
    place.die()
    rows = {row.sink: row for row in list_transactions(place.job) if row.state == "in doubt"}
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
    assert row.problem == "its staging location is not recorded"
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
    assert "cannot read" in row.problem
    (place.out).mkdir()
    with pytest.raises(SinkError, match="cannot read"):
        settle(place.job, Action.COMMIT)


def test_a_directory_that_is_not_on_this_machine(place, tmp_path):
    place.die()
    place.out.rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="out, which does not exist on this machine"):
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


def test_a_job_that_is_started_afresh_meanwhile(place, monkeypatch):
    place.die()
    usable = transactions._usable_sinks

    def renewed(*args):
        place.directory.renew()
        return usable(*args)

    monkeypatch.setattr(transactions, "_usable_sinks", renewed)
    with pytest.raises(ConfigurationError, match="has just been started fresh"):
        settle(place.job, Action.COMMIT)
    assert len(place.staged()) == 2
