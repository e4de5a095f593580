"""Runs the dashboard: one process, one port, until it is stopped."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import uvicorn

from turnback.core.errors import ConfigurationError
from turnback.web.app import create_app
from turnback.web.site import Site

_GRACE_S = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    site: Site,
    *,
    on_ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM, or until `stop` is set.

    With port 0 it takes any free port. `on_ready` is called with the address, without the token,
    once it answers.
    """
    with contextlib.closing(listen(site.host, site.port)) as listener:
        site = replace(site, port=listener.getsockname()[1])
        config = uvicorn.Config(
            create_app(site),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # addresses may hold the token
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        address = url(site.host, site.port, site.root_path)
        _Server(config, address, on_ready, stop).run([listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `ConfigurationError` if the address cannot be used."""
    if not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigurationError(f"a port is a number from 0 to 65535, not {port!r}")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except UnicodeError as error:
        raise ConfigurationError(f"{host[:80]!r} is not an address to listen on") from error
    except OSError as error:
        raise ConfigurationError(_explain(host, port, error)) from error


def url(host: str, port: int, root_path: str = "") -> str:
    """Return the address under which a browser on this machine finds the dashboard."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    if ":" in name:
        name = f"[{name}]"
    return f"http://{name}:{port}{root_path.rstrip('/')}/"


class _Server(uvicorn.Server):
    """uvicorn's server: reports when it is ready, and lets the caller go on after a signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        address: str,
        on_ready: Callable[[str], None] | None,
        stop: threading.Event | None,
    ) -> None:
        super().__init__(config)
        self._address = address
        self._on_ready = on_ready
        self._stop = stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_ready is not None and self.started:
            self._on_ready(self._address)

    async def on_tick(self, counter: int) -> bool:
        ended = await super().on_tick(counter)
        return ended or (self._stop is not None and self._stop.is_set())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _explain(host: str, port: int, error: OSError) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{where} is taken, perhaps by another dashboard: choose another port (--port, or "
            "--port 0 for any free one)"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{where} may not be used by this user: choose a port above 1023"
    return f"cannot listen on {where}: {error.strerror or error}. Choose an address of this machine"
