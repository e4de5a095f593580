"""The dashboard as one ASGI application: everything is put together here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback.core.clock import Clock, SystemClock
from turnback.inspect.jobs import Jobs
from turnback.web.api import PREFIX, api_routes, in_thread
from turnback.web.assets import Assets
from turnback.web.endpoints import ENDPOINTS
from turnback.web.errors import error_response, json_response, on_http_error
from turnback.web.guard import Guard
from turnback.web.metrics import CONTENT_TYPE, exposition
from turnback.web.openapi import openapi
from turnback.web.site import Site

_Handler = Callable[[Request], Awaitable[Response]]
_PAGES = ("/", "/jobs", "/jobs/{rest:path}", "/savepoints")


def create_app(
    jobs: Jobs,
    *,
    token: str,
    host: str,
    port: int,
    read_only: bool = False,
    loopback: bool = True,
    ui_root_path: str = "",
    allowed_hosts: Sequence[str] = (),
    runs_dir: Path | None = None,
    savepoints_dir: str | None = None,
    clock: Clock | None = None,
) -> Starlette:
    """Return the dashboard. See `Site` for the arguments.

    Raises:
        ConfigurationError: One of them cannot be used.
    """
    return site_app(
        Site(
            jobs=jobs,
            token=token,
            host=host,
            port=port,
            read_only=read_only,
            loopback=loopback,
            root_path=ui_root_path.rstrip("/"),
            allowed_hosts=allowed_hosts,
            runs_dir=runs_dir,
            savepoints_dir=savepoints_dir,
            docs=_docs(),
            clock=clock or SystemClock(),
        )
    )


def site_app(site: Site) -> Starlette:
    """Return the application that serves a site."""
    assets = Assets(site.root_path)
    app = Starlette(
        routes=[
            *api_routes(site, ENDPOINTS),
            Route(f"{PREFIX}/openapi.json", _document(site)),
            Route("/metrics", _metrics(site)),
            Route("/static/{name:path}", assets.file),
            *(Route(path, assets.page) for path in _PAGES),
        ],
        middleware=[Middleware(Guard, site=site)],
        exception_handlers={HTTPException: on_http_error},
    )
    # A redirect to another spelling would be made from the Host header.
    app.router.redirect_slashes = False
    return app


def _document(site: Site) -> _Handler:
    content = openapi(ENDPOINTS, site.root_path)

    async def document(request: Request) -> Response:
        return json_response(content)

    return document


def _metrics(site: Site) -> _Handler:
    async def metrics(request: Request) -> Response:
        try:
            text = await in_thread(lambda: exposition(site.jobs, site.clock))
        except Exception as error:  # noqa: BLE001 - becomes an answer, and is logged there
            return error_response(error, request.method, request.scope["path"])
        return Response(text, media_type=CONTENT_TYPE)

    return metrics


def _docs() -> dict[str, str]:
    from turnback.config.options import OPTIONS

    return {option.key: option.doc for option in OPTIONS}
