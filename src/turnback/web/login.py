"""The page that asks for the token, and what becomes of it."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from turnback.web.session import Session

PATH = "/session"
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
_ASK = "This dashboard needs a token. <code>turnback ui</code> printed it when it was started."
_WRONG = (
    "This token is not valid, or no longer. <code>turnback ui</code> printed the one that is when "
    "it was started."
)


def login_page(root_path: str, to: str = "/", *, wrong: bool = False) -> Response:
    """Return the page that asks for the token.

    Args:
        root_path: The path below which the page is.
        to: The path that was asked for, percent-encoded, without the former.
        wrong: Whether a token was given.
    """
    page = _PAGE.format(
        style=_STYLE,
        message=_WRONG if wrong else _ASK,
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


def enter(session: Session, target: str, *, secure: bool) -> Response:
    """Return the answer that gives the cookie and leads to an address of ours without the token.

    Args:
        session: Gives the cookie.
        target: A path of ours, percent-encoded, with its query.
        secure: Whether the browser speaks TLS.
    """
    # Two slashes at the beginning would lead to another host.
    response = RedirectResponse("/" + target.lstrip("/\\"), 303, {"Cache-Control": "no-store"})
    session.begin(response, secure=secure)
    return response


async def submitted(request: Request) -> tuple[str, str]:
    """Return the token in a submitted form, and the path that was asked for before."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_FORM:
            return "", "/"
    values = parse_qs(data.decode("latin-1"))
    return values.get("token", [""])[0].strip(), values.get("to", ["/"])[0]
