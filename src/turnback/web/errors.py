"""Errors as answers: a status, a word for programs and a sentence for people."""

from __future__ import annotations

import logging

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from turnback.core.errors import (
    AmbiguousJobError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    JobInUseError,
    JobNotFoundError,
    JobNotRunningError,
    NotFoundError,
    PlanError,
    StateError,
    StorageError,
    TurnbackError,
)
from turnback.web.model import ErrorAnswer, ErrorInfo

_LOG = logging.getLogger(__name__)

# The first that fits decides.
_STATUS: tuple[tuple[type[TurnbackError], int], ...] = (
    (JobNotFoundError, 404),
    (CheckpointNotFoundError, 404),
    (NotFoundError, 404),
    (JobNotRunningError, 409),
    (JobInUseError, 409),
    (AmbiguousJobError, 400),
    (ConfigurationError, 400),
    (PlanError, 400),
    (StateError, 400),
    (CorruptFileError, 500),
    (FormatVersionError, 500),
    (StorageError, 503),
)
_KINDS = {
    400: "BadRequest",
    401: "TokenNeeded",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    504: "Timeout",
}


class Refusal(HTTPException):
    """A request that is not served: its status, and why.

    Args:
        status: The HTTP status.
        message: Why, and what to do.
        kind: A word for programs; one that fits the status if left out.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.kind = kind or _KINDS.get(status, "Error")


def json_response(
    value: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(error: Exception, method: str, path: str) -> Response:
    """Return the answer that an error becomes; what nobody expected is logged, never shown.

    Args:
        error: The error.
        method: Of the request.
        path: Of the request, without its query: that may hold a token.
    """
    if isinstance(error, Refusal):
        return _answer(error.status_code, error.kind, error.detail, error.headers)
    if isinstance(error, HTTPException):
        kind = _KINDS.get(error.status_code, "Error")
        return _answer(error.status_code, kind, error.detail, error.headers)
    if isinstance(error, TurnbackError):
        status = next((code for type_, code in _STATUS if isinstance(error, type_)), 500)
        if status >= 500:
            _LOG.error("%s %s: %s: %s", method, path, type(error).__name__, error)
        return _answer(status, type(error).__name__, str(error))
    _LOG.error("%s %s failed", method, path, exc_info=error)
    return _answer(
        500, "InternalError", "something unexpected went wrong; the log of the dashboard says what"
    )


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what routing refuses: an unknown path, a wrong method."""
    if isinstance(error, HTTPException) and not isinstance(error, Refusal):
        said = {404: "there is nothing at this address", 405: "not with this method"}
        detail = said.get(error.status_code, error.detail)
        error = HTTPException(error.status_code, detail, error.headers)
    return error_response(error, request.method, request.url.path)


def _answer(status: int, kind: str, message: str, headers: object = None) -> Response:
    extra = dict(headers) if isinstance(headers, dict) else None
    return json_response(ErrorAnswer(error=ErrorInfo(kind=kind, message=message)), status, extra)
