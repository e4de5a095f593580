"""What one dashboard serves, to whom, and under which names."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from turnback.core.clock import Clock, SystemClock
from turnback.errors import ConfigurationError
from turnback.views.jobs import Jobs

_MIN_TOKEN = 16
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_HTTP_PORT = 80


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is served, and to whom; `ConfigurationError` if that cannot be.

    Attributes:
        port: The port to listen on; `serve` takes 0 for any free one.
        root_path: The path below which a reverse proxy shows it, such as "/turnback".
        allowed_hosts: Further names, with or without a port, by which browsers may call it.
        runs_dir: Log files are shown if they are below this directory.
    """

    jobs: Jobs
    token: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8081
    read_only: bool = False
    root_path: str = ""
    allowed_hosts: Sequence[str] = ()
    runs_dir: Path | None = None
    savepoints_dir: str | None = None
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root_path", self.root_path.rstrip("/"))
        _check_token(self.token, self.is_local)
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigurationError(
                f"invalid root path {self.root_path!r}: expected a path such as /turnback"
            )
        _ = self.hosts  # refuses invalid names

    @property
    def is_local(self) -> bool:
        """Whether only this machine gets here; then looking needs no token.

        Further names mean that a proxy lets others in.
        """
        return is_loopback(self.host) and not self.allowed_hosts

    @cached_property
    def hosts(self) -> Hosts:
        return Hosts(self.host, self.port, self.allowed_hosts)


class Hosts:
    """The names a server answers to.

    A web page elsewhere can point a name of its own at this machine and then talk to it as if it
    were the same site (DNS rebinding). The Host header gives that away.
    """

    def __init__(self, host: str, port: int, allowed: Iterable[str] = ()) -> None:
        self._port = port
        self._host = host.strip("[]").lower()
        self._is_loopback = is_loopback(self._host)
        if isinstance(allowed, str):
            raise ConfigurationError(
                f"allowed hosts must be a list of names, not the string {allowed!r}"
            )
        self._allowed = [_parse_allowed(name) for name in allowed]

    def accepts(self, header: str) -> bool:
        """Return whether the value of a Host header is one of ours."""
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name, port = _split(match)
        if any(name == ours and other in (None, port) for ours, other in self._allowed):
            return True
        return (port or _HTTP_PORT) == self._port and self._is_ours(name)

    def _is_ours(self, name: str) -> bool:
        if is_loopback(name) or name == self._host:
            return True
        if self._is_loopback:
            return False
        if name == socket.gethostname().lower():
            return True
        # A name can be pointed anywhere, an address cannot.
        own = _address(self._host)
        listens_everywhere = self._host == "" or (own is not None and own.is_unspecified)
        return listens_everywhere and _address(name) is not None


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _parse_allowed(name: str) -> tuple[str, int | None]:
    match = _HOST.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigurationError(
            f"invalid allowed host {name!r}: expected a name such as jobs.example.org, or a name "
            "and a port"
        )
    return _split(match)


def _split(match: re.Match[str]) -> tuple[str, int | None]:
    return match[1].strip("[]").lower(), int(match[2]) if match[2] else None


def _check_token(token: str, is_local: bool) -> None:
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
        raise ConfigurationError("the dashboard's token must be printable ASCII without spaces")
    if not is_local and len(token) < _MIN_TOKEN:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters, but needs {_MIN_TOKEN} because "
            "other machines can reach the dashboard. Omit it to have one generated"
        )
