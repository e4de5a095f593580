"""Checks every request before anything else does: its host, its origin, its credential.

Whoever knows the token may change things. It comes in a header or in the address; a browser gets a
cookie for it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from html import escape
from urllib.parse import parse_qs, parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnback.web.api import MAX_BODY, RequestError, error_response
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
        self._wrong = LoginThrottle(site.clock.now_ms)

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
            is_by_person = scope["method"] in _READS and not _is_for_programs(path)
            if error.status_code == 401 and is_by_person:
                answer = login_page(self._site.root_path, path)
            else:
                answer = error_response(error, scope["method"], path)
        await (answer or self._app)(scope, receive, _with_headers(send))

    async def _check(self, scope: Scope, receive: Receive, path: str) -> Response | None:
        """Return an answer if the request ends here."""
        headers = Headers(scope=scope)
        method = scope["method"]
        self._check_host(headers)
        self._check_origin(headers, method, path)
        if method == "POST" and path == LOGIN_PATH:
            token, target = await read_form(Request(scope, receive))
            return self._log_in(scope, target, token)
        bearer = self._session.bearer(headers)
        if bearer is not None:
            self._check_token(scope, bearer)
        credential = self._session.credential(headers)
        scope["turnback.authorized"] = credential is not Credential.NONE
        if method == "GET" and not _is_for_programs(path):
            given = token_in_query(scope["query_string"])
            if given is not None:
                return self._log_in(scope, path, *given)
        if method == "POST":  # others are not served, which routing says
            self._check_change(headers, credential)
        if credential is Credential.NONE and not self._site.is_local:
            raise RequestError(401, "this dashboard requires its token", None, _CHALLENGE)
        return None

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1:
            raise RequestError(400, "a request must have exactly one Host header")
        if not self._site.hosts.accepts(given[0]):
            raise RequestError(
                403,
                f"this dashboard does not accept the host name {given[0][:80]!r}; to allow it, "
                "add it to the dashboard's allowed hosts",
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
            raise RequestError(
                403, "this request comes from a page of another site", "ForeignOrigin"
            )

    def _check_change(self, headers: Headers, credential: Credential) -> None:
        if self._site.read_only:
            raise RequestError(403, "this dashboard is read-only; use the command line", "ReadOnly")
        if credential is Credential.NONE:
            raise RequestError(
                401,
                "changes require the token that `turnback ui` printed",
                None,
                _CHALLENGE,
            )
        if credential is Credential.COOKIE and headers.get("x-turnback") != "1":
            raise RequestError(
                403, "requests with a cookie must have the header X-Turnback: 1", "ForeignOrigin"
            )
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RequestError(415, "the request body must be application/json")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise RequestError(413, f"the request body is larger than {MAX_BODY} bytes")

    def _log_in(self, scope: Scope, path: str, token: str, query: str = "") -> Response:
        if not self._check_token(scope, token):
            return login_page(self._site.root_path, path, wrong=True)
        target = self._site.root_path + path + (f"?{query}" if query else "")
        # Strict cookies do not follow a redirect that began on another site, or in a file.
        elsewhere = Headers(scope=scope).get("sec-fetch-site") in ("cross-site", "same-site")
        secure = scope.get("scheme") == "https"
        return self._session.log_in(target, secure=secure, elsewhere=elsewhere)

    def _check_token(self, scope: Scope, token: str) -> bool:
        """Return whether a token is right.

        Raises:
            RequestError: The client was wrong too often, so nothing is said.
        """
        client = (scope.get("client") or ("", 0))[0]
        wait_s = self._wrong.wait_s(client)
        if wait_s is not None:
            again = {"Retry-After": str(wait_s)}
            raise RequestError(429, f"too many wrong tokens: try again in {wait_s} s", None, again)
        right = self._session.is_token(token)
        if not right:
            self._wrong.count(client)
        return right


def _is_for_programs(path: str) -> bool:
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
            message.setdefault("headers", [])
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


# -- logging in

LOGIN_PATH = "/session"
_BEARER = "bearer "
_MAX_FORM = 8 * 1024
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:26rem;margin:18vh auto;padding:0 1.25rem}"
    "input,button{font:inherit;padding:.55rem .7rem;border-radius:.4rem;border:1px solid #8886}"
    "input{width:100%;box-sizing:border-box;margin:.3rem 0 .8rem}"
    "button{cursor:pointer}code{font-size:.9em}"
)
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_LOGIN_HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    # With no-referrer browsers would send the form with "Origin: null".
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Turnback</title><style>{style}</style></head>
<body><main><h1>Turnback</h1>
<p role="status">{message}</p>
<form method="post" action="{action}">
<input type="hidden" name="to" value="{to}">
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" autofocus required>
<button type="submit">Open the dashboard</button>
</form></main></body></html>
"""
_LEADING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Turnback</title>
<meta http-equiv="refresh" content="0; url={target}"></head>
<body><a href="{target}">Open the dashboard</a></body></html>
"""
_TOKEN_NEEDED = (
    "This dashboard requires a token, which <code>turnback ui</code> printed when it started."
)
_TOKEN_WRONG = (
    "This token is not or no longer valid. <code>turnback ui</code> printed the valid one when "
    "it started."
)


class Credential(Enum):
    """What a request carries to show that it may change things."""

    NONE = "none"
    TOKEN = "token"
    COOKIE = "cookie"


class Session:
    """Checks tokens and cookies. Neither is ever logged."""

    def __init__(self, token: str, port: int, root_path: str = "") -> None:
        self._token = token.encode()
        # Other servers on this host get to see the cookie; they must not learn the token from it.
        self._value = hmac.new(self._token, b"turnback session", hashlib.sha256).hexdigest()
        self._path = root_path or "/"
        # Browsers give cookies to all ports of a host, so the name says whose it is.
        self._cookie = f"turnback_{port}"

    def is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "replace"), self._token)

    def bearer(self, headers: Headers) -> str | None:
        """Return the token in the header, right or wrong."""
        given = headers.get("authorization", "")
        is_bearer = given[: len(_BEARER)].lower() == _BEARER
        return given[len(_BEARER) :].strip() if is_bearer else None

    def credential(self, headers: Headers) -> Credential:
        bearer = self.bearer(headers)
        if bearer is not None and self.is_token(bearer):
            return Credential.TOKEN
        parsed = (cookie_parser(header) for header in headers.getlist("cookie"))
        cookie = next((cookies[self._cookie] for cookies in parsed if self._cookie in cookies), "")
        if cookie and secrets.compare_digest(cookie.encode(), self._value.encode()):
            return Credential.COOKIE
        return Credential.NONE

    def log_in(self, target: str, *, secure: bool, elsewhere: bool = False) -> Response:
        """Return the answer that sets the cookie and leads to a path of ours, without the token.

        If the browser comes from `elsewhere`, it is a page that leads there.
        """
        # Two slashes at the beginning would lead to another host.
        target = "/" + target.lstrip("/\\")
        headers = {"Cache-Control": "no-store"}
        if elsewhere:
            page = _LEADING.format(target=escape(target))
            response: Response = HTMLResponse(page, 200, {**_LOGIN_HEADERS, **headers})
        else:
            response = RedirectResponse(target, 303, headers)
        response.set_cookie(
            self._cookie,
            self._value,
            path=self._path,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return response


def login_page(root_path: str, to: str = "/", *, wrong: bool = False) -> Response:
    """Return the page that asks for the token; `to`: where to go then, below the root path."""
    page = _PAGE.format(
        style=_STYLE,
        message=_TOKEN_WRONG if wrong else _TOKEN_NEEDED,
        action=root_path + LOGIN_PATH,
        to=escape(to),
    )
    return HTMLResponse(page, 401, {**_LOGIN_HEADERS, "WWW-Authenticate": "Bearer"})


def token_in_query(query: bytes) -> tuple[str, str] | None:
    """Return the token in a query and the query without it, `None` if there is no token."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    tokens = [value for name, value in pairs if name == "token"]
    if not tokens:
        return None
    return tokens[-1], urlencode([pair for pair in pairs if pair[0] != "token"])


async def read_form(request: Request) -> tuple[str, str]:
    """Return the token in a submitted form, and the path that was asked for before."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_FORM:
            return "", "/"
    values = parse_qs(data.decode("latin-1"))
    return values.get("token", [""])[0].strip(), values.get("to", ["/"])[0]


_MOST_CLIENTS = 1_000
_EVERYBODY = object()
_WINDOW_MS = 60_000
_MOST_WRONG = 10
"""So many tokens of a client may be wrong; then it has to wait, even with the right one."""
_MOST_OF_ALL = 200
"""The same for all clients together: one may appear as many."""


class LoginThrottle:
    """Counts the wrong tokens of each client, and of all clients, within the last minute."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._times: dict[Hashable, deque[int]] = {}

    def wait_s(self, client: str) -> int | None:
        """In how many seconds the client may try again; None if it need not wait."""
        longest = max(self._wait_ms(client, _MOST_WRONG), self._wait_ms(_EVERYBODY, _MOST_OF_ALL))
        return -(-longest // 1000) if longest > 0 else None

    def count(self, client: str) -> None:
        """Take note of a wrong token."""
        if len(self._times) > _MOST_CLIENTS:
            self._times = {_EVERYBODY: self._times[_EVERYBODY]}  # which still limits them
        for who in (client, _EVERYBODY):
            self._times.setdefault(who, deque()).append(self._now_ms())

    def _wait_ms(self, who: Hashable, most: int) -> int:
        times = self._times.get(who, deque())
        now = self._now_ms()
        while times and times[0] + _WINDOW_MS <= now:
            times.popleft()
        return times[0] + _WINDOW_MS - now if len(times) >= most else 0
