import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from turnback.core.errors import SinkError, StorageError
from turnback.sinks.base import CommitterContext
from turnback.sinks.handle import name_sink
from turnback.sinks.owner import Ownership
from turnback.sinks.published import PublishRecord
from turnback.sinks.staged import StagedFile, attempt_directory, sink_directory, task_of
from turnback.storage.base import TEMPORARY
from turnback.storage.directory import make_directories, sync_directory


class FileCommitter:
    """Renames staged files into place."""

    def __init__(self, root: Path, ctx: CommitterContext) -> None:
        self._root, self._ctx = root, ctx
        self._name = name_sink(ctx.job, ctx.uid)
        home = attempt_directory(root, ctx)
        with self._failures("create", home):
            make_directories(home)
        self._check_inside(home)
        self._ownership = Ownership(root, ctx)
        self._published = PublishRecord(root, ctx.attempt)

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Rename files into place; one that is there already, or was and was taken, is done.

        1. look for all of them, before anything says that they may have been published
        2. record that they may be, then rename
        """
        files = [StagedFile.decode(t, self._ctx) for t in transactions]
        if not files:
            return
        self._ownership.check()
        waiting = [file for file in files if self._is_waiting(file)]
        with self._failures("record what is committed to", self._root):
            self._published.extend(waiting)
        for file in waiting:
            self._publish(file)
        # Also when all were there: the process that renamed them may have died before this.
        with self._failures("sync", self._root):
            sync_directory(self._root)
        self._remove_losers(files)

    def abort(self, transactions: Sequence[bytes]) -> None:
        """Remove staged files."""
        for transaction in transactions:
            staged = self._locate(StagedFile.decode(transaction, self._ctx))
            with self._failures("remove", staged):
                staged.unlink(missing_ok=True)

    def recover(self, pending: Sequence[bytes]) -> None:
        """Commit `pending`, then remove whatever older attempts have left."""
        self.commit(pending)
        home = sink_directory(self._root, self._ctx)
        with self._failures("list", home):
            found = [path for path in home.iterdir() if not path.is_symlink()]
        for path in found:
            with self._failures("remove", path):
                if path.name.startswith(TEMPORARY):
                    path.unlink(missing_ok=True)
                elif path.name.isdecimal() and int(path.name) < self._ctx.attempt:
                    _remove_directory(path)

    def discard_others(self, known: Sequence[bytes]) -> None:
        """Remove the files of this attempt that are in none of the transactions."""
        kept = {self._root / StagedFile.decode(t, self._ctx).staged for t in known}
        home = attempt_directory(self._root, self._ctx)
        with self._failures("clean", home):
            for path in list(home.iterdir()):
                if path not in kept and task_of(path.name) is not None:
                    path.unlink(missing_ok=True)

    def _is_waiting(self, file: StagedFile) -> bool:
        """Return whether a file is to be published; False if that has been done."""
        staged, final = self._locate(file), self._root / file.final
        with self._failures("commit", staged):
            try:
                length = staged.stat().st_size
            except FileNotFoundError:
                if final.is_file() or self._published.covers(file):
                    return False
                raise self._lost(file) from None
        if length != file.length:
            raise SinkError(
                f"{self._name}: {staged} has {length} bytes, {file.length} were written; "
                "it was changed from outside and has not been committed"
            )
        return True

    def _publish(self, file: StagedFile) -> None:
        staged, final = self._root / file.staged, self._root / file.final
        with self._failures("commit", staged):
            try:
                staged.rename(final)
            except FileNotFoundError:
                if not final.is_file():
                    raise self._lost(file) from None

    def _lost(self, file: StagedFile) -> SinkError:
        return SinkError(
            f"{self._name}: {file.rows} rows of epoch {file.epoch} are lost: neither "
            f"{self._root / file.staged} nor {self._root / file.final} exists. Was it removed by "
            "hand, or has the sink's path changed? Put it back, or start from an earlier checkpoint"
        )

    def _locate(self, file: StagedFile) -> Path:
        staged = self._root / file.staged
        self._check_inside(staged.parent)
        return staged

    def _check_inside(self, directory: Path) -> None:
        """Refuse to follow a link out of the sink's directory."""
        with self._failures("find", directory):
            inside = directory.resolve().is_relative_to(self._root.resolve())
        if not inside:
            raise SinkError(
                f"{self._name}: {directory} is a link that leads out of {self._root}; remove it"
            )

    def _remove_losers(self, files: Sequence[StagedFile]) -> None:
        """Remove what other attempts of the same tasks staged; of each task only one counts."""
        tasks: dict[Path, set[tuple[int, int]]] = {}
        for file in files:
            directory = (self._root / file.staged).parent
            tasks.setdefault(directory, set()).add((file.epoch, file.partition))
        for directory, done in tasks.items():
            with self._failures("clean", directory), suppress(FileNotFoundError):
                for path in list(directory.iterdir()):
                    if task_of(path.name) in done:
                        path.unlink(missing_ok=True)

    @contextmanager
    def _failures(self, what: str, path: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            why = getattr(error, "strerror", None) or error
            raise SinkError(f"{self._name}: cannot {what} {path}: {why}") from error


def _remove_directory(directory: Path) -> None:
    """Remove a flat directory; what a dying task still adds is left to the next attempt."""
    for path in list(directory.iterdir()):
        path.unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
