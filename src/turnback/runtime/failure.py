"""A user's exception on its way from a task to the person who can mend it."""

from __future__ import annotations

import base64
import re
import traceback
from pathlib import Path
from typing import Any

import msgspec

from turnback.core import errors
from turnback.core.errors import TurnbackError, UserFunctionError

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_MARK = re.compile(r"<<turnback (?P<body>[A-Za-z0-9+/=]+) kcabnrut>>")


class TaskFailure(msgspec.Struct, frozen=True):
    """The essence of an exception in a task; `kind` names its class in core.errors."""

    kind: str
    message: str


def user_error(error: BaseException, uid: str, name: str, **about: Any) -> UserFunctionError:
    """Describe an exception of the user's code by its line, its operator and its key."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_PACKAGE)] or list(frames)[-1:]
    told = _cut(str(error), 2_000)
    lines = [f"operator {uid!r} ({name}) failed: {type(error).__name__}: {told}"]
    for label, value in about.items():
        lines.append(f"  {label}: {_cut(repr(value), 200)}")
    for frame in own[-5:]:
        lines.append(f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}')
        if frame.line:
            lines.append(f"    {frame.line}")
    return UserFunctionError("\n".join(lines))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


class MarkedError(Exception):
    """Carries a failure through Spark, which keeps nothing of an exception but its text."""

    def __init__(self, failure: TaskFailure) -> None:
        body = base64.b64encode(msgspec.msgpack.encode(failure)).decode()
        super().__init__(f"{failure.message}\n<<turnback {body} kcabnrut>>")


def marked(error: TurnbackError) -> MarkedError:
    """An error in the form in which it survives the way through Spark."""
    return MarkedError(TaskFailure(type(error).__name__, str(error)))


def unmarked(error: BaseException) -> BaseException:
    """The error that a task raised, found again in what Spark made of it."""
    found = _MARK.search(str(error))
    if found is None:
        return error
    failure = msgspec.msgpack.decode(base64.b64decode(found["body"]), type=TaskFailure)
    kind = getattr(errors, failure.kind, UserFunctionError)
    rebuilt: TurnbackError = kind(failure.message)
    return rebuilt
