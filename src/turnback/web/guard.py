"""Checks every request before anything else does: its host, its origin, its credential."""

from __future__ import annotations

from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnback.web.api import MAX_BODY, RequestError, error_response
from turnback.web.login import PATH as LOGIN_PATH
from turnback.web.login import Credential, Session, login_page, read_form, token_in_query
from turnback.web.site import Site

_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_READS = ("GET", "HEAD")
_SAME_SITE = ("same-origin", "none")
_CHALLENGE = {"WWW-Authenticate": "Bearer"}


class Guard:
    """Middleware that refuses what may not pass, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site
        self._session = Session(site.token, site.port, site.root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request, and pass it on or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = dict(scope)
        scope["path"] = path = _encoded_path(scope, self._site.root_path)
        try:
            answer = await self._check(scope, receive, path)
        except RequestError as error:
            answer = self._refuse(error, scope, path)
        await (answer or self._app)(scope, receive, _with_headers(send))

    async def _check(self, scope: Scope, receive: Receive, path: str) -> Response | None:
        """Return an answer if the request ends here."""
        headers, method = Headers(scope=scope), scope["method"]
        self._check_host(headers)
        self._check_origin(headers, method, path)
        if method == "POST" and path == LOGIN_PATH:
            token, target = await read_form(Request(scope, receive))
            return self._log_in(scope, target, token)
        credential = self._session.credential(headers)
        scope["turnback.authorized"] = credential is not Credential.NONE
        if method == "GET" and not _is_for_programs(path):
            given = token_in_query(scope["query_string"])
            if given is not None:
                return self._log_in(scope, path, *given)
        if method not in _READS:
            self._check_change(headers, method, credential)
        if credential is Credential.NONE and not self._site.is_local:
            raise RequestError(401, "this dashboard needs its token", None, _CHALLENGE)
        return None

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1:
            raise RequestError(400, "a request needs one Host header")
        if not self._site.hosts.accepts(given[0]):
            raise RequestError(
                403,
                f"this dashboard is not called {given[0][:80]!r}; if it should be, start it with "
                "that name among its allowed hosts",
                "ForeignHost",
            )

    def _check_origin(self, headers: Headers, method: str, path: str) -> None:
        """Refuse what another site's page sends, as far as the browser says so."""
        if method in _READS and not _is_for_programs(path):
            return  # links from elsewhere to the page are welcome
        host = headers["host"].lower()
        own = (f"http://{host}", f"https://{host}")
        if not all(site in _SAME_SITE for site in headers.getlist("sec-fetch-site")) or not all(
            origin.lower() in own for origin in headers.getlist("origin")
        ):
            raise RequestError(403, "this request comes from another site's page", "ForeignOrigin")

    def _check_change(self, headers: Headers, method: str, credential: Credential) -> None:
        if method != "POST":
            return  # nothing here serves it: routing says which methods there are
        if self._site.read_only:
            raise RequestError(403, "this dashboard is read-only; use the command line", "ReadOnly")
        if credential is Credential.NONE:
            raise RequestError(
                401,
                "changing something needs the token that `turnback ui` printed",
                None,
                _CHALLENGE,
            )
        if credential is Credential.COOKIE and headers.get("x-turnback") != "1":
            raise RequestError(
                403, "with a cookie the header X-Turnback: 1 is needed", "ForeignOrigin"
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "what is posted must be application/json")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise RequestError(413, f"at most {MAX_BODY} bytes can be posted")

    def _log_in(self, scope: Scope, path: str, token: str, query: str = "") -> Response:
        if not self._session.is_token(token):
            return login_page(self._site.root_path, path, wrong=True)
        target = self._site.root_path + path + (f"?{query}" if query else "")
        return self._session.log_in(target, secure=scope.get("scheme") == "https")

    def _refuse(self, error: RequestError, scope: Scope, path: str) -> Response:
        if error.status_code == 401 and scope["method"] in _READS and not _is_for_programs(path):
            return login_page(self._site.root_path, path)
        return error_response(error, scope["method"], path)


def _is_for_programs(path: str) -> bool:
    """Return whether programs ask for this path, not people."""
    return path == "/metrics" or path == "/api" or path.startswith("/api/")


def _encoded_path(scope: Scope, root_path: str) -> str:
    """Return the path, still percent-encoded: a slash in a name must not become a separator."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw is not None else quote(scope["path"])
    path = path.partition("?")[0]
    if root_path and (path == root_path or path.startswith(root_path + "/")):
        path = path[len(root_path) :] or "/"
    return path


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            present = {name.lower() for name, _ in headers}
            headers += [
                (name.encode(), value.encode())
                for name, value in _HEADERS.items()
                if name.encode() not in present
            ]
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers
