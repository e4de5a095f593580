"""What becomes of the requests of a job that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from turnback.core.errors import NotFoundError
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.request import Request, RequestKind, RequestState
from turnback.job.requests import Requests
from turnback.job.status import JobState


@dataclass(frozen=True)
class Outcome:
    """How a request ends; see `RequestResult` for the fields."""

    state: RequestState
    path: str | None = None
    checkpoint: int | None = None
    error: str | None = None


def outcome(request: Request, job: JobState, catalog: SavepointCatalog) -> Outcome:
    """Return how a request without result ends because its job has.

    Its savepoint is complete if the job has recorded it: a stop or cancel ends the job only after
    that, and then the job ended with the very epoch that is in the savepoint.

    Args:
        request: The request.
        job: How the job has ended.
        catalog: The savepoints that the job took.

    Raises:
        StorageError: It cannot be told, because the storage does not answer or a file is damaged.
    """
    if request.takes_savepoint:
        entry = recorded(request, catalog)
        if entry is not None:
            return Outcome(RequestState.COMPLETED, entry.path, entry.checkpoint)
        return _failed(f"the job is {job.value}, it ended before the savepoint was complete")
    if request.kind is RequestKind.STOP and job is JobState.FAILED:
        return _failed("the job failed before it could be stopped")
    return Outcome(RequestState.COMPLETED)


def recorded(request: Request, catalog: SavepointCatalog) -> SavepointEntry | None:
    """Return the record of the savepoint that was asked for, `None` if it is not complete."""
    try:
        return catalog.get(request.id)
    except NotFoundError:
        return None


def answer_ended(requests: Requests, catalog: SavepointCatalog, job: JobState | None) -> None:
    """Answer every open request of a job that has ended.

    Args:
        requests: The requests of the job.
        catalog: The savepoints that the job took.
        job: How it has ended; `None` if it did not come to say.

    Raises:
        StorageError: Not all could be answered.
        FencedError: A newer attempt has taken over, which answers.
    """
    for request in requests.open():
        found = _failed("the job has ended") if job is None else outcome(request, job, catalog)
        _answer(requests, request, found)


def answer_leftovers(
    requests: Requests, catalog: SavepointCatalog, job: JobState | None, own: frozenset[str]
) -> None:
    """Answer what was asked of a driver that is gone, as the job is started again by its user.

    A stop or cancel is not obeyed: whoever starts the job wants it to run. Savepoints are left to
    be taken by the new driver.

    Args:
        requests: The requests of the job.
        catalog: The savepoints that the job took.
        job: How the job had ended; `None` if it had not, because its driver died.
        own: Requests of the new driver itself.
    """
    for request in requests.open():
        if request.id in own or request.kind is RequestKind.SAVEPOINT:
            continue
        found = _died(request, catalog) if job is None else outcome(request, job, catalog)
        _answer(requests, request, found)


def _answer(requests: Requests, request: Request, how: Outcome) -> None:
    requests.finish(
        request.id, how.state, path=how.path, checkpoint=how.checkpoint, error=how.error
    )


def _died(request: Request, catalog: SavepointCatalog) -> Outcome:
    why = "the driver died before it could, and the job was started again"
    entry = recorded(request, catalog) if request.takes_savepoint else None
    return _failed(f"{why}; its savepoint is complete, in {entry.path}" if entry else why)


def _failed(why: str) -> Outcome:
    return Outcome(RequestState.FAILED, error=why)
