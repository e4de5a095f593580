"""Reads committed output while it is being written, as any other program would."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from soak.verify import SINKS, read_file

_EPOCH = re.compile(r"part-(\d+)-")
_KEY = {"accounts": "account", "regions": "region"}


class Reader:
    """Reads every file once, as soon as it can be seen, and looks for what may never be seen.

    No number may be there twice, and no file may go away again.

    Args:
        out: Where the directories of the sinks are.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._files: dict[str, set[str]] = {sink: set() for sink in SINKS}
        self._numbers: dict[str, set[tuple[str, int]]] = {sink: set() for sink in SINKS}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read, name="soak-reader", daemon=True)
        self.epoch = 0
        self.epochs = 0
        self.problem: str | None = None

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read what is there now, and end."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def rows(self) -> int:
        """Return how many rows the sink that has the fewest has."""
        return min(len(numbers) for numbers in self._numbers.values())

    def _read(self) -> None:
        seen: set[int] = set()
        while self.problem is None:
            last = self._done.wait(0.3)
            try:
                for sink in SINKS:
                    seen |= self._look(sink)
            except (OSError, ValueError, KeyError) as error:
                self.problem = f"committed output cannot be read: {error!r}"
            self.epoch, self.epochs = max(seen, default=0), len(seen)
            if last:
                return

    def _look(self, sink: str) -> set[int]:
        """Read what is new; returns the epochs it belongs to."""
        directory, known = self._out / sink, self._files[sink]
        if not directory.is_dir():
            return set()
        names = {path.name for path in directory.glob("*.json")}
        gone = [name for name in known - names if not (directory / name).exists()]
        if gone:
            self.problem = f"committed files of {sink} have gone: {sorted(gone)[:5]}"
        epochs = set()
        for name in sorted(names - known):
            match = _EPOCH.match(name)
            if match is None:
                raise ValueError(f"{name} is not a name that the sink gives")
            epochs.add(int(match[1]))
            self._take(sink, name)
            known.add(name)
        return epochs

    def _take(self, sink: str, name: str) -> None:
        numbers = self._numbers[sink]
        for row in read_file(self._out / sink / name):
            number = (row[_KEY[sink]], row["count"])
            if number in numbers:
                self.problem = self.problem or f"{sink}: {number} is there twice, again in {name}"
            numbers.add(number)
