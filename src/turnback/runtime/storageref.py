from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from turnback.state.file import StateFile
from turnback.storage.base import Storage
from turnback.storage.open import open_storage


@dataclass(frozen=True)
class StorageRef:
    """Where files are or go; opened anew in every worker.

    Attributes:
        uri: The directory of a job or a savepoint.
        options: Credentials and endpoints of object stores.
        inline: Whether state travels inside messages (driver memory) instead.
    """

    uri: str
    options: dict[str, str] = field(default_factory=dict)
    inline: bool = False


@lru_cache(maxsize=8)
def _opened(uri: str, options: tuple[tuple[str, str], ...]) -> Storage:
    return open_storage(uri, dict(options))


def storage_of(ref: StorageRef) -> Storage:
    """The storage behind a reference, opened once per process."""
    return _opened(ref.uri, tuple(sorted(ref.options.items())))


def read_state(ref: StorageRef, file: StateFile) -> bytes:
    """The bytes of a state file, wherever they are."""
    return file.inline if file.inline is not None else storage_of(ref).get(file.path)
