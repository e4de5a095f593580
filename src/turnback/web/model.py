"""What only the page and its API exchange; all else is in `turnback.inspect.model`."""

from __future__ import annotations

import msgspec

from turnback.config.savepoints import SavepointFormat
from turnback.inspect.model import View


class About(View, frozen=True):
    """The dashboard itself.

    Attributes:
        version: Of Turnback.
        read_only: Whether nobody may change anything here.
        authorized: Whether this request carried the token or its cookie.
        needs_token: Whether looking needs the token too, not only changing.
        root: The directory of the jobs.
        savepoints_dir: Where savepoints go by default, if that is configured.
        now_ms: The server's clock.
    """

    version: str
    read_only: bool
    authorized: bool
    needs_token: bool
    root: str
    savepoints_dir: str | None
    now_ms: int


class SnapshotRow(View, frozen=True):
    """A snapshot that can be looked into.

    Attributes:
        id: "chk-7", or the savepoint's id.
        kind: "checkpoint" or "savepoint".
        created_ms: When it was taken.
        label: The savepoint's short name.
        checkpoint: Number of the checkpoint; of a savepoint, the one it was written from.
        epoch: The last epoch in it.
    """

    id: str
    kind: str
    created_ms: int
    label: str | None
    checkpoint: int
    epoch: int


class LogTail(View, frozen=True):
    """The end of a driver's log."""

    path: str
    lines: tuple[str, ...]


class ErrorInfo(View, frozen=True):
    """What went wrong: a word for programs, a sentence for people."""

    kind: str
    message: str


class ErrorAnswer(View, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorInfo


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is posted."""


class SavepointBody(Body, frozen=True):
    """How a savepoint is to be taken; it goes to the configured directory."""

    label: str | None = None
    note: str | None = None
    format: SavepointFormat | None = None


class StopBody(Body, frozen=True):
    """How a job is to stop.

    Attributes:
        savepoint: Whether it takes one first; as configured if left out.
        drain: Whether event time first runs to its end.
    """

    savepoint: bool | None = None
    drain: bool = False


class CancelBody(Body, frozen=True):
    """Whether a savepoint is taken before a job is cancelled."""

    savepoint: bool = False
