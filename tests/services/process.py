"""A server as a child process: a free port, a start with a time limit, an end by its pid."""

import os
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar


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


def until_stopped(pid: int, timeout: float = 60) -> None:
    """Wait until no thread of a process runs that was sent SIGSTOP: on a busy machine some still
    answer for a while.
    """
    end = time.monotonic() + timeout
    threads = Path(f"/proc/{pid}/task")
    while not all(_state(thread) == "T" for thread in threads.iterdir()):
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} still runs {timeout:g} s after SIGSTOP")
        time.sleep(0.01)


def _state(thread: Path) -> str:
    """R for one that runs, T for one that is stopped, X for one that has ended; see proc(5)."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


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


@dataclass
class Restartable(ABC):
    """A server that can be crashed, and started again on the same data and port.

    Attributes:
        directory: Its data, and its output in the file `log`.
        process: The one that runs, or ran last.
    """

    port: int
    directory: Path
    command: Sequence[str | os.PathLike[str]]
    process: subprocess.Popen[bytes] = field(init=False)

    @abstractmethod
    def is_ready(self) -> bool:
        """Say whether it takes connections; has to answer quickly and not to raise."""

    def start(self) -> None:
        """Start it and wait until it is ready."""
        path = self.directory / "log"
        with path.open("ab") as log:
            self.process = subprocess.Popen(
                [os.fspath(part) for part in self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        _wait(self.process, self.is_ready, path, timeout=180)

    def crash(self) -> None:
        """End the server as a crash of its machine would."""
        self.process.kill()
        self.process.wait(20)


R = TypeVar("R", bound=Restartable)


@contextmanager
def started(server: R) -> Iterator[R]:
    """Run a server whose data nobody needs afterwards."""
    try:
        server.start()
        yield server
    finally:
        if server.process.poll() is None:
            server.crash()  # an orderly end waits for connections that are still open


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
