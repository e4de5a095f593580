"""The directory of a savepoint, which is one as soon as its metadata is there."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from os import PathLike, fspath

from turnback.errors import (
    AlreadyExistsError,
    CheckpointNotFoundError,
    ConfigurationError,
    NotFoundError,
    StillNeededError,
    StorageError,
)
from turnback.snapshot.metadata import (
    FILES,
    METADATA,
    SOURCES,
    STATE,
    SavepointMetadata,
    decode,
    encode,
)
from turnback.storage.base import Storage, put_if_absent_or_same
from turnback.storage.open import open_storage

WRITING = "_writing"
"""The mark of whoever begins to write a savepoint; holds its id and who that is.

Others that write the same savepoint add marks of their own, see `is_mark`.
"""
_TOKEN_LENGTH = 12
_WRITTEN = re.compile(
    rf"(?:{STATE}|{SOURCES}|{FILES})/(?:.+/)?(?:([0-9a-f]{{{_TOKEN_LENGTH}}})-)?[^/]+"
)


def is_mark(name: str) -> bool:
    """Return whether a file in the directory of a savepoint marks that it is being written."""
    return name == WRITING or name.startswith(f"{WRITING}-")


class SavepointDirectory:
    """Where one savepoint is, or is being written by a `writer` since `begin`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.writer = ""
        self._id = ""
        self._is_certain = True

    @classmethod
    def locate(
        cls, location: str | PathLike[str], options: Mapping[str, str] | None = None
    ) -> SavepointDirectory:
        """Return the directory at a path or URI; nothing is read yet.

        Args:
            location: The directory, or the `_metadata.json` in it; as `open_storage` takes it.
            options: Settings of the storage.
        """
        text = fspath(location)
        head, slash, tail = text.rpartition("/")
        if tail == METADATA:
            text = (head or slash) or "."
        try:
            return cls(open_storage(text, options))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{fspath(location)} is not a savepoint: use its directory, or the {METADATA} in "
                f"it ({error})"
            ) from error

    @property
    def uri(self) -> str:
        return self.storage.uri

    def begin(self, id: str) -> SavepointMetadata | None:
        """Take the directory for a savepoint that is to be written.

        Several drivers may write the same savepoint at once: one was taken for dead, and was not.
        Each gives its files names that begin with its own `writer`, and deletes no others; the
        first to `complete` it wins.

        Returns:
            What was written under this id, if it is complete already.

        Raises:
            ConfigurationError: The directory holds something else.
        """
        self._id = id
        self.writer = uuid.uuid4().hex[:_TOKEN_LENGTH]
        paths = self.storage.list()
        if METADATA not in paths:
            self._put_mark(paths)
            paths = self.storage.list()  # another may have been completed before we had our mark
        if METADATA not in paths:
            return None
        metadata = self.load()
        if metadata.id != id:
            self.abandon()
            raise self._not_empty()
        self._clear(metadata, self._marks(paths))
        return metadata

    def complete(self, metadata: SavepointMetadata) -> SavepointMetadata:
        """Make a savepoint of what was written since `begin`, unless another writer was first.

        Files of ours that it does not name are deleted before: those of tasks that were tried
        twice would be read with the others by whoever reads a state's directory as plain Parquet.

        Returns:
            The savepoint that is there: this one, or the one another writer of the same id has
            completed first; then nothing is left of this one.

        Raises:
            AlreadyExistsError: A savepoint of another id is there, and was not changed; or one of
                this id was there and has been deleted since.
            StorageError: It is not known whether it is complete; `begin` again to find out.
        """
        named = metadata.files()
        paths = self.storage.list()
        self._delete(path for path in paths if path not in named and self._is_mine(path))
        marks = self._marks(paths)  # those of other writers of this savepoint, and of nobody else
        try:
            self.write_metadata(metadata)
        except AlreadyExistsError:
            self.abandon()
            there = self._loaded()
            if there is None or there.id != metadata.id:
                raise
            return there
        except StorageError:
            self._is_certain = False
            raise
        self._require_mark(metadata)
        self._clear(metadata, marks)
        self._delete(path for path, writer in marks.items() if writer == self.writer)
        return metadata

    def abandon(self) -> None:
        """Delete what was written since `begin`, the mark that it is ours last.

        Nothing is deleted if `complete` could not tell whether a savepoint is made of it.
        """
        if not self._is_certain:
            return
        paths = self.storage.list()
        self._delete(path for path in paths if self._is_mine(path))
        self._delete(path for path, writer in self._marks(paths).items() if writer == self.writer)

    def write_metadata(self, metadata: SavepointMetadata) -> None:
        """Make it a savepoint. Every file that is named has to be written before.

        Raises:
            AlreadyExistsError: Another savepoint is there already; it was not changed.
        """
        try:
            put_if_absent_or_same(self.storage, METADATA, encode(metadata))
        except (AlreadyExistsError, NotFoundError) as error:  # not found: deleted in this moment
            raise AlreadyExistsError(
                f"{self.uri} already contains a savepoint: write each savepoint to its own "
                "directory"
            ) from error

    def load(self) -> SavepointMetadata:
        """Read the metadata; `CheckpointNotFoundError` if only a part of a savepoint is there."""
        try:
            data = self.storage.get(METADATA)
        except NotFoundError:
            raise self._no_savepoint() from None
        return decode(data, f"{self.uri}/{METADATA}")

    def delete(self) -> None:
        """Delete the savepoint: first the metadata, then the files it names, and nothing else.

        If it is interrupted, files are left that are no savepoint any more. Raises
        `StillNeededError` if another driver may still be writing it.
        """
        metadata = self.load()
        files = metadata.files()
        self._id = metadata.id
        writers = {_writer_of(path) for path in files}
        marks = self._marks(self.storage.list())
        if not writers.issuperset(marks.values()):
            # It could complete the savepoint once more, while whoever has done so clears up.
            raise StillNeededError(
                f"{self.uri}: another driver may still be writing this savepoint. Delete it "
                "again later; if no driver is running, remove the directory yourself"
            )
        self.storage.delete(METADATA)
        self._delete(files)
        self._delete(marks)

    def _put_mark(self, paths: list[str]) -> None:
        mark = f"{self._id} {self.writer}".encode()
        while METADATA not in paths:
            if self._marks(paths):
                self.storage.put(f"{WRITING}-{self.writer}", mark)
                return
            if not paths:
                try:
                    put_if_absent_or_same(self.storage, WRITING, mark)  # of two writers, one
                    return
                except (AlreadyExistsError, NotFoundError):  # not found: it has given up since
                    pass
            before = paths
            paths = self.storage.list()
            if paths and paths == before:
                raise self._not_empty()

    def _marks(self, paths: Iterable[str]) -> dict[str, str]:
        """The marks of all writers of this savepoint among some files, and whose they are."""
        marks: dict[str, str] = {}
        for path in paths:
            if not is_mark(path):
                continue
            try:
                id, _, writer = self.storage.get(path).decode("ascii", "replace").partition(" ")
            except NotFoundError:
                continue
            if id == self._id:
                # Before there were several writers, the names of files said nothing of theirs.
                marks[path] = writer if len(writer) == _TOKEN_LENGTH else ""
        return marks

    def _clear(self, metadata: SavepointMetadata, marks: Mapping[str, str]) -> None:
        """Delete what the other writers of a complete savepoint have left, their marks last.

        The writer that has completed it deletes its own mark: as long as that is there, it knows
        that nobody has cleared its files away.
        """
        named = metadata.files()
        winners = {_writer_of(path) for path in named}
        left = (path for path in self.storage.list() if path not in named)
        self._delete(path for path in left if _writer_of(path) in marks.values())
        self._delete(path for path, writer in marks.items() if writer not in winners)

    def _require_mark(self, metadata: SavepointMetadata) -> None:
        """Take the savepoint back if another writer had completed it before, and cleared up.

        That one was deleted then, or ours could not be there. Our files may be gone as well.
        """
        if not metadata.files() or self.writer in self._marks(self.storage.list()).values():
            return
        if self._loaded() == metadata:
            self.storage.delete(METADATA)
        self.abandon()
        raise AlreadyExistsError(
            f"{self.uri}: another driver completed this savepoint, and it has been deleted "
            "since. Take another one"
        )

    def _loaded(self) -> SavepointMetadata | None:
        try:
            return self.load()
        except CheckpointNotFoundError:
            return None  # deleted in this very moment

    def _is_mine(self, path: str) -> bool:
        return _writer_of(path) == self.writer

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.storage.delete(path)

    def _not_empty(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self.uri} is not empty: use a separate directory for the savepoint"
        )

    def _no_savepoint(self) -> CheckpointNotFoundError:
        try:
            is_empty = not self.storage.list()
        except StorageError:
            is_empty = False  # something is there, and cannot be read
        if is_empty:
            return CheckpointNotFoundError(
                f"there is no savepoint at {self.uri}: the directory does not exist or is empty. "
                "Use a directory that contains a _metadata.json"
            )
        return CheckpointNotFoundError(
            f"{self.uri} has no {METADATA}: either it is not a savepoint, or it is a partial "
            "savepoint, which is not usable because writing it was interrupted or is still in "
            "progress. Use another savepoint or checkpoint"
        )

    def __repr__(self) -> str:
        return f"SavepointDirectory({self.uri!r})"


def _writer_of(path: str) -> str | None:
    """Who wrote a file of a savepoint, '' if its name does not say; None for any other file."""
    match = _WRITTEN.fullmatch(path)
    return (match[1] or "") if match else None
