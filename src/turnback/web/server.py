"""The dashboard as one ASGI application, and the process that serves it on one port."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback.config.checkpointing import SavepointFormat
from turnback.errors import ConfigurationError
from turnback.job.request import RequestKind
from turnback.operations.deletion import Deleted
from turnback.views.job import Job
from turnback.views.model import JobSummary, RequestRow, SavepointRow
from turnback.web import api, logs
from turnback.web import api as views
from turnback.web.api import JSON, PREFIX, Body, Call, Endpoint, ErrorAnswer, Parameter
from turnback.web.guard import Guard
from turnback.web.metrics import CONTENT_TYPE, exposition
from turnback.web.site import Site

_JOB = "/jobs/{job}"
_FROM = Parameter("from", "the earlier snapshot: chk-N, latest or a savepoint's id", required=True)
_TO = Parameter("to", "the later snapshot: chk-N, latest or a savepoint's id", required=True)
_SNAPSHOT = Parameter("snapshot", "chk-N, latest or a savepoint's id", required=True)
_UID = Parameter("uid", "the operator's uid", required=True)
_STATE = Parameter("state", "the state's name", required=True)
_KEY = Parameter("key", "only rows of this key, as text of the key's type")
_ONE_KEY = Parameter("key", "the key, as text of its type", required=True)
_AFTER = Parameter("after", "`next` of the previous page")
_LIMIT = Parameter("limit", "maximum number of rows", int, least=1, most=1_000, default=50)
_NEWEST = Parameter(
    "limit", "maximum number, newest first; default: all", int, least=1, most=1_000_000
)
_MINUTES = Parameter(
    "minutes", "length of the period in minutes, up to now", int, most=10_080, default=30
)
_LINES = Parameter("lines", "maximum number of lines", int, least=1, most=5_000, default=200)
_TEXT = Parameter("text", "only lines that contain this text, ignoring case")
_LEVEL = Parameter("level", "only lines of this level or above", choices=logs.LEVELS)
_LOG_AFTER = Parameter(
    "after",
    "only lines after this offset: `end` of the previous response",
    int,
    least=0,
    most=1 << 53,
)
_REF = "#/components/schemas/{name}"


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


class DeleteBody(Body, frozen=True):
    """What is deleted with a job.

    Attributes:
        savepoints: Whether its savepoints go too.
        job_id: The id of the job that is meant; one that took its name meanwhile is left alone.
    """

    savepoints: bool = False
    job_id: str | None = None


class NoBody(Body, frozen=True):
    """Nothing has to be said."""


def _take_savepoint(call: Call) -> RequestRow:
    body: SavepointBody = call.body
    return call.job.submit(
        RequestKind.SAVEPOINT, label=body.label, note=body.note, format=body.format
    )


def _stop(call: Call) -> RequestRow:
    return call.job.submit(RequestKind.STOP, savepoint=call.body.savepoint, drain=call.body.drain)


def _cancel(call: Call) -> RequestRow:
    return call.job.submit(RequestKind.CANCEL, savepoint=call.body.savepoint)


def _delete(call: Call) -> Deleted:
    return views.delete_job(call, savepoints=call.body.savepoints, job_id=call.body.job_id)


def _get(path: str, doc: str, handle: Callable[[Call], object], *query: Parameter) -> Endpoint:
    return Endpoint("GET", _JOB + path, doc, _answer(handle), handle, query)


def _job(path: str, doc: str, read: Callable[[Job], object]) -> Endpoint:
    return Endpoint("GET", _JOB + path, doc, _answer(read), lambda call: read(call.job))


def _post(
    path: str, doc: str, body: type[Body], handle: Callable[[Call], object], status: int = 202
) -> Endpoint:
    return Endpoint("POST", _JOB + path, doc, _answer(handle), handle, body=body, status=status)


def _answer(function: Callable[..., object]) -> Any:
    return get_type_hints(function)["return"]


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/about", "This dashboard.", views.About, views.about),
    Endpoint("GET", "/jobs", "All jobs.", list[JobSummary], lambda call: call.site.jobs.list()),
    _job("", "A job and its graph.", Job.detail),
    _get("/checkpoints", "The checkpoints of a job, with a summary.", views.checkpoints, _NEWEST),
    _get(
        "/throughput",
        "The throughput of a job in records per second, including earlier attempts.",
        views.throughput,
        _MINUTES,
    ),
    _job("/savepoints", "The savepoints of a job, newest first.", Job.savepoints),
    _get(
        "/configuration",
        "The configuration of a job, with the origin of each value.",
        views.configuration,
    ),
    _job("/exceptions", "The exceptions and restarts of a job, newest first.", Job.failures),
    _get(
        "/timeline",
        "The attempts and savepoints of a job, its ancestors and its forks.",
        views.timeline,
    ),
    _job("/requests", "The requests to a job, newest first.", Job.requests),
    _get(
        "/requests/{request}",
        "One request to a job: its progress and result.",
        views.request,
    ),
    _post(
        "/savepoint",
        "Request a savepoint in the configured directory.",
        SavepointBody,
        _take_savepoint,
    ),
    _post(
        "/stop",
        "Stop a job, with a savepoint if configured, unless the body overrides it.",
        StopBody,
        _stop,
    ),
    _post("/cancel", "Cancel a job.", CancelBody, _cancel),
    _post("/delete", "Permanently delete a job that is not running.", DeleteBody, _delete, 200),
    _post(
        "/savepoints/{savepoint}/delete",
        "Permanently delete a savepoint that no job needs.",
        NoBody,
        views.delete_savepoint,
        200,
    ),
    Endpoint(
        "GET",
        "/savepoints",
        "The savepoints of all jobs, newest first.",
        list[SavepointRow],
        lambda call: call.site.jobs.savepoints(),
    ),
    _get(
        "/snapshots",
        "The readable snapshots of a job, newest first.",
        views.snapshots,
    ),
    _get(
        "/snapshots/{snapshot}",
        "The contents of a snapshot: chk-N, latest or a savepoint's id.",
        views.snapshot,
    ),
    _get(
        "/state",
        "Some rows of a state in a snapshot.",
        views.state,
        *(_SNAPSHOT, _UID, _STATE, _KEY, _AFTER, _LIMIT),
    ),
    _get(
        "/key",
        "The value of a state for one key, in the newest checkpoint of a job.",
        views.key,
        *(_UID, _STATE, _ONE_KEY, _AFTER, _LIMIT),
    ),
    _get("/diff", "The states of two snapshots of a job.", views.diff, _FROM, _TO),
    _get(
        "/diff/state",
        "Some differences of a state between two snapshots of a job.",
        views.diff_state,
        *(_FROM, _TO, _UID, _STATE, _AFTER, _LIMIT),
    ),
    _get(
        "/log",
        "The last lines of the driver's log, or the matching ones, if the log is on this machine.",
        logs.log,
        *(_LINES, _TEXT, _LEVEL, _LOG_AFTER),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/log/download",
        "The whole log of the driver, if it is on this machine.",
        str,
        logs.download,
        media=logs.TEXT,
    ),
)


def openapi(root_path: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the API."""
    with_body = [e for e in ENDPOINTS if e.body]
    types = [*(e.answer for e in ENDPOINTS), *(e.body for e in with_body), ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    bodies = dict(zip(with_body, schemas[len(ENDPOINTS) :], strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint, answer in zip(ENDPOINTS, schemas, strict=False):
        operation = _operation(endpoint, answer, bodies.get(endpoint))
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnback",
            "version": views.version(),
            "description": (
                "The API of the dashboard. Times are in milliseconds since 1970, sizes in "
                "bytes. Requests that change something require the token."
            ),
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    endpoint: Endpoint, answer: dict[str, Any], body: dict[str, Any] | None
) -> dict[str, Any]:
    words = [part.strip("{}") for part in endpoint.path.split("/") if part]
    operation: dict[str, Any] = {
        "operationId": "-".join([endpoint.method.lower(), *words]),
        "summary": endpoint.doc,
        "parameters": [_in_path(name) for name in endpoint.names]
        + [_in_query(parameter) for parameter in endpoint.query],
        "responses": {
            str(endpoint.status): {
                "description": "Done.",
                "content": {endpoint.media: {"schema": answer}},
            },
            "default": {
                "description": "The error.",
                "content": {JSON: {"schema": {"$ref": _REF.format(name="ErrorAnswer")}}},
            },
        },
        # Reads need it only where other machines get in.
        "security": [{"token": []}] if endpoint.method == "POST" else [{}, {"token": []}],
    }
    if body is not None:
        operation["requestBody"] = {"required": False, "content": {JSON: {"schema": body}}}
    return operation


def _in_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "percent-encoded, including slashes",
        "schema": {"type": "string"},
    }


def _in_query(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    if parameter.type is int:
        schema = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
        if parameter.default is not None:
            schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.doc,
        "schema": schema,
    }


_GRACE_S = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STATIC = Path(__file__).parent / "static"
_PAGES = ("/", "/jobs", "/jobs/{rest:path}", "/savepoints")
_INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


def create_app(site: Site) -> Starlette:
    """Return the application that serves a site."""
    assets = Assets(site.root_path)
    document = openapi(site.root_path)

    async def describe(request: Request) -> Response:
        return api.json_response(document)

    async def metrics(request: Request) -> Response:
        try:
            text = await api.in_thread(lambda: exposition(site.jobs, site.clock))
        except Exception as error:  # noqa: BLE001 - becomes an answer, and is logged there
            return api.error_response(error, request.method, request.scope["path"])
        return Response(text, media_type=CONTENT_TYPE)

    app = Starlette(
        routes=[
            *(api.api_route(site, endpoint) for endpoint in ENDPOINTS),
            Route(f"{api.PREFIX}/openapi.json", describe),
            Route("/metrics", metrics),
            Route("/static/{name:path}", assets.file),
            *(Route(path, assets.page) for path in _PAGES),
        ],
        middleware=[
            Middleware(Guard, site=site),
            Middleware(GZipMiddleware, minimum_size=2048, compresslevel=6),
        ],
        exception_handlers={HTTPException: api.on_http_error},
    )
    # A redirect to another spelling would be made from the Host header.
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    content: bytes
    type: str
    etag: str


class Assets:
    """The page's files: read once, served by exact name, so that no request can name another."""

    def __init__(self, root_path: str = "", directory: Path = STATIC) -> None:
        self._files = {
            path.relative_to(directory).as_posix(): _load(path, root_path)
            for path in sorted(directory.rglob("*"))
            if path.suffix in _TYPES and path.is_file() and not path.is_symlink()
        }

    def names(self) -> list[str]:
        return sorted(self._files)

    def file(self, request: Request) -> Response:
        return self._answer(request, request.path_params["name"])

    def page(self, request: Request) -> Response:
        """Answer with the page, which chooses by itself what to show at its address."""
        return self._answer(request, _INDEX)

    def _answer(self, request: Request, name: str) -> Response:
        asset = self._files.get(name)
        if asset is None:
            raise api.RequestError(404, f"the page has no file {name[:80]!r}")
        # Browsers revalidate every time and hardly ever load again: an upgrade shows at once.
        headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
        known = request.headers.get("if-none-match", "")
        if asset.etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return Response(None, 304, headers)
        return Response(asset.content, 200, headers, asset.type)


def _load(path: Path, root_path: str) -> Asset:
    content = path.read_bytes()
    if path.name == _INDEX and root_path:
        content = content.replace(b'"/static/', f'"{root_path}/static/'.encode())
    digest = hashlib.blake2b(content, digest_size=12).hexdigest()
    return Asset(content, _TYPES[path.suffix], f'"{digest}"')


# -- serving it


def serve(
    site: Site,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM, or until `stop` is set.

    With port 0 it takes any free port. `on_ready` is called with the address, without the token,
    once it answers.
    """
    with contextlib.closing(listen(site.host, site.port)) as listener:
        site = replace(site, port=listener.getsockname()[1])
        config = uvicorn.Config(
            create_app(site),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # addresses may hold the token
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        address = url(site.host, site.port, site.root_path)
        _Server(config, address, on_ready, stop).run([listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `ConfigurationError` if the address cannot be used."""
    if not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigurationError(f"a port must be a number from 0 to 65535, not {port!r}")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except UnicodeError as error:
        raise ConfigurationError(f"{host[:80]!r} is not an address to listen on") from error
    except OSError as error:
        raise ConfigurationError(_explain(host, port, error)) from error


def url(host: str, port: int, root_path: str = "") -> str:
    """Return the address under which a browser on this machine finds the dashboard."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    if ":" in name:
        name = f"[{name}]"
    return f"http://{name}:{port}{root_path.rstrip('/')}/"


class _Server(uvicorn.Server):
    """uvicorn's server: reports when it is ready, and lets the caller go on after a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        address: str,
        on_ready: Callable[[str], None] | None,
        stop: threading.Event | None,
    ) -> None:
        super().__init__(config)
        self._address = address
        self._on_ready = on_ready
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None and self.started:
            self._on_ready(self._address)

    async def on_tick(self, counter: int) -> bool:
        ended = await super().on_tick(counter)
        return ended or (self._stop is not None and self._stop.is_set())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _explain(host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is in use, perhaps by another dashboard: choose another port (--port, or "
            "--port 0 for any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"this user is not allowed to use {where}: choose a port above 1023"
    return f"cannot listen on {where}: {error.strerror or error}. Choose an address of this machine"
