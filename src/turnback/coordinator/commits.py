"""Which checkpoints' sink work is known to be done, for each sink.

Every attempt writes a file of its own, and what is known is the highest of all files. So a driver
that was replaced without knowing it can never turn the record of its successor back.
"""

import re
from collections.abc import Collection

import msgspec

from turnback.core.errors import NotFoundError
from turnback.storage.base import Storage
from turnback.storage.envelope import seal, unseal

_KIND, _FORMAT = "committed", 1


class Committed(msgspec.Struct, frozen=True):
    """How far sinks are known to have committed.

    Attributes:
        number: Every sink has committed everything up to this checkpoint.
        sinks: By uid, the sinks that are known to be further.
    """

    number: int = 0
    sinks: dict[str, int] = {}

    def by(self, uid: str) -> int:
        """Return the highest checkpoint whose work this sink has done, or 0."""
        return max(self.number, self.sinks.get(uid, 0))

    def joined(self, other: "Committed") -> "Committed":
        """Return what the two know together."""
        number = max(self.number, other.number)
        further = {uid: max(self.by(uid), other.by(uid)) for uid in {**self.sinks, **other.sinks}}
        return Committed(number, {uid: n for uid, n in sorted(further.items()) if n > number})


class CommitRecords:
    """The records of all attempts of a job.

    Args:
        storage: The job directory.
        directory: Where in it the records are.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        # "committed.json" is from before each attempt had a file.
        self._name = re.compile(rf"{directory}/committed(?:-([1-9][0-9]*))?\.json")
        self._own: Committed | None = None

    def read(self) -> Committed:
        """Return what is known.

        Raises:
            CorruptFileError: A record is damaged.
        """
        while True:
            try:
                found = Committed()
                for path in self._paths():
                    found = found.joined(self._get(path))
                return found
            except NotFoundError:
                continue  # it was joined into a newer one meanwhile

    def write(self, attempt: int, number: int, sinks: Collection[str] | None = None) -> None:
        """Record that sinks have committed everything up to a checkpoint.

        Args:
            attempt: The attempt that records it, always the same for one object.
            number: The checkpoint.
            sinks: Their uids; None for all there are.
        """
        new = Committed(number) if sinks is None else Committed(0, dict.fromkeys(sinks, number))
        first = self._own is None
        before = self._own or self.read()
        known = before.joined(new)
        if known == before:
            return
        path = f"{self._directory}/committed-{attempt}.json"
        self._storage.put(path, seal(_KIND, _FORMAT, msgspec.json.encode(known)))
        self._own = known
        if first:
            for older, writer in self._paths().items():
                if writer < attempt:
                    self._storage.delete(older)

    def _paths(self) -> dict[str, int]:
        """The files there are, and the attempts that wrote them."""
        matches = map(self._name.fullmatch, self._storage.list(self._directory))
        return {match[0]: int(match[1] or 0) for match in matches if match}

    def _get(self, path: str) -> Committed:
        data = self._storage.get(path)
        _, body = unseal(_KIND, _FORMAT, data, f"{self._storage.uri}/{path}")
        return msgspec.json.decode(body, type=Committed)
