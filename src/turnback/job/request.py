"""Requests to a running job, and their outcomes; `Requests` stores them in files."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from turnback.config.checkpointing import SavepointFormat
from turnback.core.ids import check_id, check_printable
from turnback.errors import ConfigurationError, NotFoundError
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.job.status import JobState

_MAX_LABEL = 200
_MAX_TEXT = 4_000


class RequestKind(StrEnum):
    """What a request does."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    CANCEL = "cancel"


class RequestOrigin(StrEnum):
    """Who submits a request."""

    USER = "user"
    SCHEDULE = "schedule"


class RequestState(StrEnum):
    """How a request ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class RequestSpec(msgspec.Struct, frozen=True):
    """A request of a user or the schedule to the driver.

    Attributes:
        target: Directory for the savepoint, absolute or a URI; `None` for the configured one.
        savepoint: Whether a stop or cancel takes one first.
        drain: Whether a stop first lets event time run to its end.

    Raises:
        ConfigurationError: The fields contradict each other, or one of them cannot be used.
    """

    kind: RequestKind
    target: str | None = None
    type: SavepointFormat = SavepointFormat.CANONICAL
    label: str | None = None
    note: str | None = None
    savepoint: bool = False
    drain: bool = False
    origin: RequestOrigin = RequestOrigin.USER

    def __post_init__(self) -> None:
        if self.drain and self.kind is not RequestKind.STOP:
            raise ConfigurationError(f"a {self.kind} cannot drain: only stop can")
        if self.target is not None:
            if not self.takes_savepoint:
                raise ConfigurationError(
                    f"a {self.kind} without a savepoint needs no directory: omit "
                    f"{self.target!r}, or request a savepoint"
                )
            _check_target(self.target)
        _check_text("label", self.label, _MAX_LABEL, multiline=False)
        _check_text("note", self.note, _MAX_TEXT, multiline=True)

    @property
    def takes_savepoint(self) -> bool:
        return self.savepoint or self.kind is RequestKind.SAVEPOINT


class Request(RequestSpec, frozen=True, kw_only=True):
    """A request that was submitted; ids sort by that time, as far as clocks agree."""

    id: str
    created_ms: int

    def __post_init__(self) -> None:
        check_id(self.id, "request")
        super().__post_init__()


class RequestOutcome(msgspec.Struct, frozen=True):
    """How a request ends: with a savepoint from a checkpoint, if it takes one, or an error."""

    state: RequestState
    path: str | None = None
    checkpoint: int | None = None
    error: str | None = None

    @classmethod
    def failed(cls, error: str) -> RequestOutcome:
        return cls(RequestState.FAILED, error=error)


class RequestResult(RequestOutcome, frozen=True, kw_only=True):
    """How a request has ended; there is never more than one per request.

    The attempt is that of the driver that ended it; `None` if it was ended in the driver's place.
    """

    id: str
    ended_ms: int
    attempt: int | None = None


class RequestProgress(msgspec.Struct, frozen=True):
    """How far a request has got: how many parts are done, and the bytes written so far."""

    done: int
    total: int
    bytes: int
    started_ms: int


class StopPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stop, or a cancel with savepoint, ends the job.

    It holds as long as the request has no result and the checkpoint is the newest of the job:
    until then no attempt runs an epoch after it.
    """

    id: str
    checkpoint: int
    epoch: int
    attempt: int


def recorded_savepoint(request: Request, catalog: SavepointCatalog) -> SavepointEntry | None:
    """Return the record of the requested savepoint, `None` if it is not complete."""
    try:
        return catalog.get(request.id)
    except NotFoundError:
        return None


def outcome_of_ended_job(
    request: Request, job: JobState, catalog: SavepointCatalog
) -> RequestOutcome:
    """Return how a request without result ends because its job has.

    Its savepoint is complete if the job has recorded it: a stop or cancel ends the job only after
    that, and then the job ended with the very epoch that is in the savepoint.
    """
    if request.takes_savepoint:
        entry = recorded_savepoint(request, catalog)
        if entry is not None:
            return RequestOutcome(RequestState.COMPLETED, entry.path, entry.checkpoint)
        return RequestOutcome.failed(
            f"the job is {job.value}: it ended before the savepoint was complete"
        )
    if request.kind is RequestKind.STOP and job is JobState.FAILED:
        return RequestOutcome.failed("the job failed before it could be stopped")
    return RequestOutcome(RequestState.COMPLETED)


def outcome_of_lost_driver(request: Request, catalog: SavepointCatalog) -> RequestOutcome:
    """Return how a stop or cancel ends whose driver died, as the job was started again."""
    why = "the driver died before it could end the job, and the job was restarted"
    entry = recorded_savepoint(request, catalog) if request.takes_savepoint else None
    return RequestOutcome.failed(
        f"{why}; its savepoint is complete, in {entry.path}" if entry else why
    )


def _check_target(target: str) -> None:
    _check_text("directory", target, _MAX_TEXT, multiline=False)
    if not target.startswith("/") and ":/" not in target:
        raise ConfigurationError(
            f"the directory {target!r} is relative, but the driver of the job runs elsewhere: "
            "use an absolute path or a URI such as s3://bucket/savepoints"
        )
    if ".." in target.replace("\\", "/").split("/"):
        raise ConfigurationError(f"the directory {target!r} contains '..': write it without")


def check_label(label: str | None) -> None:
    """Refuse a label with spaces, which would have to be quoted, as in JOB@LABEL."""
    if label is not None and any(char.isspace() for char in label):
        near = "-".join(label.split())
        raise ConfigurationError(
            f"the label {label!r} contains spaces: use {near!r}, and put more text in a note"
        )


def _check_text(what: str, text: str | None, most: int, *, multiline: bool) -> None:
    if text is None:
        return
    if not text.strip() or len(text) > most:
        raise ConfigurationError(f"a {what} must have 1 to {most} characters, not {len(text)}")
    check_printable(what, text, ConfigurationError, "\n\t" if multiline else "")
