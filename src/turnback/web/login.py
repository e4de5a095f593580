"""Who may change things: the token in a header or the address, or a cookie given for it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from enum import Enum
from html import escape
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

PATH = "/session"
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
_HEADERS = {
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
_TOKEN_NEEDED = (
    "This dashboard needs a token. <code>turnback ui</code> printed it when it was started."
)
_TOKEN_WRONG = (
    "This token is not valid, or no longer. <code>turnback ui</code> printed the valid one when "
    "it was started."
)


class Credential(Enum):
    """What a request carries to show that it may change things."""

    NONE = "none"
    TOKEN = "token"
    COOKIE = "cookie"


class Session:
    """Checks tokens and cookies. Neither is ever logged.

    Args:
        token: The token.
        port: The server's port: browsers give cookies to all ports of a host, so the name says
            whose it is.
        root_path: The path below which the page is.
    """

    def __init__(self, token: str, port: int, root_path: str = "") -> None:
        self._token = token.encode()
        # Other servers on this host get to see the cookie; they must not learn the token from it.
        self._value = hmac.new(self._token, b"turnback session", hashlib.sha256).hexdigest()
        self._path = root_path or "/"
        self._cookie = f"turnback_{port}"

    def is_token(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "replace"), self._token)

    def credential(self, headers: Headers) -> Credential:
        given = headers.get("authorization", "")
        bearer = given[: len(_BEARER)].lower() == _BEARER
        if bearer and self.is_token(given[len(_BEARER) :].strip()):
            return Credential.TOKEN
        cookie = self._find_cookie(headers)
        if cookie and secrets.compare_digest(cookie.encode(), self._value.encode()):
            return Credential.COOKIE
        return Credential.NONE

    def log_in(self, target: str, *, secure: bool) -> Response:
        """Return the answer that gives the cookie and leads to an address without the token.

        Args:
            target: A path of ours, percent-encoded, with its query.
            secure: Whether the browser speaks TLS.
        """
        # Two slashes at the beginning would lead to another host.
        response = RedirectResponse("/" + target.lstrip("/\\"), 303, {"Cache-Control": "no-store"})
        response.set_cookie(
            self._cookie,
            self._value,
            path=self._path,
            httponly=True,
            samesite="strict",
            secure=secure,
        )
        return response

    def _find_cookie(self, headers: Headers) -> str | None:
        for header in headers.getlist("cookie"):
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self._cookie:
                    return value.strip()
        return None


def login_page(root_path: str, to: str = "/", *, wrong: bool = False) -> Response:
    """Return the page that asks for the token.

    Args:
        root_path: The path below which the page is.
        to: The path that was asked for, percent-encoded, without the former.
        wrong: Whether a token was given.
    """
    page = _PAGE.format(
        style=_STYLE,
        message=_TOKEN_WRONG if wrong else _TOKEN_NEEDED,
        action=root_path + PATH,
        to=escape(to),
    )
    return HTMLResponse(page, 401, {**_HEADERS, "WWW-Authenticate": "Bearer"})


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
