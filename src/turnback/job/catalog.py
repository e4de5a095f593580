"""Which savepoints a job took: one small sealed file each, because storage cannot append."""

from __future__ import annotations

import builtins
import logging
import re
from collections.abc import Sequence

import msgspec

from turnback.core.ids import check_id, is_id
from turnback.errors import CorruptFileError, FormatVersionError, NotFoundError
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.envelope import decode_document, encode_document


class SavepointReplay(msgspec.Struct, frozen=True, kw_only=True):
    """How long all records that come after a savepoint can be read again, as of some time.

    Some of them may be `gone`; `until_ms` is about when the first will be, None if nothing says so.
    """

    gone: bool
    until_ms: int | None
    as_of_ms: int


class Replays(msgspec.Struct, frozen=True):
    """The savepoints of a job whose sources could be asked, by id."""

    savepoints: dict[str, SavepointReplay] = {}


_LOG = logging.getLogger(__name__)
DIRECTORY = "savepoints"
FORMAT = 1
_KIND = "savepoint-record"
_FILE = re.compile(rf"{DIRECTORY}/([^/]+)\.json")

Unreadable = CorruptFileError | FormatVersionError


class SavepointEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A completed savepoint; `checkpoint` and `epoch` are those it was written from."""

    id: str
    path: str
    created_ms: int
    checkpoint: int
    epoch: int
    label: str | None = None
    note: str | None = None
    scheduled: bool = False
    bytes: int = 0

    def __post_init__(self) -> None:
        check_id(self.id, "savepoint")


class SavepointCatalog:
    """The savepoints of one job: it records where they are, and never touches them."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def add(self, entry: SavepointEntry) -> None:
        """Record a savepoint; recording the same one again changes nothing."""
        put_if_absent_or_same(self._storage, _path(entry.id), encode_document(_KIND, FORMAT, entry))

    def get(self, id_: str) -> SavepointEntry:
        path = _path(check_id(id_, "savepoint"))
        name = f"{self._storage.uri}/{path}"
        data = self._storage.get(path)
        entry = decode_document(_KIND, FORMAT, data, name, SavepointEntry)
        if entry.id != id_:
            raise CorruptFileError(
                f"{name} contains the record of savepoint {entry.id}: it was copied or renamed"
            )
        return entry

    def list(self) -> builtins.list[SavepointEntry]:
        """Return the savepoints, oldest first; unreadable records are left out with a warning.

        Order follows the numbers of their checkpoints, never the clock.
        """
        entries, unreadable = self._scan()
        for error in unreadable:
            _LOG.warning("skipping a savepoint record: %s", error)
        return entries

    def count(self) -> int:
        """Return how many there are, unreadable ones included."""
        return len(self._ids())

    def latest(self, before_ms: int | None = None) -> SavepointEntry | None:
        """Return the newest savepoint, at all or at or before a time; `None` if there is none.

        Raises:
            CorruptFileError: A record cannot be read, so the newest is not known.
            FormatVersionError: A record was written by a newer version, likewise.
        """
        entries, unreadable = self._scan()
        for error in unreadable:
            raise type(error)(
                f"{error}. The newest savepoint is therefore unknown: specify one by its "
                "directory, or delete this record"
            ) from error
        known = (e for e in reversed(entries) if before_ms is None or e.created_ms <= before_ms)
        return next(known, None)

    def forget(self, id_: str) -> None:
        """Remove the record of a savepoint, not the savepoint; a missing one is fine."""
        self._storage.delete(_path(check_id(id_, "savepoint")))

    def _scan(self) -> tuple[builtins.list[SavepointEntry], builtins.list[Unreadable]]:
        entries: list[SavepointEntry] = []
        unreadable: list[Unreadable] = []
        for id_ in self._ids():
            try:
                entries.append(self.get(id_))
            except NotFoundError:
                continue
            except (CorruptFileError, FormatVersionError) as error:
                unreadable.append(error)
        entries.sort(key=lambda entry: (entry.checkpoint, entry.created_ms, entry.id))
        return entries, unreadable

    def _ids(self) -> builtins.list[str]:
        matches = filter(None, map(_FILE.fullmatch, self._storage.list(DIRECTORY)))
        return [match[1] for match in matches if is_id(match[1])]


def _path(id_: str) -> str:
    return f"{DIRECTORY}/{id_}.json"


def surplus(savepoints: Sequence[SavepointEntry], keep: int) -> list[SavepointEntry]:
    """Return which scheduled savepoints may go so that the newest `keep` of them stay.

    At least one stays, and so do all that users requested. Savepoints are given oldest first.
    """
    scheduled = [entry for entry in savepoints if entry.scheduled]
    return scheduled[: -max(keep, 1)]
