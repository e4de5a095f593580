"""How endpoints are called over HTTP: parameters, routes, and errors as JSON answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback import errors
from turnback.config.options import OPTIONS
from turnback.core.ids import check_job_name, is_id
from turnback.errors import ConfigurationError, TurnbackError
from turnback.operations.deletion import Deleted, dispose
from turnback.views import model
from turnback.views.job import Job, ThroughputHistory
from turnback.views.model import View
from turnback.views.timeline import Timeline
from turnback.web.site import Site

if TYPE_CHECKING:
    from turnback.snapshot.snapshot import Snapshot


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
            problem = f"must be one of {', '.join(self.choices)}, not {text[:40]!r}"
        elif self.type is str:
            if len(text) <= _MAX_TEXT and "\0" not in text:
                return text
            problem = "is too long or contains a NUL"
        elif not text.isascii() or not text.isdigit() or len(text) > len(str(self.most)):
            problem = f"must be a whole number, not {text[:40]!r}"
        elif not self.least <= int(text) <= self.most:
            problem = f"must be between {self.least} and {self.most}, not {text}"
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
                raise RequestError(
                    400, f"unknown parameter {name[:40]!r}; known parameters: {listed}"
                )
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
        raise RequestError(504, f"the storage did not respond within {_TIMEOUT_S:.0f} s") from error


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
        message = "unexpected error; see the log of the dashboard"
    return json_response(ErrorAnswer(error=ErrorInfo(kind=kind, message=message)), status, headers)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what routing refuses: an unknown path, a wrong method."""
    if isinstance(error, HTTPException) and not isinstance(error, RequestError):
        messages = {
            404: "there is nothing at this address",
            405: "this address does not support this method",
        }
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
            raise RequestError(413, f"the request body is larger than {MAX_BODY} bytes")
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
        raise RequestError(400, "the address contains a NUL")
    return text


_CHECKPOINT = re.compile(r"chk-[0-9]{1,18}")


class About(model.View, frozen=True):
    """The dashboard itself.

    Attributes:
        read_only: Whether nobody may change anything here.
        authorized: Whether this request carried the token or its cookie.
        needs_token: Whether reading needs the token too, not only changing.
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


class SnapshotRow(model.View, frozen=True):
    """A snapshot that can be read.

    Attributes:
        id: "chk-7", or the savepoint's id.
        kind: "checkpoint" or "savepoint".
        checkpoint: Number of the checkpoint; of a savepoint, the one it was written from.
    """

    id: str
    kind: str
    created_ms: int
    label: str | None
    checkpoint: int
    epoch: int


class DeletedSavepoint(model.View, frozen=True, kw_only=True):
    """A savepoint that is gone."""

    job: str
    id: str
    path: str


@cache
def version() -> str:
    """Return the version of Turnback that is installed."""
    return metadata.version("turnback")


def about(call: Call) -> About:
    """Return what this dashboard is."""
    site = call.site
    return About(
        version=version(),
        read_only=site.read_only,
        authorized=call.authorized,
        needs_token=not site.is_local,
        root=site.jobs.root,
        savepoints_dir=site.savepoints_dir,
        now_ms=site.clock.now_ms(),
    )


def configuration(call: Call) -> list[model.ConfigRow]:
    """Return the configuration of a job, with what each key does."""
    docs = {option.key: option.doc for option in OPTIONS}
    rows = call.job.configuration()
    return [msgspec.structs.replace(row, doc=docs.get(row.key, "")) for row in rows]


def timeline(call: Call) -> Timeline:
    """Return the lives of a job, its ancestors and its forks."""
    return call.site.jobs.timeline(call.job)


def request(call: Call) -> model.RequestRow:
    """Return one request to a job."""
    return call.job.request(call.path["request"])


def snapshots(call: Call) -> list[SnapshotRow]:
    """Return the snapshots of a job that can be read, newest first."""
    rows = [
        SnapshotRow(m.name, "checkpoint", m.created_ms, None, m.number, m.epoch)
        for m in call.job.retained()
    ]
    rows += [
        SnapshotRow(row.id, "savepoint", row.created_ms, row.label, row.checkpoint, row.epoch)
        for row in call.job.savepoints()
        if row.exists is not False
    ]
    # By number, not by the clock; a savepoint comes after the checkpoint it was written from.
    return sorted(rows, key=lambda row: (row.checkpoint, row.kind, row.created_ms), reverse=True)


def snapshot(call: Call) -> model.SnapshotView:
    """Return what is in a snapshot."""
    from turnback.views.snapshots import describe

    return describe(_snapshot(call, call.path["snapshot"]))


def state(call: Call) -> model.StatePage:
    """Return some rows of a state."""
    from turnback.views.browse import page

    query = call.query
    return page(
        _snapshot(call, query["snapshot"]),
        query["uid"],
        query["state"],
        key=query["key"],
        after=query["after"],
        limit=query["limit"],
    )


def key(call: Call) -> model.KeyView:
    """Return what a state holds for a key, at the newest checkpoint of a job."""
    from turnback.views.browse import look_up

    query = call.query
    return look_up(
        call.job,
        query["uid"],
        query["state"],
        query["key"],
        after=query["after"],
        limit=query["limit"],
    )


def diff(call: Call) -> list[model.StateDiffRow]:
    """Return which states two snapshots of a job have."""
    from turnback.views.compare import states

    return states(_snapshot(call, call.query["from"]), _snapshot(call, call.query["to"]))


def diff_state(call: Call) -> model.DiffPage:
    """Return some differences of a state between two snapshots of a job."""
    from turnback.views.compare import page

    query = call.query
    return page(
        _snapshot(call, query["from"]),
        _snapshot(call, query["to"]),
        query["uid"],
        query["state"],
        after_cursor=query["after"],
        limit=query["limit"],
    )


def checkpoints(call: Call) -> model.CheckpointHistory:
    """Return the checkpoints of a job, the newest of them if so many are not wanted."""
    history = call.job.checkpoints()
    return msgspec.structs.replace(history, rows=history.rows[: call.query["limit"]])


def throughput(call: Call) -> ThroughputHistory:
    """Return how fast a job was in the last minutes."""
    return call.job.throughput(call.query["minutes"])


def delete_job(call: Call, *, savepoints: bool, job_id: str | None) -> Deleted:
    """Delete a job that does not run; one with another id than that is left alone."""
    from turnback.operations import deletion

    if job_id is not None and call.job.info().job_id != job_id:
        raise RequestError(
            409,
            f"job {call.job.name!r} has been started fresh in the meantime: reload it and "
            "try again",
            "Conflict",
        )
    return deletion.delete_job(call.job, call.site.jobs, savepoints=savepoints)


def delete_savepoint(call: Call) -> DeletedSavepoint:
    """Delete a savepoint of a job, by its whole id only: a request never names a path."""
    from turnback.snapshot.find import load_savepoint

    wanted = call.path["savepoint"]
    row = next((row for row in call.job.savepoints() if row.id == wanted), None)
    if row is None:
        raise RequestError(404, f"job {call.job.name!r} has no savepoint {wanted[:80]!r}")
    dispose(load_savepoint(row.path, call.job.options), call.site.jobs)
    return DeletedSavepoint(job=call.job.name, id=row.id, path=row.path)


def _snapshot(call: Call, text: str) -> Snapshot:
    """Return a snapshot of the job, by number or id only: a request never names a path."""
    known = text == "latest" or _CHECKPOINT.fullmatch(text) is not None
    if not known and is_id(text):
        known = any(row.id == text for row in call.job.savepoints())
    if not known:
        raise RequestError(
            404,
            f"job {call.job.name!r} has no snapshot {text[:80]!r}: use chk-N, latest or the id "
            "of a savepoint",
        )
    return call.job.snapshot(text)
