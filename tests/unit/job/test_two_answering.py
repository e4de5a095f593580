"""Two live drivers answer the requests of one job, in many orders of their storage operations."""

from __future__ import annotations

import re

import pytest

from coordinator_fakes import memory, take_fence
from interleaving import InterleavedStorage, Interleaving, replayable, seeds
from turnback.checkpoint.log import CheckpointLog
from turnback.driver.context import FenceGuard
from turnback.errors import FencedError
from turnback.job.directory import JobDirectory
from turnback.job.request import RequestKind, RequestOutcome, RequestSpec, RequestState
from turnback.job.requests import Requests

pytestmark = pytest.mark.orders
ORDERS = 300
POLLS = 6
REQUESTS = 3
_REQUEST = re.compile(r"ops/([^/.]+)\.json")


class Recording(InterleavedStorage):
    """Remembers which attempt had the job when a request was submitted."""

    def __init__(self, inner, order: Interleaving) -> None:
        super().__init__(inner, order)
        self.submitted: dict[str, int] = {}

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        if match := _REQUEST.fullmatch(path):
            newest = CheckpointLog(self.inner).numbers()
            self.submitted[match[1]] = CheckpointLog(self.inner).get(newest[-1]).attempt


def drive(storage: InterleavedStorage, name: str) -> None:
    """Take the job over, and answer what is asked until somebody else has."""
    directory = JobDirectory(storage, "job")
    fence_guard = FenceGuard(directory)
    requests = Requests(storage, own_attempt=fence_guard.check)
    try:
        fence_guard.attempt = take_fence(CheckpointLog(storage), nonce=name).attempt
        for _ in range(POLLS):
            for request in requests.open():
                requests.finish(request.id, RequestOutcome(RequestState.COMPLETED, path=name))
    except FencedError:
        return


def ask(storage: InterleavedStorage) -> None:
    requests = Requests(storage)
    for _ in range(REQUESTS):
        requests.submit(RequestSpec(RequestKind.SAVEPOINT))


def test_what_is_asked_of_a_successor_is_not_answered_by_its_predecessor() -> None:
    for seed in seeds(ORDERS):
        with replayable(seed) as order:
            files = memory()
            storage = Recording(files, order)
            take_fence(CheckpointLog(files), nonce="before")
            order.add("first", lambda storage=storage: drive(storage, "first"))
            order.add("second", lambda storage=storage: drive(storage, "second"))
            order.add("user", lambda storage=storage: ask(storage))
            order.run()
            order.add("third", lambda storage=storage: drive(storage, "third"))
            order.run()
            assert len(storage.submitted) == REQUESTS
            for id_, attempt in storage.submitted.items():
                result = Requests(files).result(id_)
                assert result is not None
                assert result.attempt is not None
                assert result.attempt >= attempt, "the predecessor has answered"
