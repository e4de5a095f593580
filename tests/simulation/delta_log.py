"""Delta tables in memory: what `DeltaSink` uses of the library `deltalake`, and no more.

A table is its log: commits, each with the files it adds and the numbers it notes for applications.
A commit of somebody who has not seen the newest ones is put behind them, unless one of them has
noted a number for an application that this one notes as well.
`tests/systems/tables/test_simulated_delta.py` holds it to the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, TableNotFoundError

T = TypeVar("T")


class Network:
    """How clients reach the store of the tables: here at once and always."""

    def call(self, what: str, action: Callable[[], T], *, writes: bool) -> T:
        return action()

    def is_late(self) -> bool:
        """Whether what is being done was sent long ago, by somebody who has given up."""
        return False


@dataclass
class Commit:
    """A version of a table."""

    files: tuple[tuple[str, int], ...] = ()
    """Paths and sizes."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """By application."""
    told: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Log:
    """A table."""

    schema: Any
    partition_by: tuple[str, ...]
    commits: list[Commit]

    def append(self, commit: Commit, seen: int) -> None:
        """Put a commit behind all others; `seen` is the version that its writer knows."""
        for other in self.commits[seen + 1 :]:
            if other.numbers.keys() & commit.numbers.keys():
                raise CommitFailedError(
                    "Failed to commit transaction: Concurrent transaction failed."
                )
        self.commits.append(commit)


class Tables:
    """The tables there are, by their URIs."""

    network: ClassVar[Network] = Network()
    logs: ClassVar[dict[str, Log]] = {}


class DeltaTable:
    """A table as a client sees it: as of a version, until it looks again."""

    def __init__(self, uri: str, storage_options: Any = None) -> None:
        self._uri = uri

        def find() -> int:
            if uri not in Tables.logs:
                raise TableNotFoundError(f"no log files: {uri}")
            return len(Tables.logs[uri].commits) - 1

        self._seen = _call(f"open {uri}", find, writes=False)
        self._log = Tables.logs[uri]

    @classmethod
    def create(
        cls, uri: str, schema: Any, partition_by: Sequence[str] = (), storage_options: Any = None
    ) -> DeltaTable:
        def create() -> None:
            if uri in Tables.logs:
                raise CommitFailedError("A Delta Lake table already exists at that location.")
            Tables.logs[uri] = Log(schema, tuple(partition_by), [Commit()])

        _call(f"create {uri}", create, writes=True)
        return cls(uri)

    def update_incremental(self) -> None:
        self._seen = _call(f"update {self._uri}", lambda: len(self._log.commits) - 1, writes=False)

    def version(self) -> int:
        return self._seen

    def schema(self) -> Any:
        return self._log.schema

    def metadata(self) -> Any:
        return SimpleNamespace(partition_columns=list(self._log.partition_by), configuration={})

    def transaction_version(self, app: str) -> int | None:
        found = [c.numbers[app] for c in self._seen_commits if app in c.numbers]
        return found[-1] if found else None

    def get_add_actions(self, flatten: bool = False) -> pa.Table:
        files = [file for commit in self._seen_commits for file in commit.files]
        return pa.table(
            {
                "path": pa.array([path for path, _ in files], pa.string()),
                "size_bytes": pa.array([size for _, size in files], pa.int64()),
            }
        )

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """What commits say about themselves, newest first, of all that there are by now."""
        numbered = [
            {**commit.told, "version": number} for number, commit in enumerate(self._log.commits)
        ]
        return _call(f"history {self._uri}", lambda: numbered[::-1][:limit], writes=False)

    def create_write_transaction(
        self,
        actions: Sequence[Any],
        mode: str,
        schema: Any,
        partition_by: Sequence[str],
        commit_properties: Any,
    ) -> None:
        commit = Commit(
            tuple((action.path, action.size) for action in actions),
            {t.app_id: t.version for t in commit_properties.app_transactions},
            dict(commit_properties.custom_metadata),
        )
        log, seen, length = self._log, self._seen, len(self._log.commits)

        def write() -> None:
            # What is on its way is the file of one version, which can be there only once.
            if Tables.network.is_late() and len(log.commits) != length:
                raise CommitFailedError("somebody has written this version")
            log.append(commit, seen)

        _call(f"commit {[path for path, _ in commit.files]} {commit.numbers}", write, writes=True)

    @property
    def _seen_commits(self) -> list[Commit]:
        return self._log.commits[: self._seen + 1]


def _call(what: str, action: Callable[[], T], *, writes: bool) -> T:
    return Tables.network.call(f"delta: {what}", action, writes=writes)
