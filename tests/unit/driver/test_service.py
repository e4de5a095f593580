"""What users ask of a running job: answered once, rightly, and by the driver that has the job."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from service_fakes import STEPS, FakeAttempt, World, eventually, hurry

from turnback.errors import StorageError
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobState, StatusUpdate
from turnback.snapshot.directory import SavepointDirectory
from turnback.storage.open import MemoryStorage

ENDING = [RequestKind.STOP, RequestKind.CANCEL]
ENDS = {RequestKind.STOP: JobState.FINISHED, RequestKind.CANCEL: JobState.CANCELED}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    hurry(monkeypatch)
    made = World()
    yield made
    made.close()


def running(world: World, epochs: int = 4) -> None:
    eventually(lambda: len(world.committed) >= epochs)


# -- ending the job


@pytest.mark.parametrize("savepoint", [True, False])
@pytest.mark.parametrize("kind", ENDING)
def test_the_answer_comes_after_the_job_has_ended(
    world: World, kind: RequestKind, savepoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[JobState | None] = []
    finish = Requests.finish

    def watched(self: Requests, *args: object, **more: object) -> object:
        seen.append(world.state())
        return finish(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Requests, "finish", watched)
    driver = world.driver()
    running(world)
    id = world.ask(kind, savepoint=savepoint)
    result = world.result(id)
    assert (result.state, result.attempt) == (RequestState.COMPLETED, 1)
    assert seen == [ENDS[kind]]
    if savepoint:
        world.assert_ended_at(id)
    driver.thread.join(30)
    assert driver.error is None


@pytest.mark.parametrize("kind", ENDING)
def test_an_attempt_that_fails_while_the_savepoint_is_written(
    world: World, kind: RequestKind
) -> None:
    """The job restarts by itself; it must not go on after what was decided."""
    driver = world.driver(stop_at="during-export")
    running(world)
    id = world.ask(kind, savepoint=True)
    assert driver.stopped.wait(30)
    driver.attempts[0].fail(StorageError("while the savepoint is written"))
    eventually(lambda: len(driver.attempts) == 2 and driver.attempts[1].is_running)
    assert world.requests.result(id) is None
    driver.go_on.set()
    world.assert_ended_at(id)
    assert world.state() is ENDS[kind]


@pytest.mark.parametrize("kind", ENDING)
def test_an_attempt_that_fails_before_it_is_decided(world: World, kind: RequestKind) -> None:
    """The next attempt serves the request, at an epoch of its own."""
    driver = world.driver()
    running(world)

    def fails_in_between(attempt: FakeAttempt, *rest: object) -> None:
        driver.service._shutdown.decide = decide  # type: ignore[method-assign]
        driver.attempts[0].fail(StorageError("before the decision"))
        eventually(lambda: len(driver.attempts) == 2 and driver.attempts[1].is_running)
        decide(attempt, *rest)  # type: ignore[arg-type]

    decide = driver.service._shutdown.decide
    driver.service._shutdown.decide = fails_in_between  # type: ignore[method-assign, assignment]
    id = world.ask(kind, savepoint=True)
    world.assert_ended_at(id)
    assert world.newest().attempt == 2


def test_a_stop_that_can_end_the_job_only_as_failed_is_done_all_the_same(world: World) -> None:
    """No restart is left: but the savepoint is complete, and the job has ended with it."""
    driver = world.driver(stop_at="during-export", restarts=0)
    running(world)
    id = world.ask(RequestKind.STOP, savepoint=True)
    assert driver.stopped.wait(30)
    driver.attempts[0].fail(StorageError("no way"))
    eventually(lambda: world.state() is JobState.FAILED)
    driver.go_on.set()
    world.assert_ended_at(id)


@pytest.mark.parametrize("kind", ENDING)
def test_a_savepoint_that_cannot_be_written_lets_the_job_go_on(
    world: World, kind: RequestKind
) -> None:
    driver = world.driver()
    driver.export.error = StorageError("no space left")
    running(world)
    id = world.ask(kind, savepoint=True)
    result = world.result(id)
    assert (result.state, result.error) == (RequestState.FAILED, "no space left")
    running(world, len(world.committed) + 5)
    assert world.state() is JobState.RUNNING
    driver.export.error = None
    again = world.ask(RequestKind.STOP, savepoint=True)
    world.assert_ended_at(again)


def test_while_a_failure_cannot_be_answered_the_job_does_not_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would commit more, and a driver after it would still end it where it was decided."""
    driver = world.driver()
    running(world)
    finish, refused = Requests.finish, []

    def refuses(self: Requests, *args: object, **more: object) -> object:
        if len(refused) < 3:
            refused.append(len(world.committed))
            raise StorageError("not now")
        return finish(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Requests, "finish", refuses)
    driver.export.error = StorageError("no space left")
    id = world.ask(RequestKind.STOP, savepoint=True)
    assert world.result(id).error == "no space left"
    assert len(set(refused)) == 1
    running(world, len(world.committed) + 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "step", "savepoint"),
    [
        *((kind, step, True) for kind in ENDING for step in STEPS),
        (RequestKind.STOP, "before-decision", False),
        (RequestKind.STOP, "after-decision", False),
        *((kind, "before-answer", False) for kind in ENDING),
    ],
)
def test_killed_at_every_step(world: World, kind: RequestKind, step: str, savepoint: bool) -> None:
    """The supervisor starts another driver, which ends the job where the first one had decided."""
    driver = world.driver(kill_at=step)
    running(world)
    id = world.ask(kind, savepoint=savepoint)
    assert driver.stopped.wait(30)
    assert world.requests.result(id) is None
    before = len(world.committed)
    if step == "before-answer":
        # The supervisor sees that the job has ended, and answers.
        assert world.state() is ENDS[kind]
        world.requests.answer_ended(SavepointCatalog(world.storage), ENDS[kind])
    else:
        successor = world.driver(resumed=True)
        successor.thread.join(30)
    assert world.result(id).state is RequestState.COMPLETED
    assert world.state() is ENDS[kind]
    if savepoint:
        world.assert_ended_at(id)
    if step != "before-decision":
        assert len(world.committed) == before


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ENDING)
def test_paused_at_every_step_and_replaced(world: World, kind: RequestKind, step: str) -> None:
    """A driver that was taken for dead wakes up after its successor has ended the job."""
    zombie = world.driver(stop_at=step)
    running(world)
    id = world.ask(kind, savepoint=True)
    assert zombie.stopped.wait(30)
    successor = world.driver(resumed=step != "before-answer")
    eventually(lambda: successor.attempts)
    if step == "before-answer":  # the job had ended; whoever starts it again wants it to run
        assert world.result(id).state is RequestState.COMPLETED
        assert (world.result(id).attempt, world.result(id).checkpoint) == (
            2,
            world.savepoint(id).checkpoint,
        )
        running(world, world.savepoint(id).epoch + 5)
    else:
        world.assert_ended_at(id)
        assert world.result(id).attempt == 2
    zombie.go_on.set()
    zombie.thread.join(30)
    assert not zombie.thread.is_alive()
    if step != "before-answer":
        world.assert_ended_at(id)


@pytest.mark.parametrize("step", ["before-decision", "after-decision"])
def test_paused_and_replaced_by_one_that_is_far_ahead(world: World, step: str) -> None:
    """A decision that comes late names a checkpoint that is not the newest any more."""
    zombie = world.driver(stop_at=step)
    running(world)
    id = world.ask(RequestKind.STOP, savepoint=True)
    assert zombie.stopped.wait(30)
    successor = world.driver(resumed=True, stop_at="before-decision")
    if step == "before-decision":
        assert successor.stopped.wait(30)  # it has run on, and is about to decide for itself
        zombie.go_on.set()
        zombie.thread.join(30)
    eventually(lambda: successor.attempts)
    successor.go_on.set()
    zombie.go_on.set()
    world.assert_ended_at(id)
    assert world.result(id).attempt == 2
    assert zombie.export.exported == []


def test_a_user_who_starts_the_job_again_wants_it_to_run(world: World) -> None:
    driver = world.driver(kill_at="after-record")
    running(world)
    id = world.ask(RequestKind.STOP, savepoint=True)
    cancel = world.ask(RequestKind.CANCEL, savepoint=True)
    assert driver.stopped.wait(30)
    world.driver()
    result = world.result(id)
    assert result.state is RequestState.FAILED
    assert "restarted" in result.error
    assert world.savepoint(id).id == id
    assert f"savepoint-job-{id}" in result.error
    assert "savepoint" not in world.result(cancel).error
    running(world, len(world.committed) + 5)


def test_a_damaged_decision_does_not_keep_the_job_from_running(world: World) -> None:
    driver = world.driver(kill_at="after-decision")
    running(world)
    id = world.ask(RequestKind.STOP, savepoint=True)
    assert driver.stopped.wait(30)
    (path,) = [p for p in world.storage.list("ops") if "decision" in p]
    world.storage.put(path, b"damaged")
    world.driver(resumed=True)
    assert "Submit the request again" in world.result(id).error
    running(world, len(world.committed) + 5)


def test_a_cancel_that_deleted_the_checkpoints_before_it_was_killed(world: World) -> None:
    """Nothing is left to start from; the job must not begin once more from nothing."""
    driver = world.driver(kill_at="before-answer")
    running(world)
    plain = world.ask(RequestKind.CANCEL)
    assert driver.stopped.wait(30)
    # As if the driver had died before it could say that the job is CANCELED.
    directory = JobDirectory(world.storage, "job")
    directory.write_status(JobState.RUNNING, directory.open().job_id, StatusUpdate(attempt=1))
    for path in world.storage.list("checkpoints"):
        world.storage.delete(path)
    before = list(world.committed)
    world.driver(resumed=True).thread.join(30)
    assert world.result(plain).state is RequestState.COMPLETED
    assert world.state() is JobState.CANCELED
    assert world.committed == before


# -- who answers


def test_a_driver_that_was_replaced_answers_nothing(world: World) -> None:
    """Not even on its way out, when it closes."""
    zombie = world.driver(stop_at="before-answer")
    running(world)
    zombie.attempts[0].finish()
    assert zombie.stopped.wait(30)
    successor = world.driver(stop_at="during-export")
    eventually(lambda: successor.attempts and successor.attempts[0].is_running)
    id = world.ask(RequestKind.STOP, savepoint=True)
    assert successor.stopped.wait(30)
    zombie.go_on.set()
    zombie.thread.join(30)
    assert world.requests.result(id) is None
    successor.go_on.set()
    world.assert_ended_at(id)


def test_a_driver_that_was_replaced_cancels_nothing(world: World) -> None:
    zombie = world.driver()
    running(world)
    with zombie.service._lock:  # it looks at its requests later than its successor
        successor = world.driver()
        eventually(lambda: successor.attempts and successor.attempts[0].is_running)
        id = world.ask(RequestKind.CANCEL)
        assert world.result(id).attempt == 2
        Requests(world.storage).prune(0)
        world.ask(RequestKind.CANCEL)
    eventually(lambda: not zombie.service._thread.is_alive())
    assert not zombie.cancelled.is_set()


def test_a_driver_without_an_attempt_answers_nothing(world: World) -> None:
    driver = world.driver()
    running(world)
    id = world.ask(RequestKind.SAVEPOINT)
    world.result(id)
    late = type(driver)(world)
    late.service.start(0)
    left = world.ask(RequestKind.STOP, savepoint=True)
    late.service.close(give_up=False)
    world.assert_ended_at(left)


# -- other requests


def test_a_savepoint_is_taken_beside_the_stream(world: World) -> None:
    world.driver()
    running(world)
    id = world.ask(RequestKind.SAVEPOINT)
    result = world.result(id)
    assert (result.state, result.attempt) == (RequestState.COMPLETED, 1)
    running(world, world.savepoint(id).epoch + 5)
    assert world.state() is JobState.RUNNING


def test_requests_that_ended_long_ago_are_forgotten_while_the_job_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnback.driver.service._KEPT_REQUESTS", 5)
    monkeypatch.setattr("turnback.driver.service._PRUNE_AFTER", 3)
    driver = world.driver()
    running(world)
    for _ in range(20):
        last = world.ask(RequestKind.SAVEPOINT)
        world.result(last)
    driver.service._wake.set()
    eventually(lambda: len(world.requests.ids()) <= 5 + 3)
    assert last in world.requests.ids()
    assert world.state() is JobState.RUNNING


# -- before an upgrade


def test_one_savepoint_is_enough_before_an_upgrade_however_often_it_is_tried(world: World) -> None:
    world.driver()
    running(world)
    world.result(world.ask(RequestKind.STOP))
    manifest = world.newest()
    for _ in range(3):
        driver = type(world.drivers[0])(world)
        driver.service.save_before_upgrade(manifest)
    (entry,) = SavepointCatalog(world.storage).list()
    assert (entry.label, entry.checkpoint) == ("before-upgrade", manifest.number)
    assert SavepointDirectory.locate(entry.path).load().epoch == manifest.epoch
    assert len(MemoryStorage(world.saved[9:]).folders()) == 1
    assert [id for id in world.requests.ids() if "upgrade" in id] == []


def test_one_that_a_crash_left_is_never_written_from_another_state(world: World) -> None:
    world.driver(kill_at="during-export")
    running(world)
    manifest = world.newest()
    killed = type(world.drivers[0])(world)
    killed.export.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        killed.service.save_before_upgrade(manifest)
    assert world.requests.open() == []
    running(world, len(world.committed) + 5)
    later = type(world.drivers[0])(world)
    later.service.save_before_upgrade(world.newest())
    (entry,) = SavepointCatalog(world.storage).list()
    assert entry.checkpoint > manifest.number
    assert SavepointDirectory.locate(entry.path).load().checkpoint == entry.checkpoint
