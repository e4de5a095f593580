"""From endpoints to routes: reads requests, calls, and answers in JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnback.web.endpoint import Call, Endpoint, decoded
from turnback.web.errors import Refusal, error_response, json_response
from turnback.web.site import Site

PREFIX = "/api/v1"
MAX_BODY = 64 * 1024
_THREADS = 8
_TIMEOUT_S = 60.0

# One for each event loop: limits of one loop cannot be used in another.
_LIMITER: RunVar[CapacityLimiter] = RunVar("turnback_web_limiter")
T = TypeVar("T")


def api_routes(site: Site, endpoints: Sequence[Endpoint]) -> list[Route]:
    """Return the routes of the API."""
    return [
        Route(PREFIX + endpoint.path, _serve(site, endpoint), methods=[endpoint.method])
        for endpoint in endpoints
    ]


async def in_thread(function: Callable[[], T]) -> T:
    """Run what reads storage beside the event loop, not too many at a time.

    Raises:
        Refusal: It took too long.
    """
    try:
        limiter = _LIMITER.get()
    except LookupError:
        limiter = CapacityLimiter(_THREADS)
        _LIMITER.set(limiter)
    try:
        with fail_after(_TIMEOUT_S):
            return await to_thread.run_sync(function, limiter=limiter, abandon_on_cancel=True)
    except TimeoutError as error:
        raise Refusal(504, f"the storage did not answer within {_TIMEOUT_S:.0f} s") from error


def _serve(site: Site, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        try:
            call = Call(
                site,
                {name: decoded(request.path_params[name]) for name in endpoint.names},
                endpoint.read_query(request.query_params),
                await _body(request, endpoint),
                bool(request.scope.get("turnback.authorized")),
            )
            answer = await in_thread(lambda: endpoint.handle(call))
            return json_response(answer, endpoint.status)
        except Exception as error:  # noqa: BLE001 - becomes an answer, and is logged there
            return error_response(error, request.method, request.scope["path"])

    return serve


async def _body(request: Request, endpoint: Endpoint) -> object:
    if endpoint.body is None:
        return None
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise Refusal(413, f"at most {MAX_BODY} bytes can be posted")
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=endpoint.body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refusal(400, f"what was posted cannot be used: {error}") from error
