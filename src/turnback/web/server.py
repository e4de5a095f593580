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

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback.core.errors import ConfigurationError
from turnback.web import api
from turnback.web.endpoints import ENDPOINTS, openapi
from turnback.web.guard import Guard
from turnback.web.metrics import CONTENT_TYPE, exposition
from turnback.web.site import Site

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
        raise ConfigurationError(f"a port is a number from 0 to 65535, not {port!r}")
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
            f"{where} is taken, perhaps by another dashboard: choose another port (--port, or "
            "--port 0 for any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where} may not be used by this user: choose a port above 1023"
    return f"cannot listen on {where}: {error.strerror or error}. Choose an address of this machine"
