"""Where requests end their job, and what becomes of those that nobody has answered."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from turnback.errors import CorruptFileError, FencedError
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.request import RequestKind, RequestOutcome, RequestSpec, RequestState, StopPoint
from turnback.job.requests import Requests
from turnback.job.status import JobState
from turnback.storage.open import MemoryStorage

_NAMES = itertools.count()
DONE, FAILED = RequestState.COMPLETED, RequestState.FAILED
NEWEST = (7, 5)
"""Number and epoch of the newest checkpoint."""


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(f"request-ends-{next(_NAMES)}")


@pytest.fixture
def requests(storage: MemoryStorage) -> Requests:
    return Requests(storage)


def decide(storage: MemoryStorage, id: str, checkpoint: int, epoch: int = 5) -> None:
    point = StopPoint(id=id, checkpoint=checkpoint, epoch=epoch, attempt=1)
    Requests(storage).record_stop_point(point)


# -- decisions


def test_a_decision_holds_as_long_as_its_checkpoint_is_the_newest(storage, requests) -> None:
    id = requests.submit(RequestSpec(RequestKind.STOP)).id
    assert requests.stop_point(id, *NEWEST) is None
    decide(storage, id, 7)
    found = requests.stop_point(id, *NEWEST)
    assert found is not None
    assert (found.checkpoint, found.epoch) == (7, 5)
    assert requests.stop_point(id, 8, 6) is None
    assert requests.stop_point(id, 7, 6) is None
    assert requests.stop_point("another", *NEWEST) is None


def test_a_decision_that_comes_late_replaces_none(storage, requests) -> None:
    id = requests.submit(RequestSpec(RequestKind.STOP)).id
    decide(storage, id, 7)
    decide(storage, id, 3, epoch=2)
    assert requests.stop_point(id, *NEWEST) is not None
    assert [r.id for r in requests.open()] == [id]


def test_a_damaged_decision_is_named(storage, requests) -> None:
    id = requests.submit(RequestSpec(RequestKind.STOP)).id
    decide(storage, id, 7)
    path = f"ops/{id}.decision-7.json"
    storage.put(path, storage.get(path)[:-3])
    with pytest.raises(CorruptFileError, match=r"decision-7\.json is damaged"):
        requests.stop_point(id, *NEWEST)


def test_decisions_go_with_their_requests(storage, requests, caplog) -> None:
    ids = [requests.submit(RequestSpec(RequestKind.STOP)).id for _ in range(3)]
    for id in ids:
        decide(storage, id, 7)
    decide(storage, "nobody-asked", 7)
    for id in ids[:2]:
        requests.finish(id, RequestOutcome(DONE))
    requests.prune(1)
    assert {p.split("/")[1].split(".")[0] for p in storage.list("ops")} == set(ids[1:])
    assert f"ops/{ids[2]}.decision-7.json" in storage.list("ops")
    assert "is not a request" not in caplog.text


# -- who answers


def test_a_driver_that_was_replaced_writes_no_result(storage) -> None:
    fenced = False

    def own_attempt() -> int:
        if fenced:
            raise FencedError("attempt 4 has taken over")
        return 3

    driver = Requests(storage, own_attempt=own_attempt)
    first, second = (driver.submit(RequestSpec(RequestKind.SAVEPOINT)).id for _ in range(2))
    assert driver.finish(first, RequestOutcome(DONE)).attempt == 3
    fenced = True
    with pytest.raises(FencedError):
        driver.finish(second, RequestOutcome(DONE))
    storage.put(f"ops/{second}.json", b"damaged")
    with pytest.raises(FencedError):
        driver.open()
    assert driver.result(second) is None


# -- the job has ended


def save(storage: MemoryStorage, id: str) -> str:
    path = f"memory://saved/{id}"
    entry = SavepointEntry(id=id, path=path, created_ms=0, checkpoint=7, epoch=5)
    SavepointCatalog(storage).add(entry)
    return path


@pytest.mark.parametrize("job", [JobState.FINISHED, JobState.CANCELED, JobState.FAILED])
@pytest.mark.parametrize("kind", list(RequestKind))
def test_whose_savepoint_is_complete_is_done(storage, requests, kind, job) -> None:
    """However the job has ended: it did so with the epoch that is in the savepoint."""
    what: dict[str, Any] = {} if kind is RequestKind.SAVEPOINT else {"savepoint": True}
    saved, lost = (requests.submit(RequestSpec(kind, **what)).id for _ in range(2))
    path = save(storage, saved)
    requests.answer_ended(SavepointCatalog(storage), job)
    result = requests.result(saved)
    assert (result.state, result.path, result.checkpoint) == (DONE, path, 7)
    assert requests.result(lost).state is FAILED
    assert job.value in requests.result(lost).error
    assert requests.open() == []


def test_one_without_savepoint_is_done_when_the_job_has_ended(storage, requests) -> None:
    catalog = SavepointCatalog(storage)
    for job, stopped in (
        (JobState.FINISHED, DONE),
        (JobState.CANCELED, DONE),
        (JobState.FAILED, FAILED),
    ):
        stop, cancel = (
            requests.submit(RequestSpec(k)).id for k in (RequestKind.STOP, RequestKind.CANCEL)
        )
        requests.answer_ended(catalog, job)
        assert requests.result(stop).state is stopped
        assert requests.result(cancel).state is DONE


def test_a_job_that_did_not_come_to_say_how_it_ended_has_done_nothing(storage, requests) -> None:
    id = requests.submit(RequestSpec(RequestKind.CANCEL)).id
    requests.answer_ended(SavepointCatalog(storage), None)
    assert requests.result(id).state is FAILED


def test_what_is_left_when_a_user_starts_the_job_again(storage, requests) -> None:
    savepoint, stop, plain = (
        requests.submit(RequestSpec(RequestKind.SAVEPOINT)).id,
        requests.submit(RequestSpec(RequestKind.STOP, savepoint=True)).id,
        requests.submit(RequestSpec(RequestKind.CANCEL)).id,
    )
    own = requests.submit(RequestSpec(RequestKind.STOP)).id
    path = save(storage, stop)
    requests.answer_leftovers(SavepointCatalog(storage), None, frozenset({own}))
    assert {r.id for r in requests.open()} == {savepoint, own}
    assert requests.result(stop).state is FAILED
    assert path in requests.result(stop).error
    assert requests.result(plain).state is FAILED


def test_what_an_ended_job_has_left_is_answered_when_it_is_started_again(storage, requests) -> None:
    stop = requests.submit(RequestSpec(RequestKind.STOP, savepoint=True)).id
    path = save(storage, stop)
    requests.answer_leftovers(SavepointCatalog(storage), JobState.FINISHED, frozenset())
    assert (requests.result(stop).state, requests.result(stop).path) == (DONE, path)
