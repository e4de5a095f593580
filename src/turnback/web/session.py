"""Who may: the token in a header, or a cookie that was given for it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import Enum

from starlette.datastructures import Headers
from starlette.responses import Response

_BEARER = "bearer "


class Proof(Enum):
    """How a request shows that it may."""

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
        self.cookie = f"turnback_{port}"

    def is_token(self, text: str) -> bool:
        """Return whether this is the token."""
        return secrets.compare_digest(text.encode("utf-8", "replace"), self._token)

    def proof(self, headers: Headers) -> Proof:
        """Return how a request shows that it may."""
        given = headers.get("authorization", "")
        bearer = given[: len(_BEARER)].lower() == _BEARER
        if bearer and self.is_token(given[len(_BEARER) :].strip()):
            return Proof.TOKEN
        cookie = self._cookie_in(headers)
        if cookie and secrets.compare_digest(cookie.encode(), self._value.encode()):
            return Proof.COOKIE
        return Proof.NONE

    def begin(self, response: Response, *, secure: bool) -> None:
        """Give the cookie to a browser that has shown the token."""
        response.set_cookie(
            self.cookie,
            self._value,
            path=self._path,
            httponly=True,
            samesite="strict",
            secure=secure,
        )

    def _cookie_in(self, headers: Headers) -> str | None:
        for header in headers.getlist("cookie"):
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self.cookie:
                    return value.strip()
        return None
