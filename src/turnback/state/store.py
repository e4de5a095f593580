from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class Changes(NamedTuple):
    """One atomic batch: first the clears, then the puts in order.

    Attributes:
        clears: Prefixes below which everything stored before is deleted.
        keys: Store keys to be put or deleted.
        values: The value of each key; None deletes it.
    """

    clears: list[bytes]
    keys: list[bytes]
    values: list[bytes | None]


MARKER = b"\0"
"""Store key of the marker; real keys are longer than 8 bytes."""


class LocalStore(Protocol):
    """A sorted map from bytes to bytes on this machine; a cache of state files, nothing more.

    Used by one thread at a time. What was written is there after `close`; after a crash the store
    is as it was after one of the earlier writes, or refuses to open.
    """

    def marker(self) -> bytes | None:
        """What the last write left as its marker; None when nothing was ever written."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All entries below a prefix, in key order."""

    def write(self, changes: Changes, marker: bytes) -> None:
        """Apply a batch and set the marker, both or neither."""

    def settle(self) -> None:
        """Called once when the store is up to date and about to be read."""

    def close(self) -> None:
        """Give up the store; what was written stays."""
