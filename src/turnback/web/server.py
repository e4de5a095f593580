"""Runs the dashboard: one process, one port, until it is told to stop."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import uvicorn

from turnback.core.errors import ConfigurationError
from turnback.inspect.jobs import Jobs
from turnback.web.app import create_app
from turnback.web.hosts import is_loopback

_GRACE_S = 3
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    jobs: Jobs,
    *,
    token: str,
    host: str = "127.0.0.1",
    port: int = 8081,
    read_only: bool = False,
    ui_root_path: str = "",
    allowed_hosts: Sequence[str] = (),
    runs_dir: Path | None = None,
    savepoints_dir: str | None = None,
    on_ready: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Serve the dashboard until SIGINT or SIGTERM.

    Looking needs no token only if the address is of this machine alone and no further names are
    allowed: those mean that a proxy lets others in.

    Args:
        jobs: The jobs.
        token: Whoever knows it may change things.
        host: The address to listen on.
        port: The port; 0 for any free one.
        read_only: Whether nobody may change anything.
        ui_root_path: The path below which a reverse proxy shows it.
        allowed_hosts: Further names by which browsers may call it.
        runs_dir: Log files are shown if they are below this directory.
        savepoints_dir: The configured directory for savepoints.
        on_ready: Called with the address, without the token, once it answers.
        stop: Ends it as well, when it is set.

    Raises:
        ConfigurationError: The address or the port cannot be used.
    """
    with contextlib.closing(listen(host, port)) as listener:
        bound = listener.getsockname()[1]
        app = create_app(
            jobs,
            token=token,
            host=host,
            port=bound,
            read_only=read_only,
            loopback=is_loopback(host) and not allowed_hosts,
            ui_root_path=ui_root_path,
            allowed_hosts=allowed_hosts,
            runs_dir=runs_dir,
            savepoints_dir=savepoints_dir,
        )
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,  # addresses may hold the token
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        _Server(config, url(host, bound, ui_root_path), on_ready, stop).run([listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigurationError: The address or the port cannot be used.
    """
    if not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConfigurationError(f"a port is a number from 0 to 65535, not {port!r}")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except UnicodeError as error:
        raise ConfigurationError(f"{host[:80]!r} is no address to listen on") from error
    except OSError as error:
        raise ConfigurationError(_explain(host, port, error)) from error


def url(host: str, port: int, root_path: str = "") -> str:
    """Return the address under which a browser on this machine finds the dashboard."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    if ":" in name:
        name = f"[{name}]"
    return f"http://{name}:{port}{root_path.rstrip('/')}/"


_PASSIVE = socket.AI_PASSIVE


class _Server(uvicorn.Server):
    """uvicorn's server: says when it is ready, and lets the caller go on after a signal."""

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
