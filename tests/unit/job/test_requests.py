import threading

import pytest

from coordinator_fakes import HookedStorage, memory
from manual_clock import ManualClock
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import ConfigurationError, CorruptFileError, NotFoundError, StorageError
from turnback.job.request import (
    Request,
    RequestKind,
    RequestOrigin,
    RequestOutcome,
    RequestProgress,
    RequestSpec,
    RequestState,
)
from turnback.job.requests import Requests
from turnback.storage.envelope import seal
from turnback.storage.local import LocalStorage

DONE, FAILED = RequestState.COMPLETED, RequestState.FAILED


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000)


@pytest.fixture
def storage() -> HookedStorage:
    return HookedStorage(memory())


@pytest.fixture
def requests(storage, clock) -> Requests:
    return Requests(storage, clock)


def ask(requests: Requests, count: int = 1) -> list[str]:
    return [requests.submit(RequestSpec(RequestKind.SAVEPOINT)).id for _ in range(count)]


def test_everything_asked_for_arrives(storage, clock, requests) -> None:
    sent = requests.submit(
        RequestSpec(
            RequestKind.STOP,
            target="s3://bucket/a",
            type=SavepointFormat.NATIVE,
            label="before-the-upgrade",
            note="two\nlines",
            savepoint=True,
            drain=True,
            origin=RequestOrigin.SCHEDULE,
        )
    )
    assert Requests(storage, clock).open() == [sent]
    assert sent.created_ms == clock.now_ms()
    assert sent.takes_savepoint
    assert not requests.submit(RequestSpec(RequestKind.CANCEL)).takes_savepoint


def test_requests_keep_their_order_whatever_the_clock_does(storage, clock, requests) -> None:
    ids = ask(requests, 20)  # the clock stands
    clock.set_now_ms(5)
    ids += ask(requests, 2)
    assert [r.id for r in requests.open()] == ids
    slow = ask(Requests(storage, clock))  # another machine, years behind
    assert [r.id for r in requests.open()] == slow + ids
    assert len(set(ids)) == 22


def test_a_request_from_the_past_is_seen_after_newer_ones_have_ended(clock, requests) -> None:
    requests.finish(*ask(requests), RequestOutcome(DONE))
    clock.set_now_ms(0)
    late = ask(Requests(requests._storage, clock))
    assert [r.id for r in requests.open()] == late


def test_a_request_ends_once(storage, clock, requests) -> None:
    (id_,) = ask(requests)
    first = requests.finish(id_, RequestOutcome(DONE, path="/sp", checkpoint=4))
    second = Requests(storage, clock).finish(id_, RequestOutcome(FAILED, error="late"))
    assert first == second == requests.result(id_)
    assert (first.state, first.path, first.checkpoint) == (DONE, "/sp", 4)
    assert requests.open() == []


def test_of_racing_drivers_one_wins_and_all_agree(tmp_path, clock) -> None:
    storage = LocalStorage(tmp_path)
    ids = ask(Requests(storage, clock), 10)
    answers: list[list] = []

    def driver(attempt: int) -> None:
        mine = Requests(storage, clock)
        outcome = RequestOutcome(DONE, path=f"/{attempt}")
        answers.append([mine.finish(id_, outcome) for id_ in ids])

    threads = [threading.Thread(target=driver, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 6
    assert all(answer == answers[0] for answer in answers)


def test_a_lost_reply_is_recognised(storage, requests) -> None:
    def lose(operation: str, path: str) -> None:
        if operation == "put_if_absent":
            storage.heal()
            raise StorageError("no answer")

    storage.after = lose
    (id_,) = ask(requests)
    assert [r.id for r in requests.open()] == [id_]
    storage.after = lose
    assert requests.finish(id_, RequestOutcome(DONE)) == requests.result(id_)
    assert len(storage.list("ops")) == 2


@pytest.mark.parametrize(
    "bad", ["../x", "a/b", "/etc/passwd", "", ".", "..", "a.result", "a\0", "a%2Fb", "é", "x" * 81]
)
def test_no_id_leads_anywhere_else(requests, storage, bad: str) -> None:
    storage.operations.clear()
    for action in (
        lambda: requests.result(bad),
        lambda: requests.progress(bad),
        lambda: requests.wait(bad, 0),
        lambda: requests.finish(bad, RequestOutcome(DONE)),
        lambda: requests.report(bad, RequestProgress(0, 1, 0, 0)),
        lambda: Request(id=bad, kind=RequestKind.STOP, created_ms=0),
    ):
        with pytest.raises(ConfigurationError, match="is not the id of a request"):
            action()
    assert storage.operations == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "here"}, "is relative"),
        ({"target": "/a/../b"}, r"'\.\.'"),
        ({"target": "s3://b/../../c"}, r"'\.\.'"),
        ({"target": "/a\0"}, "not printable"),
        ({"label": "two\nlines"}, "not printable"),
        ({"label": "x" * 201}, "1 to 200 characters"),
        ({"label": " "}, "1 to 200 characters"),
        ({"drain": True}, "only stop"),
        ({"kind": RequestKind.CANCEL, "target": "/a"}, "request a savepoint"),
        ({"kind": RequestKind.CANCEL, "drain": True}, "only stop"),
    ],
)
def test_what_makes_no_sense_is_not_submitted(requests, storage, options, message) -> None:
    with pytest.raises(ConfigurationError, match=message):
        requests.submit(RequestSpec(**{"kind": RequestKind.SAVEPOINT} | options))
    assert storage.list("ops") == []


def test_damaged_requests_fail_by_name_and_others_are_served(storage, requests, caplog) -> None:
    good = ask(requests, 2)
    intact = storage.get(f"ops/{good[0]}.json")
    hostile = b'{"id":"escape","kind":"savepoint","created_ms":1,"target":"/a/../../etc"}'
    damaged = {
        "cut": intact[:-5],
        "empty": b"",
        "flipped": intact.replace(b"savepoint", b"sevepoint"),
        "renamed": intact,
        "escape": seal("request", 1, hostile),
        "unknown": seal("request", 1, b'{"id":"unknown","kind":"dance","created_ms":1}'),
        "list": seal("request", 1, b"[]"),
    }
    for name, data in damaged.items():
        storage.put(f"ops/{name}.json", data)
    assert [r.id for r in requests.open()] == good
    for name in damaged:
        result = requests.result(name)
        assert result.state is FAILED
        assert f"/ops/{name}.json" in result.error
        assert f"ops/{name}.json" in caplog.text
    assert [r.id for r in requests.open()] == good


def test_a_newer_format_fails_and_names_both_versions(storage, requests) -> None:
    storage.put("ops/newer.json", seal("request", 7, b"{}"))
    assert requests.open() == []
    error = requests.result("newer").error
    assert "version 7" in error
    assert "version 1" in error


def test_foreign_files_are_ignored(storage, requests, caplog) -> None:
    for name in ("notes.txt", "a b.json", "deep/x.json", "x.other.json", "x.result.result.json"):
        storage.put(f"ops/{name}", b"x")
    assert requests.open() == requests.open() == []
    assert caplog.text.count("notes.txt") == 1
    assert len(storage.list("ops")) == 5


def test_one_request_that_cannot_be_read_now_comes_later(storage, requests) -> None:
    first, second = ask(requests, 2)
    storage.fail("get", f"{first}.json")
    assert [r.id for r in requests.open()] == [second]
    storage.heal()
    assert [r.id for r in requests.open()] == [first, second]


def test_requests_that_cannot_be_listed_are_not_taken_for_none(storage, requests) -> None:
    storage.fail("list", "ops")
    with pytest.raises(StorageError):
        requests.open()


def test_a_damaged_result_is_still_the_result(storage, requests) -> None:
    (id_,) = ask(requests)
    storage.put(f"ops/{id_}.result.json", b"rubbish")
    assert requests.open() == []
    for action in (
        lambda: requests.result(id_),
        lambda: requests.finish(id_, RequestOutcome(DONE)),
    ):
        with pytest.raises(CorruptFileError, match=f"{id_}.result.json"):
            action()


def test_a_result_that_the_listing_missed_is_seen(storage, requests) -> None:
    (id_,) = ask(requests)

    def finish(operation: str, path: str) -> None:
        if operation == "list":
            storage.heal()
            requests.finish(id_, RequestOutcome(DONE))

    storage.after = finish
    assert requests.open() == []


@pytest.mark.parametrize("when", ["list", "get"])
def test_a_request_forgotten_while_it_is_looked_at_is_not_open(storage, requests, when) -> None:
    (id_,) = ask(requests)

    def end(operation: str, path: str) -> None:
        if operation == when:
            storage.heal()
            requests.finish(id_, RequestOutcome(DONE))
            requests.prune(0)

    storage.before = storage.after = lambda operation, path: None
    if when == "list":
        storage.after = end
    else:
        storage.before = end
    assert requests.open() == []


def test_progress_is_shown_and_never_in_the_way(storage, requests) -> None:
    (id_,) = ask(requests)
    assert requests.progress(id_) is None
    for done in (1, 2):
        requests.report(id_, RequestProgress(done, 4, 100, 7))
    assert requests.progress(id_) == RequestProgress(2, 4, 100, 7)
    storage.fail("put", "progress")
    requests.report(id_, RequestProgress(3, 4, 100, 7))
    storage.heal()
    storage.put(f"ops/{id_}.progress.json", b"rubbish")
    assert requests.progress(id_) is None
    assert [r.id for r in requests.open()] == [id_]


class Scripted(ManualClock):
    """A clock that does something at each sleep."""

    def __init__(self, *steps) -> None:
        super().__init__(1_000)
        self.steps = list(steps)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.steps:
            self.steps.pop(0)()


def test_waiting_goes_on_until_there_is_a_result(storage, clock, requests) -> None:
    (id_,) = ask(requests)
    waiter = Requests(
        storage,
        Scripted(
            lambda: requests.report(id_, RequestProgress(1, 2, 10, 0)),
            lambda: None,
            lambda: requests.finish(id_, RequestOutcome(DONE, path="/sp")),
        ),
    )
    assert waiter.wait(id_).path == "/sp"
    assert waiter.progress(id_) == RequestProgress(1, 2, 10, 0)


def test_waiting_has_an_end(requests, clock) -> None:
    (id_,) = ask(requests)
    began = clock.monotonic()
    assert requests.wait(id_, 3.0) is None
    assert clock.monotonic() - began == pytest.approx(3.0, abs=0.01)
    with pytest.raises(NotFoundError, match="there is no request nobody"):
        requests.wait("nobody", 3.0)


def test_pruning_keeps_the_newest_results_and_all_open_requests(requests, clock) -> None:
    ids = ask(requests, 5)
    waiting = ask(requests)
    for id_ in reversed(ids):
        requests.report(id_, RequestProgress(1, 1, 1, 1))
        clock.set_now_ms(clock.now_ms() - 1_000)  # order follows the endings, not the clock
        requests.finish(id_, RequestOutcome(DONE))
    requests.prune(2)
    assert [id_ for id_ in ids if requests.result(id_)] == ids[:2]
    assert [r.id for r in requests.open()] == waiting
    assert len(requests._storage.list("ops")) == 7


def test_another_driver_prunes_by_the_time_of_the_result(storage, requests, clock) -> None:
    ids = ask(requests, 4)
    for id_ in reversed(ids):
        clock.advance(1)
        requests.finish(id_, RequestOutcome(DONE))
    storage.put(f"ops/{ids[0]}.result.json", b"rubbish")
    Requests(storage, clock).prune(2)
    assert sorted(path for path in storage.list("ops") if "result" in path) == [
        f"ops/{id_}.result.json" for id_ in ids[1:3]
    ]


def test_a_crash_while_pruning_never_opens_a_request_again(storage, requests) -> None:
    for step in range(3):
        (id_,) = ask(requests)
        requests.report(id_, RequestProgress(1, 1, 1, 1))
        requests.finish(id_, RequestOutcome(DONE))
        left = [step]

        def crash(operation: str, path: str, left=left) -> None:
            if operation == "delete":
                if not left[0]:
                    raise KeyboardInterrupt
                left[0] -= 1

        storage.before = crash
        with pytest.raises(KeyboardInterrupt):
            requests.prune(0)
        storage.heal()
        assert requests.open() == []
        requests.prune(0)
        assert storage.list("ops") == []


def test_progress_without_a_request_goes(storage, requests) -> None:
    requests.report("gone", RequestProgress(1, 1, 1, 1))
    requests.prune(10)
    assert storage.list("ops") == []
