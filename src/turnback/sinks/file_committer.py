import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from turnback.core.errors import SinkError
from turnback.sinks.base import CommitterContext
from turnback.sinks.handle import name_sink
from turnback.sinks.staged import StagedFile, attempt_directory, sink_directory, task_of
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

    def commit(self, transactions: Sequence[bytes]) -> None:
        """Rename files into place; one that is there already is done."""
        files = [StagedFile.decode(t, self._ctx) for t in transactions]
        for file in files:
            self._publish(file)
        if files:
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
            older = [
                d
                for d in home.iterdir()
                if d.name.isdecimal() and int(d.name) < self._ctx.attempt and not d.is_symlink()
            ]
        for directory in older:
            with self._failures("remove", directory):
                _remove_directory(directory)

    def _publish(self, file: StagedFile) -> None:
        staged, final = self._locate(file), self._root / file.final
        with self._failures("commit", staged):
            try:
                length = staged.stat().st_size
                if length != file.length:
                    raise SinkError(
                        f"{self._name}: {staged} has {length} bytes, {file.length} were written; "
                        "it was changed from outside and has not been committed"
                    )
                staged.rename(final)
            except FileNotFoundError:
                if not final.is_file():
                    raise SinkError(
                        f"{self._name}: {file.rows} rows of epoch {file.epoch} are lost: neither "
                        f"{staged} nor {final} exists. Was it removed by hand, or has the sink's "
                        "path changed? Put it back, or start from an earlier checkpoint"
                    ) from None

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
        except OSError as error:
            raise SinkError(
                f"{self._name}: cannot {what} {path}: {error.strerror or error}"
            ) from error


def _remove_directory(directory: Path) -> None:
    """Remove a flat directory; what a dying task still adds is left to the next attempt."""
    for path in list(directory.iterdir()):
        path.unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
