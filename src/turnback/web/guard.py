"""Stands before everything: who calls, by which name, from where, and may they?"""

from __future__ import annotations

from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnback.web import login
from turnback.web.api import MAX_BODY
from turnback.web.errors import Refusal, error_response
from turnback.web.session import Proof, Session
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
_SAME = ("same-origin", "none")


class Guard:
    """Refuses what may not pass, and gives every answer its headers.

    Args:
        app: What it stands before.
        site: What is served, and to whom.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site
        self._session = Session(site.token, site.port, site.root_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = dict(scope)
        scope["path"] = path = _encoded_path(scope, self._site.root_path)
        sending = _with_headers(send)
        try:
            answer = await self._answer(scope, receive, path)
        except Refusal as refusal:
            answer = self._refused(refusal, scope, path)
        await (answer or self._app)(scope, receive, sending)

    async def _answer(self, scope: Scope, receive: Receive, path: str) -> Response | None:
        """Return an answer if the request ends here."""
        headers, method = Headers(scope=scope), scope["method"]
        self._check_host(headers)
        self._check_site(headers, method, path)
        if method == "POST" and path == login.PATH:
            return await self._log_in(scope, receive)
        proof = self._session.proof(headers)
        scope["turnback.authorized"] = proof is not Proof.NONE
        if method == "GET" and not _is_machine(path):
            shown = login.token_in_query(scope["query_string"])
            if shown is not None:
                return self._enter(scope, path, *shown)
        if method not in _READS:
            self._check_change(headers, method, proof)
        if proof is Proof.NONE and not self._site.loopback:
            raise Refusal(401, "this dashboard needs its token", None, _CHALLENGE)
        return None

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        if len(given) != 1:
            raise Refusal(400, "a request needs one Host header")
        if not self._site.hosts.knows(given[0]):
            raise Refusal(
                403,
                f"this dashboard is not called {given[0][:80]!r}; if it should be, start it with "
                "that name among its allowed hosts",
                "ForeignHost",
            )

    def _check_site(self, headers: Headers, method: str, path: str) -> None:
        """Refuse what another site's page sends, as far as the browser says so."""
        if method in _READS and not _is_machine(path):
            return  # links from elsewhere to the page are welcome
        host = headers["host"].lower()
        own = (f"http://{host}", f"https://{host}")
        if not all(site in _SAME for site in headers.getlist("sec-fetch-site")) or not all(
            origin.lower() in own for origin in headers.getlist("origin")
        ):
            raise Refusal(403, "this request comes from another site's page", "ForeignOrigin")

    def _check_change(self, headers: Headers, method: str, proof: Proof) -> None:
        if method != "POST":
            return  # nothing here serves it: routing says which methods there are
        if self._site.read_only:
            raise Refusal(403, "this dashboard only shows; use the command line", "ReadOnly")
        if proof is Proof.NONE:
            raise Refusal(
                401,
                "changing something needs the token that `turnback ui` printed",
                None,
                _CHALLENGE,
            )
        if proof is Proof.COOKIE and headers.get("x-turnback") != "1":
            raise Refusal(403, "with a cookie the header X-Turnback: 1 is needed", "ForeignOrigin")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, "what is posted must be application/json")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY:
            raise Refusal(413, f"at most {MAX_BODY} bytes can be posted")

    def _enter(self, scope: Scope, path: str, token: str, query: str) -> Response:
        if not self._session.is_token(token):
            return login.login_page(self._site.root_path, path, wrong=True)
        target = self._site.root_path + path + (f"?{query}" if query else "")
        return login.enter(self._session, target, secure=scope.get("scheme") == "https")

    async def _log_in(self, scope: Scope, receive: Receive) -> Response:
        token, to = await login.submitted(Request(scope, receive))
        return self._enter(scope, to, token, "")

    def _refused(self, refusal: Refusal, scope: Scope, path: str) -> Response:
        if refusal.status_code == 401 and scope["method"] in _READS and not _is_machine(path):
            return login.login_page(self._site.root_path, path)
        return error_response(refusal, scope["method"], path)


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def _is_machine(path: str) -> bool:
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
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", []))
            there = {name.lower() for name, _ in headers}
            headers += [
                (name.encode(), value.encode())
                for name, value in _HEADERS.items()
                if name.encode() not in there
            ]
            message = {**message, "headers": headers}
        await send(message)

    return sending
