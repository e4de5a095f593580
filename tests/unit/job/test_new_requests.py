"""A driver that looks for requests lists them only if something may have changed."""

from __future__ import annotations

from collections import Counter

import pytest

from coordinator_fakes import HookedStorage, memory
from manual_clock import ManualClock
from turnback.errors import StorageError
from turnback.job.request import RequestKind, RequestOutcome, RequestSpec
from turnback.job.requests import DIRECTORY, NEWEST, Requests

SAVEPOINT = RequestSpec(RequestKind.SAVEPOINT)


class Counting(HookedStorage):
    """Counts listings of requests, and refuses to write what is in `refused`."""

    def __init__(self) -> None:
        super().__init__(memory())
        self.lists: Counter[str] = Counter()
        self.refused: set[str] = set()

    def list(self, prefix=""):
        self.lists[prefix] += 1
        return super().list(prefix)

    def put(self, path, data):
        if path in self.refused:
            raise StorageError(f"cannot write {path}")
        super().put(path, data)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def storage() -> Counting:
    return Counting()


@pytest.fixture
def driver(storage, clock) -> Requests:
    return Requests(storage, clock)


@pytest.fixture
def user(storage, clock) -> Requests:
    return Requests(storage, clock)


def looks(driver: Requests, clock: ManualClock, count: int) -> list[list[str]]:
    found = []
    for _ in range(count):
        found.append([request.id for request in driver.open_if_new()])
        clock.advance(1_000)
    return found


def test_nothing_new_is_not_listed_again(storage, clock, driver) -> None:
    assert looks(driver, clock, 15) == [[]] * 15
    assert storage.lists[DIRECTORY] == 1


def test_what_was_there_before_the_driver_is_found(storage, clock, driver, user) -> None:
    request = user.submit(SAVEPOINT)
    assert looks(driver, clock, 1) == [[request.id]]


def test_a_new_request_is_found_at_once(storage, clock, driver, user) -> None:
    looks(driver, clock, 3)
    request = user.submit(SAVEPOINT)
    assert looks(driver, clock, 1) == [[request.id]]


def test_one_that_is_not_answered_is_given_again(storage, clock, driver, user) -> None:
    looks(driver, clock, 1)
    request = user.submit(SAVEPOINT)
    assert looks(driver, clock, 3) == [[request.id]] * 3
    driver.finish(request.id, RequestOutcome.failed("no"))
    listed = storage.lists[DIRECTORY]
    assert looks(driver, clock, 5) == [[]] * 5
    assert storage.lists[DIRECTORY] == listed + 1


def test_two_submitters_at_once_are_both_heard(storage, clock, driver, user) -> None:
    looks(driver, clock, 1)
    first = user.submit(SAVEPOINT)
    second = Requests(storage, clock).submit(SAVEPOINT)
    storage.put(NEWEST, first.id.encode())  # whose write comes later
    assert sorted(*looks(driver, clock, 1)) == sorted([first.id, second.id])


def test_one_whose_submitter_cannot_say_so_is_found_later(
    storage, clock, driver, user, caplog
) -> None:
    looks(driver, clock, 1)
    storage.refused.add(NEWEST)
    request = user.submit(SAVEPOINT)
    assert f"cannot tell the driver of request {request.id} at once" in caplog.text
    found = looks(driver, clock, 30)
    assert found[0] == []
    assert found[-1] == [request.id]


def test_a_listing_that_fails_is_made_again(storage, clock, driver, user, monkeypatch) -> None:
    looks(driver, clock, 1)
    request = user.submit(SAVEPOINT)
    working = storage.list
    monkeypatch.setattr(storage, "list", failing)
    with pytest.raises(StorageError):
        driver.open_if_new()
    monkeypatch.setattr(storage, "list", working)
    assert looks(driver, clock, 1) == [[request.id]]


def test_a_name_that_cannot_be_read_keeps_nobody_from_being_heard(
    storage, clock, driver, user
) -> None:
    """It may be the file of another user, and private."""
    looks(driver, clock, 1)
    request = user.submit(SAVEPOINT)
    storage.fail("get", NEWEST)
    assert looks(driver, clock, 2) == [[request.id]] * 2
    driver.finish(request.id, RequestOutcome.failed("no"))
    storage.heal()
    assert looks(driver, clock, 2) == [[]] * 2
    other = user.submit(SAVEPOINT)
    assert looks(driver, clock, 1) == [[other.id]]


def test_an_older_listing_in_another_thread_hides_no_request(storage, clock, driver, user) -> None:
    """As an attempt that begins makes one, beside the thread that serves requests."""
    looks(driver, clock, 1)
    found: list[list[str]] = []

    def meanwhile(operation: str, path: str) -> None:
        storage.heal()
        user.submit(SAVEPOINT)
        found.extend(looks(driver, clock, 1))

    storage.after = meanwhile
    assert driver.open() == []
    assert len(found[0]) == 1
    assert looks(driver, clock, 2) == found * 2


def failing(prefix=""):
    raise StorageError("it does not answer")
