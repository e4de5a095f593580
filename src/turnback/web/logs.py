"""The log of a driver: its end, a search in it, and all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from turnback.launch.log_search import MOST_SEARCHED, Severity, search_log
from turnback.views import model
from turnback.web.api import Call, RequestError

TEXT = "text/plain; charset=utf-8"
LEVELS = tuple(level.name for level in Severity)
_MAX_BYTES = 1024 * 1024
_BLOCK = 256 * 1024


class LogLines(model.View, frozen=True, kw_only=True):
    """Lines of a driver's log: the last ones, or the last that match.

    Attributes:
        matches: How many lines match between `start` and `end`; None if all were asked for.
        size: Of the whole log, in bytes.
        start: Where the search began; what is before it was not looked at.
        end: What to give as `after` to go on from here.
        unended: Whether the last line is still being written; it comes again then.
    """

    path: str
    lines: tuple[str, ...]
    matches: int | None
    size: int
    start: int
    end: int
    unended: bool


def log(call: Call) -> LogLines:
    """Return lines of the driver's log, if that is on this machine."""
    path = _path(call)
    query = call.query
    text = query["text"] or ""
    level = query["level"]
    filtered = bool(text) or level is not None
    with _readable(path):
        part = search_log(
            path,
            query["lines"],
            _MAX_BYTES,
            text=text,
            level=Severity[level] if level else Severity.DEBUG,
            after=query["after"] or 0,
            within=MOST_SEARCHED if filtered else _MAX_BYTES,
        )
        size = path.stat().st_size
    return LogLines(
        path=str(path),
        lines=part.lines,
        matches=part.matches if filtered else None,
        size=size,
        start=part.start,
        end=part.end,
        unended=part.unended,
    )


def download(call: Call) -> Response:
    """Return the whole log as a file to keep; what is written meanwhile is not in it."""
    path = _path(call)
    name = quote(f"{call.job.name}.log", safe="")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    with _readable(path):
        file = path.open("rb")
        size = path.stat().st_size
    return StreamingResponse(_blocks(file, size), 200, headers, TEXT)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RequestError(404, f"the log {path} cannot be read: {error.strerror}") from error


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    with file:
        while left > 0 and (block := file.read(min(left, _BLOCK))):
            left -= len(block)
            yield block


def _path(call: Call) -> Path:
    summary = call.job.summary()
    if summary.log is None:
        raise RequestError(
            404, f"job {call.job.name!r} writes no log file: it was not started by `turnback run`"
        )
    path = _file_below(Path(summary.log), call.site.runs_dir)
    if path is None:
        host = summary.driver.host if summary.driver else "another machine"
        raise RequestError(
            404, f"the log {summary.log} is not among this machine's runs; see {host}"
        )
    return path


def _file_below(path: Path, directory: Path | None) -> Path | None:
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
