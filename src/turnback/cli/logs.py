"""`turnback logs`: what a driver has printed, and what it prints next."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from turnback.cli.command import command, flag, number_option
from turnback.cli.context import Cli
from turnback.cli.parameters import job_argument
from turnback.core.errors import NotFoundError

if TYPE_CHECKING:
    from turnback.inspect.model import JobSummary

_POLL_S = 0.3
_BLOCK = 64 << 10


@command("logs", "turnback logs clicks", "turnback logs -f clicks", "turnback logs -l 20 clicks")
@job_argument
@flag("-f", "--follow", help="Go on as the job prints more.")
@number_option(
    "-l", "--lines", least=0, default=200, help="How many lines to begin with; 200 if left out."
)
def logs(cli: Cli, job_name: str, follow: bool, lines: int) -> None:
    """Show what the driver of a job has printed.

    It is kept on the machine where the job was started with turnback run, over all lives of the
    driver.
    """
    job = cli.job(job_name)
    path = _log_path(job.summary())
    if cli.json:
        text, _ = last_lines(path, lines)
        cli.out.document({"job": job.name, "path": str(path), "lines": text.splitlines()})
    else:
        print_log(path, lines, follow=follow)


def print_log(path: Path, lines: int, *, follow: bool) -> None:
    """Print the end of a file, and go on until Ctrl-C if asked to."""
    text, end = last_lines(path, lines)
    sys.stdout.write(text)
    sys.stdout.flush()
    tail = Tail(path, sys.stdout, end)
    with suppress(KeyboardInterrupt):
        while follow:
            tail.show()
            time.sleep(_POLL_S)


def _log_path(summary: JobSummary) -> Path:
    if summary.log is None:
        raise NotFoundError(
            f"job {summary.name!r} has no log that Turnback knows of: it was not started with "
            "turnback run, so its output is where it was started"
        )
    path = Path(summary.log)
    if not path.is_file():
        where = summary.driver.host if summary.driver is not None else "another machine"
        raise NotFoundError(
            f"the log of job {summary.name!r} is {summary.log} on {where}: it is not on this "
            "machine, or was removed"
        )
    return path


class Tail:
    """Shows what is added to a file."""

    def __init__(self, path: Path, out: TextIO, start: int = 0) -> None:
        self._path = path
        self._out = out
        self._at = start

    def show(self) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._at:  # the file was begun anew
            self._at = 0
        if size == self._at:
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read(size - self._at)
        self._at = size
        self._out.write(data.decode(errors="replace"))
        self._out.flush()


def last_lines(path: Path, most: int) -> tuple[str, int]:
    """Return the last lines of a file, and where it ended when they were read."""
    data = b""
    with path.open("rb") as file:
        end = at = file.seek(0, 2)
        while at > 0 and data.count(b"\n") <= most:
            at = max(0, at - _BLOCK)
            file.seek(at)
            data = file.read(end - at)
    lines = data.decode(errors="replace").splitlines(keepends=True)
    return "".join(lines[-most:] if most else []), end
