"""What somebody asks of a job, made complete from its configuration."""

from __future__ import annotations

import msgspec

from turnback.config.savepoints import SavepointFormat, SavepointSettings
from turnback.core.errors import (
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    NotFoundError,
)
from turnback.inspect.locations import shown
from turnback.inspect.model import RequestRow
from turnback.job.catalog import SavepointCatalog
from turnback.job.request import (
    Request,
    RequestKind,
    RequestResult,
    RequestState,
    outcome_of_ended_job,
)
from turnback.job.requests import Requests
from turnback.job.status import JobState
from turnback.storage.base import Storage

ASKED_KEYS = (
    "state.savepoints.dir",
    "execution.checkpointing.savepoint-dir",
    "savepoints.on-stop",
    "savepoints.format",
)
"""The settings that matter; no other one keeps a job from being stopped."""


def asked_kind(kind: RequestKind | str) -> RequestKind:
    """Return what is asked for, or say that there is no such thing."""
    try:
        return RequestKind(kind)
    except ValueError:
        known = ", ".join(RequestKind)
        raise ConfigurationError(
            f"{kind!r} cannot be asked of a job: it is one of {known}"
        ) from None


def asked_format(format: SavepointFormat | str | None) -> SavepointFormat | None:
    """Return how a savepoint is to be written, or say that this is no way to do it."""
    try:
        return None if format is None else SavepointFormat(format)
    except ValueError:
        known = ", ".join(SavepointFormat)
        raise ConfigurationError(f"{format!r} is no format of savepoints, only {known}") from None


def takes_savepoint(
    kind: RequestKind,
    settings: SavepointSettings,
    target: str | None,
    savepoint: bool | None,
    *,
    drain: bool,
) -> bool:
    """Return whether a stop or cancel takes a savepoint; see `Job.ask`.

    Raises:
        ConfigurationError: A stop is to drain without one.
    """
    if drain and savepoint is False:
        raise ConfigurationError(
            "that event time has come to its end is told in a savepoint: take one, or do not drain"
        )
    if savepoint is not None:
        return savepoint
    if kind is RequestKind.SAVEPOINT:
        return False  # it is one
    on_stop = settings.on_stop and settings.directory is not None
    return target is not None or (kind is RequestKind.STOP and (on_stop or drain))


def request_rows(requests: Requests) -> list[RequestRow]:
    """Return all requests that are remembered, newest first."""
    rows = []
    for id_ in reversed(requests.ids()):
        try:
            rows.append(request_row(requests, id_))
        except NotFoundError:
            continue  # forgotten a moment ago
    return rows


def request_row(requests: Requests, id_: str) -> RequestRow:
    """Return one request.

    Raises:
        NotFoundError: There is no such request.
    """
    try:
        request = requests.get(id_)
        result = requests.result(id_)
    except ConfigurationError as error:
        raise NotFoundError(f"there is no request {id_!r}: {error}") from None
    except (CorruptFileError, FormatVersionError) as error:
        return RequestRow(
            id=id_, kind="unreadable", state="FAILED", created_ms=_asked_ms(id_), error=str(error)
        )
    if request is None and result is None:
        raise NotFoundError(
            f"there is no request {id_}: it was never made, or it ended long ago and is forgotten"
        )
    return _row(requests, id_, request, result)


def ended_row(row: RequestRow, requests: Requests, job: JobState, storage: Storage) -> RequestRow:
    """Return a request without result, as it is now that its job has ended.

    Args:
        row: The request.
        requests: The requests of the job.
        job: How it has ended.
        storage: The job directory.
    """
    request = requests.get(row.id)
    # The driver may have answered between the two looks.
    if request is None or requests.result(row.id) is not None:
        return request_row(requests, row.id)
    found = outcome_of_ended_job(request, job, SavepointCatalog(storage))
    if found.state is not RequestState.COMPLETED:
        return row
    path = shown(found.path) if found.path is not None else None
    return msgspec.structs.replace(row, state=found.state.value, path=path)


def _row(
    requests: Requests, id_: str, request: Request | None, result: RequestResult | None
) -> RequestRow:
    progress = requests.progress(id_)
    state = "RUNNING" if progress is not None else "WAITING"
    path = result.path if result is not None else None
    return RequestRow(
        id=id_,
        kind=request.kind.value if request is not None else "unreadable",
        state=result.state.value if result is not None else state,
        created_ms=request.created_ms if request is not None else _asked_ms(id_),
        savepoint=request.takes_savepoint if request is not None else path is not None,
        done=progress.done if progress is not None else 0,
        total=progress.total if progress is not None else 0,
        bytes=progress.bytes if progress is not None else 0,
        started_ms=progress.started_ms if progress is not None else None,
        ended_ms=result.ended_ms if result is not None else None,
        path=shown(path) if path is not None else None,
        error=result.error if result is not None else None,
    )


def _asked_ms(id_: str) -> int:
    digits = id_.partition("-")[0]
    return int(digits) if digits.isdecimal() else 0
