"""The end of a driver's log, as far as it is on this machine."""

from __future__ import annotations

from pathlib import Path

from turnback.web.endpoint import Call
from turnback.web.errors import Refusal
from turnback.web.model import LogTail

_MOST_BYTES = 1024 * 1024


def log(call: Call) -> LogTail:
    """Return the last lines of the log of a job's driver."""
    summary = call.job.summary()
    if summary.log is None:
        raise Refusal(404, f"job {call.job.name!r} writes no log file: it was not started by `run`")
    path = _inside(Path(summary.log), call.site.runs_dir)
    if path is None:
        host = summary.driver.host if summary.driver else "another machine"
        raise Refusal(404, f"the log {summary.log} is not among this machine's runs; see {host}")
    return LogTail(path=str(path), lines=tuple(_tail(path, call.query["lines"])))


def _inside(path: Path, directory: Path | None) -> Path | None:
    """Return the file if it is really below the directory, whatever links say."""
    if directory is None or not path.is_absolute():
        return None
    try:
        real = path.resolve(strict=True)
        root = directory.resolve(strict=True)
        # Anything but a plain file could block, or never end.
        return real if real.is_relative_to(root) and real.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _tail(path: Path, count: int) -> list[str]:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        begin = max(0, size - _MOST_BYTES)
        file.seek(begin)
        # A log that is written right now may grow while it is read.
        lines = file.read(_MOST_BYTES).decode("utf-8", "replace").splitlines()
    return lines[1 if begin else 0 :][-count:]
