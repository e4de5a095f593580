"""Kill -9 of the driver at every step of a stop, or a cancel, with savepoint."""

import signal

import pytest

from crash.conftest import MakePlace
from crash.place import Place
from tiers import with_examples
from turnback.job.request import Request, RequestKind, RequestSpec, RequestState
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavepointMetadata
from verification import verify_savepoint

pytestmark = pytest.mark.timeout(900)

KILLED = -signal.SIGKILL
EPOCHS = 30
ENDS = {RequestKind.STOP: "FINISHED", RequestKind.CANCEL: "CANCELED"}
STEPS = ("before-decision", "after-decision", "during-savepoint", "after-savepoint")


def ask(job: Place, kind: RequestKind) -> tuple[Requests, Request]:
    """Let there be some state, and ask while there is no driver."""
    driver = job.start("--kill-driver", TURNBACK_KILL_AT="before-manifest:4")
    assert driver.wait() == KILLED, driver.errors
    requests = Requests(job.storage)
    return requests, requests.submit(RequestSpec(kind, savepoint=True, target=str(job.base / "sp")))


def assert_ended(job: Place, requests: Requests, request: Request) -> SavepointMetadata:
    """The job has ended with the epoch of its savepoint, and says so."""
    result = requests.result(request.id)
    assert result is not None
    path = job.base / "sp"
    assert (result.state, result.path) == (RequestState.COMPLETED, path.as_uri()), result
    metadata = SavepointDirectory.locate(path).load()
    there = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert there == {"_metadata.json", *metadata.files()}
    assert verify_savepoint(path) == []
    assert metadata.epoch < EPOCHS, "it was asked too late to tell anything"
    assert {job.newest(sink) for sink in ("sequence", "tally")} == {metadata.epoch}
    assert job.latest().epoch == metadata.epoch
    assert job.status["state"] == ENDS[request.kind]
    job.assert_consistent()
    return metadata


@pytest.mark.parametrize("step", with_examples(STEPS, ("after-decision",)))
@pytest.mark.parametrize("kind", list(ENDS))
def test_killed_while_it_ends_the_job(place: MakePlace, kind: RequestKind, step: str) -> None:
    """The next driver ends the job where the first had decided; a start from there goes on."""
    job = place(EPOCHS)
    # Not because it looks at its requests early is there no epoch after what was decided.
    successor = job.start("--resumed", "--poll", "8", ahead=True)
    last = job.start("--start-from", str(job.base / "sp"), ahead=True)
    requests, request = ask(job, kind)
    driver = job.start("--kill-driver", "--resumed", TURNBACK_KILL_AT=step)
    assert driver.wait() == KILLED, driver.errors
    assert requests.result(request.id) is None
    decided = step != "before-decision"
    before = {sink: job.newest(sink) for sink in ("sequence", "tally")}
    successor.go()
    assert successor.wait() == 0, successor.errors
    metadata = assert_ended(job, requests, request)
    if decided:
        assert set(before.values()) == {metadata.epoch}
        assert successor.report["epochs"] == []
    last.go()
    assert last.wait() == 0, last.errors
    assert last.report["restored_from"] == (job.base / "sp").as_uri()
    job.assert_settled(last.report)


@pytest.mark.parametrize("kind", list(ENDS))
def test_killed_between_the_end_and_the_answer(place: MakePlace, kind: RequestKind) -> None:
    """Whoever starts the job again finds out that it had ended, and goes on from the savepoint."""
    job = place(EPOCHS)
    last = job.start("--start-from", str(job.base / "sp"), ahead=True)
    requests, request = ask(job, kind)
    driver = job.start("--kill-driver", "--resumed", TURNBACK_KILL_AT="before-answer")
    assert driver.wait() == KILLED, driver.errors
    assert requests.result(request.id) is None
    assert job.status["state"] == ENDS[kind]
    newest = job.newest("sequence")
    last.go()
    assert last.wait() == 0, last.errors
    result = requests.result(request.id)
    assert result is not None
    assert (result.state, result.attempt) == (RequestState.COMPLETED, 3)
    assert SavepointDirectory.locate(job.base / "sp").load().epoch == newest
    job.assert_settled(last.report)
