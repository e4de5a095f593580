"""The dashboard as one ASGI application: everything is put together here."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback.web import api
from turnback.web.endpoints import ENDPOINTS, openapi
from turnback.web.guard import Guard
from turnback.web.metrics import CONTENT_TYPE, exposition
from turnback.web.site import Site

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
    document = openapi(ENDPOINTS, site.root_path)

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
        middleware=[Middleware(Guard, site=site)],
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
        # Always asked for again, hardly ever sent again: an upgrade shows at once.
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
