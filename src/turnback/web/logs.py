"""The log of a driver: its end, a search in it, and all of it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import msgspec
from starlette.responses import Response, StreamingResponse

from turnback.views import model
from turnback.web.api import Call, RequestError

MOST_SEARCHED = 256 << 20
"""So many bytes at the end of a log are searched."""
_LONGEST_LINE = 16 << 10
_LOOK_BACK = 64 << 10
_LEVEL = re.compile(
    rb"(?:[\d/:T,.+Z -]{8,40} )?\[?(TRACE|DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b\]? *[ :]"
    rb'|\{.{0,300}?"level": ?"([A-Z]+)"'
)
_TRACEBACK = b"Traceback (most recent call last):"
_CHAINED = (b"The above exception was", b"During handling of the above", b"Caused by: ")


class Severity(IntEnum):
    """How much a line of a log matters."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_LEVELS = {
    b"TRACE": Severity.DEBUG,
    b"DEBUG": Severity.DEBUG,
    b"INFO": Severity.INFO,
    b"WARN": Severity.WARNING,
    b"WARNING": Severity.WARNING,
}


def search_log(
    path: Path,
    most: int,
    most_bytes: int,
    *,
    text: str = "",
    level: Severity = Severity.DEBUG,
    after: int = 0,
    within: int = MOST_SEARCHED,
) -> LogLines:
    """Return the last lines that contain a text and are of a level, or of a higher one.

    Upper and lower case are the same. Lines without a level are output of the program, which
    counts as INFO, unless they are indented or part of a traceback: then they belong to the line
    before them. A traceback is an ERROR.

    Only the last `within` bytes are searched, from `after` on, which is `LogLines.end` of the last
    search; from the beginning if the file is shorter by now.
    """
    matches_line = _matcher(text, level)
    kept: deque[bytes] = deque()
    size = matches = 0
    unended = False
    with path.open("rb") as file:
        end = start = _first(file, after, within)
        if start and level > Severity.DEBUG:
            begin = max(start - _LOOK_BACK, 0)
            file.seek(begin)
            for line, at in _lines(file, begin):
                if at > start:
                    break
                matches_line(line)  # so that it knows what the next line belongs to
        file.seek(start)
        for line, at in _lines(file, start):
            is_whole = line.endswith(b"\n")
            if is_whole:
                end = at
            if not matches_line(line):
                continue
            unended = not is_whole
            matches += 1
            kept.append(line)
            size += len(line)
            while len(kept) > most or size > most_bytes:
                size -= len(kept.popleft())
    lines = tuple(line.decode(errors="replace").rstrip("\r\n") for line in kept)
    return LogLines(
        path=str(path),
        lines=lines,
        matches=matches,
        size=path.stat().st_size,
        start=start,
        end=end,
        unended=unended,
    )


def _matcher(text: str, level: Severity) -> Callable[[bytes], bool]:
    """Return what tells of each line in turn whether it is looked for."""
    wanted = text.lower().encode()
    levels = _Levels()

    def has_text(line: bytes) -> bool:
        if wanted.isascii():
            return wanted in line.lower()
        return wanted in line.decode(errors="replace").lower().encode()

    if level <= Severity.DEBUG:
        return has_text
    return lambda line: levels.of(line) >= level and has_text(line)


def _first(file: BinaryIO, after: int, within: int) -> int:
    """Return where the search begins: where it ended before, or at a line not too far back."""
    size = file.seek(0, 2)
    first = after if after <= size else 0
    if size - first <= within:
        return first
    first = file.seek(size - within)
    return next((at for _, at in _lines(file, first)), size)


def _lines(file: BinaryIO, at: int) -> Iterator[tuple[bytes, int]]:
    """Yield lines, each cut off where it is too long, and where in the file each ends."""
    while line := file.readline(_LONGEST_LINE):
        at += len(line)
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            rest = b""
            while not rest.endswith(b"\n") and (rest := file.readline(_LONGEST_LINE)):
                at += len(rest)
            line += b" [...]\n" if rest.endswith(b"\n") else b" [...]"
        yield line, at


class _Levels:
    """Tells the level of each line, one after the other."""

    def __init__(self) -> None:
        self._last = Severity.INFO
        self._in_traceback = False

    def of(self, line: bytes) -> Severity:
        match = _LEVEL.match(line)
        if match is not None:
            self._in_traceback = False
            self._last = _LEVELS.get(match[1] or match[2], Severity.ERROR)
        elif line.startswith(_TRACEBACK):
            self._in_traceback = True
            self._last = Severity.ERROR
        elif not (line[:1].isspace() or line.startswith(_CHAINED)):
            if not self._in_traceback:
                self._last = Severity.INFO
            self._in_traceback = False  # this is its last line, which names the error
        return self._last


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
        found = search_log(
            path,
            query["lines"],
            _MAX_BYTES,
            text=text,
            level=Severity[level] if level else Severity.DEBUG,
            after=query["after"] or 0,
            within=MOST_SEARCHED if filtered else _MAX_BYTES,
        )
    return found if filtered else msgspec.structs.replace(found, matches=None)


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
        raise RequestError(404, f"cannot read the log {path}: {error.strerror}") from error


def _blocks(file: BinaryIO, left: int) -> Iterator[bytes]:
    with file:
        while left > 0 and (block := file.read(min(left, _BLOCK))):
            left -= len(block)
            yield block


def _path(call: Call) -> Path:
    summary = call.job.summary()
    if summary.log is None:
        raise RequestError(
            404, f"job {call.job.name!r} has no log file: it was not started with `turnback run`"
        )
    path = _file_below(Path(summary.log), call.site.runs_dir)
    if path is None:
        host = summary.driver.host if summary.driver else "another machine"
        raise RequestError(404, f"the log {summary.log} is not on this machine; see {host}")
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
