from __future__ import annotations

from pathlib import Path
from typing import TextIO


class Tail:
    """Shows what is added to a file.

    Args:
        path: The file; it need not be there yet.
        out: Where to show it.
        start: The first byte to show.
    """

    def __init__(self, path: Path, out: TextIO, start: int = 0) -> None:
        self._path = path
        self._out = out
        self._at = start

    def show(self) -> None:
        """Show what has been added since."""
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
    block, data = 64 << 10, b""
    with path.open("rb") as file:
        end = at = file.seek(0, 2)
        while at > 0 and data.count(b"\n") <= most:
            at = max(0, at - block)
            file.seek(at)
            data = file.read(end - at)
    lines = data.decode(errors="replace").splitlines(keepends=True)
    return "".join(lines[-most:] if most else []), end
