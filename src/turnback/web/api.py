"""How endpoints are called over HTTP: parameters, routes, and errors as JSON answers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback.core import errors
from turnback.core.errors import ConfigurationError, TurnbackError
from turnback.core.ids import check_job_name
from turnback.views.job import Job
from turnback.views.model import View
from turnback.web.site import Site

PREFIX = "/api/v1"
JSON = "application/json"
MAX_BODY = 64 * 1024
_MAX_TEXT = 4_000
_THREADS = 8
_TIMEOUT_S = 60.0
_LOG = logging.getLogger(__name__)

# One for each event loop: limits of one loop cannot be used in another.
_LIMITER: RunVar[CapacityLimiter] = RunVar("turnback_web_limiter")
# The first that fits decides.
_STATUS: tuple[tuple[int, tuple[type[TurnbackError], ...]], ...] = (
    (404, (errors.JobNotFoundError, errors.CheckpointNotFoundError, errors.NotFoundError)),
    (409, (errors.JobNotRunningError, errors.JobInUseError, errors.StillNeededError)),
    (400, (errors.AmbiguousJobError, ConfigurationError, errors.PlanError, errors.StateError)),
    (500, (errors.CorruptFileError, errors.FormatVersionError)),
    (503, (errors.StorageError,)),
)
_KINDS = {
    400: "BadRequest",
    401: "TokenNeeded",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    429: "TooManyWrongTokens",
    504: "Timeout",
}
T = TypeVar("T")


class ErrorInfo(View, frozen=True):
    """What went wrong: a word for programs, a sentence for people."""

    kind: str
    message: str


class ErrorAnswer(View, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorInfo


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what is posted."""


class RequestError(HTTPException):
    """A request that is refused; `kind` is a word for programs, by default that of the status."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.kind = kind or _KINDS.get(status, "Error")


@dataclass(frozen=True)
class Parameter:
    """A query parameter; `least`, `most` and `default` apply to numbers, `choices` to texts."""

    name: str
    doc: str
    type: type[str] | type[int] = str
    required: bool = False
    least: int = 1
    most: int = 1_000
    default: int | None = None
    choices: tuple[str, ...] = ()

    def parse(self, text: str | None) -> str | int | None:
        """Return the value in a request; `RequestError` if it is missing or invalid."""
        if not text and self.required:
            problem = f"is missing: {self.doc}"
        elif text is None:
            return self.default
        elif self.choices and text not in self.choices:
            problem = f"is one of {', '.join(self.choices)}, not {text[:40]!r}"
        elif self.type is str:
            if len(text) <= _MAX_TEXT and "\0" not in text:
                return text
            problem = "is too long or holds a NUL"
        elif not text.isascii() or not text.isdigit() or len(text) > len(str(self.most)):
            problem = f"is a whole number, not {text[:40]!r}"
        elif not self.least <= int(text) <= self.most:
            problem = f"is from {self.least} to {self.most}, not {text}"
        else:
            return int(text)
        raise RequestError(400, f"the parameter {self.name!r} {problem}")


@dataclass(frozen=True)
class Call:
    """One call of an endpoint: decoded path segments, checked parameters and body.

    It is `authorized` if the request carries the token or its cookie.
    """

    site: Site
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    authorized: bool = False

    @cached_property
    def job(self) -> Job:
        """The job that the path names: looked up by its name, never as a path."""
        try:
            name = check_job_name(self.path["job"])
        except ConfigurationError as error:
            raise RequestError(400, str(error)) from error
        return self.site.jobs.get(name)


@dataclass(frozen=True)
class Endpoint:
    """An entry of the API: `handle` runs in a thread and returns what `answer` is the type of.

    Its path is below the API's prefix, with names in braces; `status` is that of a success. One
    whose `media` is not JSON returns a response.
    """

    method: str
    path: str
    doc: str
    answer: Any
    handle: Callable[[Call], object]
    query: tuple[Parameter, ...] = ()
    body: type[Body] | None = None
    status: int = 200
    media: str = JSON

    @property
    def names(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def parse_query(self, query: QueryParams) -> dict[str, str | int | None]:
        """Return the parameters; `RequestError` if one is unknown, missing, repeated or invalid."""
        known = {parameter.name for parameter in self.query}
        for name, _ in query.multi_items():
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise RequestError(400, f"unknown parameter {name[:40]!r}; there are: {listed}")
            if len(query.getlist(name)) > 1:
                raise RequestError(400, f"the parameter {name!r} is given more than once")
        return {p.name: p.parse(query.get(p.name)) for p in self.query}


async def in_thread(function: Callable[[], T]) -> T:
    """Run what reads storage beside the event loop, not too many at a time nor too long."""
    try:
        limiter = _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(_THREADS)
        _LIMITER.set(limiter)
    try:
        with fail_after(_TIMEOUT_S):
            return await to_thread.run_sync(function, limiter=limiter, abandon_on_cancel=True)
    except TimeoutError as error:
        raise RequestError(504, f"the storage did not answer within {_TIMEOUT_S:.0f} s") from error


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer in JSON."""
    return Response(msgspec.json.encode(value), status, headers, JSON)


def error_response(error: Exception, method: str, path: str) -> Response:
    """Return the answer for an error; an unexpected one is logged, its text never sent.

    The path comes without its query, which may hold a token.
    """
    headers: Mapping[str, str] | None = None
    if isinstance(error, HTTPException):
        status = error.status_code
        message = error.detail
        headers = error.headers
        kind = error.kind if isinstance(error, RequestError) else _KINDS.get(status, "Error")
    elif isinstance(error, TurnbackError):
        status = next((code for code, kinds in _STATUS if isinstance(error, kinds)), 500)
        kind = type(error).__name__
        message = str(error)
        if status >= 500:
            _LOG.error("%s %s: %s: %s", method, path, kind, message)
    else:
        _LOG.error("%s %s failed", method, path, exc_info=error)
        status = 500
        kind = "InternalError"
        message = "something unexpected went wrong; see the log of the dashboard"
    return json_response(ErrorAnswer(error=ErrorInfo(kind=kind, message=message)), status, headers)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what routing refuses: an unknown path, a wrong method."""
    if isinstance(error, HTTPException) and not isinstance(error, RequestError):
        messages = {404: "there is nothing at this address", 405: "not with this method"}
        detail = messages.get(error.status_code, error.detail)
        error = HTTPException(error.status_code, detail, error.headers)
    return error_response(error, request.method, request.url.path)


def api_route(site: Site, endpoint: Endpoint) -> Route:
    """Return the route of an endpoint."""

    async def handle(request: Request) -> Response:
        try:
            call = Call(
                site,
                {name: _decode(request.path_params[name]) for name in endpoint.names},
                endpoint.parse_query(request.query_params),
                await _read_body(request, endpoint),
                bool(request.scope.get("turnback.authorized")),
            )
            answer = await in_thread(lambda: endpoint.handle(call))
            if isinstance(answer, Response):
                return answer
            return json_response(answer, endpoint.status)
        except Exception as error:  # noqa: BLE001 - becomes an answer, and is logged there
            return error_response(error, request.method, request.scope["path"])

    return Route(PREFIX + endpoint.path, handle, methods=[endpoint.method])


async def _read_body(request: Request, endpoint: Endpoint) -> object:
    if endpoint.body is None:
        return None
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise RequestError(413, f"at most {MAX_BODY} bytes can be posted")
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=endpoint.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the request body is invalid: {error}") from error


def _decode(segment: str) -> str:
    """Return the text of one percent-encoded segment of a path."""
    try:
        text = unquote_to_bytes(segment).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(400, "the address is not encoded as UTF-8") from error
    if "\0" in text:
        raise RequestError(400, "the address holds a NUL")
    return text
