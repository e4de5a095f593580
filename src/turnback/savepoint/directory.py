"""The directory of a savepoint, which is one as soon as its metadata is there."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from os import PathLike, fspath

import msgspec

from turnback.core.errors import (
    AlreadyExistsError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    NotFoundError,
    StorageError,
)
from turnback.savepoint.metadata import METADATA, SavepointMetadata, decode, encode
from turnback.storage.base import Storage, claim
from turnback.storage.digest import check
from turnback.storage.open import open_storage

WRITING = "_writing"
"""In a directory that a savepoint is being written into; holds its id and who writes it."""


class FileProblem(msgspec.Struct, frozen=True):
    """Something that keeps a savepoint from being restored.

    Attributes:
        path: The file, relative to the savepoint.
        reason: What is wrong with it.
    """

    path: str
    reason: str


class SavepointDirectory:
    """Where one savepoint is, or is being written.

    Args:
        storage: The directory itself.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._mark = b""

    @classmethod
    def locate(
        cls, location: str | PathLike[str], options: Mapping[str, str] | None = None
    ) -> SavepointDirectory:
        """Return the directory at a path or URI; nothing is read yet.

        Args:
            location: The directory, or the `_metadata.json` in it; as `open_storage` takes it.
            options: Settings of the storage.

        Raises:
            ConfigurationError: It is a file, or cannot be used.
        """
        text = fspath(location)
        head, slash, tail = text.rpartition("/")
        if tail == METADATA:
            text = (head or slash) or "."
        try:
            return cls(open_storage(text, options))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{fspath(location)} is not a savepoint: give its directory, or the {METADATA} in "
                f"it ({error})"
            ) from error

    @property
    def uri(self) -> str:
        """Where it is."""
        return self.storage.uri

    def begin(self, id: str) -> SavepointMetadata | None:
        """Take the directory for a savepoint that is to be written.

        A savepoint that another driver has begun under the same id is begun anew; that driver, if
        it lives on, cannot complete it any more.

        Returns:
            What was written under this id, if it is complete already.

        Raises:
            ConfigurationError: The directory is not empty.
            AlreadyExistsError: Another writer has taken it in this very moment.
        """
        found = self.storage.list()
        self._mark = f"{id} {uuid.uuid4().hex}".encode()
        if METADATA in found:
            metadata = self.load()
            if metadata.id == id:
                self.storage.delete(WRITING)
                return metadata
        elif not found:
            claim(self.storage, WRITING, self._mark)  # of two writers, one
            return None
        elif WRITING in found and self.storage.get(WRITING).split(b" ")[0] == id.encode():
            self.storage.put(WRITING, self._mark)
            for path in found:
                if path != WRITING:
                    self.storage.delete(path)
            return None
        raise ConfigurationError(
            f"{self.uri} is not empty: give the savepoint a directory of its own"
        )

    def complete(self, metadata: SavepointMetadata) -> None:
        """Make a savepoint of what was written since `begin`.

        Files that it does not name are deleted first: those of tasks that were tried twice would
        be read with the others by whoever reads a state's directory as plain Parquet.

        Raises:
            FencedError: Another driver has begun it anew since.
        """
        if not self._is_mine():
            raise FencedError(f"{self.uri}: another driver has begun this savepoint anew")
        named = metadata.files()
        for path in self.storage.list():
            if path not in named and path != WRITING:
                self.storage.delete(path)
        self.write_metadata(metadata)
        self.storage.delete(WRITING)

    def abandon(self) -> None:
        """Delete what was written since `begin`, the mark that it is ours last."""
        if not self._is_mine():
            return
        for path in self.storage.list():
            if path != WRITING:
                self.storage.delete(path)
        self.storage.delete(WRITING)

    def write_metadata(self, metadata: SavepointMetadata) -> None:
        """Make it a savepoint. Every file that is named has to be written before.

        Raises:
            AlreadyExistsError: Another savepoint is there already; it was not changed.
        """
        try:
            claim(self.storage, METADATA, encode(metadata))
        except AlreadyExistsError as error:
            raise AlreadyExistsError(
                f"{self.uri} already holds a savepoint: write each into a directory of its own"
            ) from error

    def load(self) -> SavepointMetadata:
        """Read what the savepoint says of itself.

        Raises:
            CheckpointNotFoundError: Nothing is there, or only a part of a savepoint.
            CorruptFileError: The metadata is damaged.
            FormatVersionError: It was written by a newer version.
        """
        try:
            data = self.storage.get(METADATA)
        except NotFoundError:
            raise self._no_savepoint() from None
        return decode(data, f"{self.uri}/{METADATA}")

    def verify(self) -> list[FileProblem]:
        """Read every file of the savepoint and compare it with what was recorded.

        Returns:
            What is wrong, nothing if it can be restored.

        Raises:
            CheckpointNotFoundError: There is no savepoint.
            FormatVersionError: It was written by a newer version.
            StorageError: The storage does not answer, so nothing can be said.
        """
        try:
            metadata = self.load()
        except CorruptFileError as error:
            return [FileProblem(METADATA, str(error))]
        problems = []
        for path, length, digest in metadata.entries():
            name = f"{self.uri}/{path}"
            try:
                check(self.storage.get(path), length, digest, name)
            except NotFoundError:
                problems.append(FileProblem(path, f"{name} is missing"))
            except CorruptFileError as error:
                problems.append(FileProblem(path, str(error)))
        return problems

    def delete(self) -> None:
        """Delete the savepoint: first the metadata, then the files it names, and nothing else.

        If it is interrupted, files are left that are no savepoint any more.

        Raises:
            CheckpointNotFoundError: There is no savepoint.
            CorruptFileError: The metadata is damaged, so its files are not known.
            FormatVersionError: It was written by a newer version.
        """
        metadata = self.load()
        self.storage.delete(METADATA)
        for path in metadata.files():
            self.storage.delete(path)

    def _is_mine(self) -> bool:
        try:
            return self.storage.get(WRITING) == self._mark
        except NotFoundError:
            return False

    def _no_savepoint(self) -> CheckpointNotFoundError:
        try:
            found = self.storage.list()
        except StorageError:
            found = [self.uri]  # whatever else is there, and cannot be read
        if not found:
            return CheckpointNotFoundError(
                f"no savepoint is at {self.uri}: the directory does not exist or is empty. Look "
                "for a directory with a _metadata.json in it"
            )
        return CheckpointNotFoundError(
            f"{self.uri} holds no {METADATA}: it is a partial savepoint, not usable, because "
            "writing it was interrupted or is still going on; or it is no savepoint at all. Use "
            "another savepoint or checkpoint"
        )

    def __repr__(self) -> str:
        return f"SavepointDirectory({self.uri!r})"
