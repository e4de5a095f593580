"""The narrow interface through which everything durable is written and read."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from turnback.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    NotFoundError,
    StorageError,
)

TEMPORARY = ".turnback-tmp-"
"""Prefix of files being written. No path may use it, and no listing shows it."""


class Storage(Protocol):
    """Whole files below one root, addressed by relative '/'-separated paths.

    Several processes may use the same root at once. Every method raises `StorageError` when the
    storage fails or does not answer; after such an error a write may or may not have happened.
    A path that is absolute, has an empty, '.' or '..' segment, holds a NUL or leads through a
    symbolic link is refused with `StorageError` before anything is touched.
    """

    uri: str

    def put(self, path: str, data: bytes) -> None:
        """Write or replace a file; durable on return, and readers see the old or the new bytes."""

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Write a file that must not be there yet; of racing writers exactly one succeeds.

        Durable on return, and what an `AlreadyExistsError` reports is durable as well. To tell a
        lost reply from a lost race use
        `put_if_absent_or_same`.

        Raises:
            AlreadyExistsError: A file is at this path; it was not changed.
        """

    def get(self, path: str) -> bytes:
        """Read a whole file; `NotFoundError` if none is at this path."""

    def list(self, prefix: str = "") -> builtins.list[str]:
        """Return the sorted paths, relative to the root, of all files below a directory.

        A directory that does not exist has no files. A failure is never reported as no files.
        """

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return what `list` does, with the bytes of each file."""

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """Return the sorted names of the directories directly inside a directory.

        Path rules and failures are those of `list`, but a link among the entries is left out. A
        directory without files may be left out or not.
        """

    def delete(self, path: str) -> None:
        """Remove a file for good; a missing one is fine."""


@runtime_checkable
class HasLeftovers(Protocol):
    """A storage in which a writer that is killed leaves a temporary file."""

    def leftovers(self, *, remove: bool = False) -> dict[str, int]:
        """Return the temporary files that nobody writes any more, with their bytes.

        Args:
            remove: Whether to delete them; what cannot be deleted is left out.
        """


@runtime_checkable
class DeletesMany(Protocol):
    """A storage that removes many files in much less time than one after the other."""

    def delete_many(self, paths: Sequence[str]) -> None:
        """Do what `delete` does with each; after an error some of them may be gone."""


def delete_files(storage: Storage, paths: Sequence[str]) -> dict[str, StorageError]:
    """Remove files for good, several at once if the storage can; return those it could not."""
    if isinstance(storage, DeletesMany) and len(paths) > 1:
        try:
            storage.delete_many(paths)
            return {}
        except StorageError:
            pass  # which ones it could not is found out below
    failed: dict[str, StorageError] = {}
    for path in paths:
        try:
            storage.delete(path)
        except StorageError as error:
            failed[path] = error
    return failed


def put_if_absent_or_same(storage: Storage, path: str, data: bytes) -> None:
    """Put a file if absent, and recognise our own bytes when the reply of the write was lost.

    The bytes must be unique to the caller (an attempt number, a nonce): two callers that put
    the same path with the same bytes both succeed.

    Raises:
        AlreadyExistsError: Other bytes are at this path.
        CommitStateUnknownError: The write may or may not have happened.
    """
    try:
        try:
            storage.put_if_absent(path, data)
        except AlreadyExistsError:
            raise
        except StorageError:
            # Asking once more settles what the first try did. Merely reading the bytes back
            # would not: after a failed sync they can be read and still be lost.
            storage.put_if_absent(path, data)
    except AlreadyExistsError:
        if not _holds(storage, path, data):
            raise
    except StorageError as error:
        raise _unknown(storage, path, error) from error


def _holds(storage: Storage, path: str, data: bytes) -> bool:
    try:
        return storage.get(path) == data
    except NotFoundError:
        return False  # whoever wrote it has deleted it since
    except StorageError as error:
        raise _unknown(storage, path, error) from error


def _unknown(storage: Storage, path: str, error: StorageError) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"{path} may or may not have been written to {storage.uri}: {error}"
    )


def split_path(path: str) -> builtins.list[str]:
    """Return the segments of a path, or raise `StorageError` if it could leave the root."""
    segments = path.split("/")
    for segment in segments:
        if segment in ("", ".", "..") or "\0" in segment or segment.startswith(TEMPORARY):
            raise StorageError(
                f"{path!r} is not a path inside the storage: use a relative path without empty, "
                f"'.' or '..' segments, NUL, or names that start with {TEMPORARY!r}"
            )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise StorageError(f"{path!r} is not a path inside the storage: not Unicode") from None
    return segments


def split_prefix(prefix: str) -> builtins.list[str]:
    """Return the segments of a directory to list; '' is the root, one trailing '/' is allowed."""
    return split_path(prefix.removesuffix("/")) if prefix else []
