"""A sink may let the output of several checkpoints wait; none of it is ever forgotten."""

from collections.abc import Sequence

import pytest

from coordinator_fakes import Job, RecordingCommitter, memory, settings
from turnback.checkpoint.log import CheckpointLog
from turnback.errors import ConfigurationError, SinkError


class PatientCommitter(RecordingCommitter):
    """Commits when it was asked so often."""

    def __init__(self, every: int = 3) -> None:
        super().__init__()
        self.every, self.asked = every, 0

    def is_due(self, transactions: Sequence[bytes]) -> bool:
        self.asked += 1
        return self.asked >= self.every

    def commit(self, transactions: Sequence[bytes]) -> None:
        super().commit(transactions)
        self.asked = 0

    def target_version(self) -> str:
        return f"v{len(self.calls)}"


def patient(every: int = 3, **options: object) -> Job:
    sinks = {"patient": PatientCommitter(every), "prompt": RecordingCommitter()}
    return Job(committers=sinks, settings=settings(**options))


def run(job: Job, *epochs: int) -> None:
    for epoch in epochs:
        job.epoch(epoch, transactions=dict.fromkeys(("patient", "prompt"), (b"%d" % epoch,)))
        job.checkpoint()


def test_output_of_several_checkpoints_is_committed_at_once() -> None:
    job = patient()
    run(job, 1, 2, 3, 4)
    assert job.sinks["patient"].calls == [(b"1", b"2", b"3")]
    assert job.sinks["prompt"].calls == [(b"1",), (b"2",), (b"3",), (b"4",)]


def test_every_checkpoint_promises_what_waits() -> None:
    job = patient()
    run(job, 1, 2)
    latest = job.log.latest()
    assert latest.transactions == {"patient": (b"1", b"2"), "prompt": (b"2",)}
    assert CheckpointLog(job.storage).uncommitted(latest) == {"patient": (b"1", b"2")}
    run(job, 3)
    assert CheckpointLog(job.storage).uncommitted(job.log.latest()) == {}


def test_only_checkpoints_that_were_written_have_a_version() -> None:
    job = patient()
    numbers = []
    for epoch in (1, 2, 3):
        run(job, epoch)
        numbers.append(job.log.latest().number)
    assert [job.log.targets(number) for number in numbers] == [{}, {}, {"patient": "v1"}]


@pytest.mark.parametrize("kind", ["savepoint", "final", "manual"])
def test_who_asks_for_a_checkpoint_gets_the_output_as_well(kind: str) -> None:
    job = patient()
    run(job, 1)
    job.epoch(2, transactions={"patient": (b"2",)})
    done = job.coordinator.trigger(kind)
    job.coordinator.tick()
    assert job.sinks["patient"].visible == [b"1", b"2"]
    assert job.log.targets(done.result(0).number) == {"patient": "v1"}


def test_also_if_there_is_nothing_new_since_the_last_checkpoint() -> None:
    job = patient()
    run(job, 1)
    done = job.coordinator.trigger("savepoint")
    job.coordinator.tick()
    assert job.sinks["patient"].visible == [b"1"]
    manifest = done.result(0)
    assert manifest.epoch == 1
    assert job.log.targets(manifest.number) == {"patient": "v1"}
    again = job.coordinator.trigger("savepoint")
    job.coordinator.tick()
    assert again.result(0).number == manifest.number


def test_the_end_of_the_input_writes_what_waits() -> None:
    job = patient()
    run(job, 1)
    job.coordinator.final()
    assert job.sinks["patient"].visible == [b"1"]


def test_closing_writes_what_waits() -> None:
    job = patient()
    run(job, 1, 2)
    job.coordinator.close(cancelled=True)
    assert job.sinks["patient"].calls == [(b"1", b"2")]
    assert job.sinks["patient"].aborted == []


def test_without_input_sinks_are_asked_as_often() -> None:
    job = patient()
    run(job, 1)
    before = job.checkpoints()
    job.checkpoint()
    assert job.sinks["patient"].visible == []
    job.coordinator.tick()  # the interval is not over
    assert job.sinks["patient"].asked == 2
    job.checkpoint()
    assert job.sinks["patient"].visible == [b"1"]
    assert job.checkpoints() == before
    assert CheckpointLog(job.storage).uncommitted(job.log.latest()) == {}
    job.checkpoint()
    assert job.sinks["patient"].asked == 0


def test_a_commit_that_failed_is_tried_again() -> None:
    job = patient(tolerable_failures=3)
    job.sinks["patient"].broken = SinkError("locked")
    run(job, 1, 2, 3)
    assert job.sinks["patient"].visible == []
    job.sinks["patient"].broken = None
    run(job, 4)
    assert job.sinks["patient"].visible == [b"1", b"2", b"3", b"4"]


def test_without_input_a_sink_that_cannot_commit_fails_the_job() -> None:
    job = patient(2)
    run(job, 1)
    job.sinks["patient"].broken = ConfigurationError("the table is another job's")
    job.checkpoint()
    assert [str(error) for error in job.failures] == ["the table is another job's"]


def test_a_new_attempt_finds_what_waited() -> None:
    storage = memory()
    old = Job(storage, committers={"patient": PatientCommitter()})
    old.epoch(1, transactions={"patient": (b"1",)})
    old.checkpoint()
    new = Job(storage, nonce="new")
    assert new.log.uncommitted(new.log.latest()) == {"patient": (b"1",)}
