"""Which names this server is called by.

A web page elsewhere can point a name of its own at this machine and then talk to it as if it were
the same site (DNS rebinding). The Host header gives that away.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from turnback.core.errors import ConfigurationError

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_HTTP = 80


class Hosts:
    """The names this server answers to.

    Args:
        host: The address that is listened on.
        port: The port that is listened on.
        allowed: Further names, with or without a port.

    Raises:
        ConfigurationError: One of those is no name.
    """

    def __init__(self, host: str, port: int, allowed: Iterable[str] = ()) -> None:
        self._port = port
        self._host = host.strip("[]").lower()
        self._is_loopback = is_loopback(self._host)
        if isinstance(allowed, str):
            raise ConfigurationError(f"allowed hosts are a list of names, not the text {allowed!r}")
        self._allowed = [_parse_allowed(name) for name in allowed]

    def knows(self, header: str) -> bool:
        """Return whether the value of a Host header is one of ours."""
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name, port = match[1].strip("[]").lower(), int(match[2]) if match[2] else None
        if any(name == ours and other in (None, port) for ours, other in self._allowed):
            return True
        return (port or _HTTP) == self._port and self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        if is_loopback(name) or name == self._host:
            return True
        if self._is_loopback:
            return False
        if name == socket.gethostname().lower():
            return True
        # A name can be pointed anywhere, an address cannot.
        return _is_unspecified(self._host) and _is_address(name)


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_allowed(name: str) -> tuple[str, int | None]:
    match = _HOST.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigurationError(
            f"{name!r} cannot be an allowed host: write a name such as jobs.example.org, or a name "
            "and a port"
        )
    return match[1].strip("[]").lower(), int(match[2]) if match[2] else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_unspecified(name: str) -> bool:
    return name == "" or (_is_address(name) and ipaddress.ip_address(name).is_unspecified)
