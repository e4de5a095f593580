"""A server as a child process: a free port, a start with a time limit, an end by its pid."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Say whether something listens on this port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def running(
    command: Sequence[str | os.PathLike[str]],
    *,
    ready: Callable[[], bool],
    log: Path,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    timeout: float = 60,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, yield its process once `ready` says so, and stop it at the end.

    Args:
        command: Program and arguments.
        ready: Asked every 50 ms; must answer quickly and not raise.
        log: Where the server's output goes; its end is part of the error when the start fails.
        environment: Added to this process's environment.
        directory: Working directory.
        timeout: Seconds until the start counts as failed.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [os.fspath(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=directory,
        )
    try:
        _wait(process, ready, log, timeout)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], timeout: float = 10) -> None:
    """End a process: politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout)


def _wait(
    process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path, timeout: float
) -> None:
    end = time.monotonic() + timeout
    while not ready():
        if process.poll() is not None:
            problem = f"ended with status {process.returncode}"
        elif time.monotonic() > end:
            problem = f"was not ready after {timeout:g} s"
        else:
            time.sleep(0.05)
            continue
        tail = log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{process.args!r} {problem}; the end of its output:\n{tail}")
