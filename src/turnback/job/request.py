"""What users ask of a running job, and what became of it. Durable, see `Requests`."""

from __future__ import annotations

import unicodedata
from enum import StrEnum

import msgspec

from turnback.config.savepoints import SavepointFormat
from turnback.core.errors import ConfigurationError
from turnback.storage.envelope import check_id

_MAX_LABEL = 200
_MAX_TEXT = 4_000


class RequestKind(StrEnum):
    """What is asked for."""

    SAVEPOINT = "savepoint"
    STOP = "stop"
    CANCEL = "cancel"


class RequestOrigin(StrEnum):
    """Who asks."""

    USER = "user"
    SCHEDULE = "schedule"


class RequestState(StrEnum):
    """How a request ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Something a user or the schedule asks of the driver.

    Attributes:
        id: Sorts by time of submission as far as clocks agree.
        kind: What is asked for.
        created_ms: When, by the clock of whoever asked.
        target: Directory for the savepoint, absolute or a URI; `None` for the configured one.
        type: How the savepoint is written.
        label: A short name for it.
        note: Why it is taken.
        savepoint: Whether a stop or cancel takes one first.
        drain: Whether a stop first lets event time run to its end.
        origin: Who asks.

    Raises:
        ConfigurationError: The fields contradict each other, or one of them cannot be used.
    """

    id: str
    kind: RequestKind
    created_ms: int
    target: str | None = None
    type: SavepointFormat = SavepointFormat.CANONICAL
    label: str | None = None
    note: str | None = None
    savepoint: bool = False
    drain: bool = False
    origin: RequestOrigin = RequestOrigin.USER

    def __post_init__(self) -> None:
        check_id(self.id, "request")
        if self.drain and self.kind is not RequestKind.STOP:
            raise ConfigurationError(f"a {self.kind} cannot drain: only a stop can")
        if self.target is not None:
            if not self.takes_savepoint:
                raise ConfigurationError(
                    f"a {self.kind} without savepoint needs no directory: leave {self.target!r} "
                    "out, or ask for a savepoint"
                )
            _check_target(self.target)
        _check_text("label", self.label, _MAX_LABEL, multiline=False)
        _check_text("note", self.note, _MAX_TEXT, multiline=True)

    @property
    def takes_savepoint(self) -> bool:
        """Whether a savepoint is taken."""
        return self.savepoint or self.kind is RequestKind.SAVEPOINT


class RequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended; there is never more than one per request.

    Attributes:
        id: Of the request.
        state: Whether it was done.
        path: Directory of the savepoint, if one was taken.
        checkpoint: Number of the checkpoint it was written from.
        error: Why it failed.
        ended_ms: When, by the driver's clock.
        attempt: Of the driver that ended it; `None` if it was ended in the driver's place.
    """

    id: str
    state: RequestState
    ended_ms: int
    path: str | None = None
    checkpoint: int | None = None
    error: str | None = None
    attempt: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far a request has got.

    Attributes:
        done: Parts that are done.
        total: All parts.
        bytes: Bytes written so far.
        started_ms: When the driver began, by its clock.
    """

    done: int
    total: int
    bytes: int
    started_ms: int


def _check_target(target: str) -> None:
    _check_text("directory", target, _MAX_TEXT, multiline=False)
    if not target.startswith("/") and ":/" not in target:
        raise ConfigurationError(
            f"the directory {target!r} is relative, and the driver of the job runs elsewhere: give "
            "an absolute path or a URI such as s3://bucket/savepoints"
        )
    if ".." in target.replace("\\", "/").split("/"):
        raise ConfigurationError(f"the directory {target!r} holds '..': write it without")


def _check_text(what: str, text: str | None, most: int, *, multiline: bool) -> None:
    if text is None:
        return
    if not text.strip() or len(text) > most:
        raise ConfigurationError(f"a {what} has 1 to {most} characters, this one {len(text)}")
    for char in text:
        if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and not (
            multiline and char in "\n\t"
        ):
            raise ConfigurationError(
                f"the {what} {text!r} holds {char!r}, which cannot be printed; leave it out"
            )
