"""How far a file sink may have published its files, written down before it does.

Once a file is in place its reader may take it away, and the driver may be killed before anybody has
recorded the commit. A file that is neither staged nor in place was published if the record covers
it; otherwise it is lost.
"""

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from turnback.core.errors import NotFoundError
from turnback.sinks.staged import StagedFile
from turnback.storage.envelope import seal, unseal
from turnback.storage.local import LocalStorage

_KIND, _FORMAT = "published", 1
_NAME = re.compile(r"published-([1-9][0-9]*)")  # no reader of *.json takes it for data
_ATTEMPTS = 1000
"""How many attempts a record tells of; what it does not tell of is never taken for published."""

Epochs = dict[int, int]
"""By the attempt that staged files, the newest epoch of which some may have been published.

Attempts are kept apart because epochs are counted again when a job turns back.
"""


class _Record(msgspec.Struct, frozen=True):
    epochs: Epochs


class PublishRecord:
    """What attempts of a sink may have published.

    Each attempt that commits writes a file of its own, beside the directories where attempts stage:
    one that was replaced without knowing it cannot turn the record of its successor back.

    Args:
        root: The sink's directory.
        attempt: The attempt that writes.
    """

    def __init__(self, root: Path, attempt: int) -> None:
        self._root = root
        self._storage = LocalStorage(root)
        self._attempt = attempt
        self._own: dict[PurePosixPath, Epochs] = {}

    def covers(self, file: StagedFile) -> bool:
        """Return whether a file may have been published already.

        Raises:
            StorageError: A record cannot be read.
        """
        if file.attempt is None:
            return False
        return self._read(file.home).get(file.attempt, -1) >= file.epoch

    def extend(self, files: Iterable[StagedFile]) -> None:
        """Record that files are about to be published; durable on return.

        Raises:
            StorageError: It could not be written; nothing may be published.
        """
        new: dict[PurePosixPath, Epochs] = {}
        for file in files:
            if file.attempt is not None:
                _join(new.setdefault(file.home, {}), {file.attempt: file.epoch})
        for home, epochs in new.items():
            self._write(home, epochs)

    def _write(self, home: PurePosixPath, epochs: Epochs) -> None:
        first = home not in self._own
        known = self._read(home) if first else self._own[home]
        joined = _join(dict(known), epochs)
        if joined == known:
            return
        kept = dict(sorted(joined.items())[-_ATTEMPTS:])
        path = home / f"published-{self._attempt}"
        data = seal(_KIND, _FORMAT, msgspec.json.encode(_Record(kept)))
        self._storage.put(str(path), data)
        self._own[home] = kept
        if first:
            for older, writer in self._paths(home).items():
                if writer < self._attempt:
                    self._storage.delete(older)

    def _read(self, home: PurePosixPath) -> Epochs:
        while True:
            found: Epochs = {}
            try:
                for path in self._paths(home):
                    name = f"{self._storage.uri}/{path}"
                    _, body = unseal(_KIND, _FORMAT, self._storage.get(path), name)
                    _join(found, msgspec.json.decode(body, type=_Record).epochs)
                return found
            except NotFoundError:
                continue  # it was joined into a newer one meanwhile

    def _paths(self, home: PurePosixPath) -> dict[str, int]:
        """The files there are, and the attempts that wrote them."""
        directory = self._root / home
        names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        return {str(home / m[0]): int(m[1]) for m in map(_NAME.fullmatch, names) if m}


def _join(into: Epochs, other: Epochs) -> Epochs:
    for attempt, epoch in other.items():
        into[attempt] = max(epoch, into.get(attempt, epoch))
    return into
