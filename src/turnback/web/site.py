"""What one dashboard serves, and to whom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from turnback.core.clock import Clock, SystemClock
from turnback.core.errors import ConfigurationError
from turnback.inspect.jobs import Jobs
from turnback.web.hosts import Hosts

_LEAST_TOKEN = 16
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is served, and to whom.

    Attributes:
        jobs: The jobs.
        token: Whoever knows it may change things.
        host: The address that is listened on.
        port: The port that is listened on.
        read_only: Whether nobody may change anything.
        loopback: Whether only this machine gets here; then looking needs no token.
        root_path: The path below which a reverse proxy shows it, such as "/turnback".
        allowed_hosts: Further names, with or without a port, by which browsers may call it.
        runs_dir: Log files are shown if they are below this directory.
        savepoints_dir: The configured directory for savepoints, to be shown.
        docs: What configuration keys do, by key.
        clock: Where time comes from.

    Raises:
        ConfigurationError: One of them cannot be used.
    """

    jobs: Jobs
    token: str = field(repr=False)
    host: str
    port: int
    read_only: bool = False
    loopback: bool = True
    root_path: str = ""
    allowed_hosts: Sequence[str] = ()
    runs_dir: Path | None = None
    savepoints_dir: str | None = None
    docs: Mapping[str, str] = field(default_factory=dict)
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        _check_token(self.token, self.loopback)
        _check_root_path(self.root_path)
        _ = self.hosts  # refuses what is no name

    @cached_property
    def hosts(self) -> Hosts:
        """The names it answers to."""
        return Hosts(self.host, self.port, self.allowed_hosts)


def _check_token(token: str, loopback: bool) -> None:
    if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
        raise ConfigurationError("the dashboard's token must be printable ASCII, without spaces")
    if " " in token:
        raise ConfigurationError("the dashboard's token must not hold spaces")
    if not loopback and len(token) < _LEAST_TOKEN:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters; reachable from other machines it "
            f"needs {_LEAST_TOKEN}. Leave it out to have one made"
        )


def _check_root_path(path: str) -> None:
    if not _ROOT_PATH.fullmatch(path):
        raise ConfigurationError(
            f"the path {path!r} cannot be used: write it as in /turnback, without a slash at the "
            "end"
        )
