"""What a sink needs of a SQL database: names of transactions, and one connection's abilities."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from turnback.core.errors import ConfigurationError, SinkError
from turnback.sinks.base import version_of
from turnback.types.typeinfo import TypeInfo

PREFIX = "turnback"
_READABLE = re.compile(r"[A-Za-z0-9_-]+")
_SINK = re.compile(rf"{PREFIX}:[A-Za-z0-9_~-]+:[A-Za-z0-9_~-]+")
_BRANCH = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)")


class LostConnectionError(SinkError):
    """The connection is gone; what was under way may or may not have happened."""


def name_sink_in_database(job_id: str, uid: str) -> str:
    """What a sink is called in a database: at most 60 characters of plain ASCII.

    XA allows 64 bytes. Ids that are longer, or hold other characters, are digested.
    """
    return f"{name_job_in_database(job_id)}{_part(uid, 18)}"


def name_job_in_database(job_id: str) -> str:
    """What the names of a job's sinks in a database begin with."""
    return f"{PREFIX}:{_part(job_id, 32)}:"


def _part(text: str, longest: int) -> str:
    if len(text) <= longest and _READABLE.fullmatch(text):
        return text
    return "~" + hashlib.sha256(text.encode()).hexdigest()[: longest - 1]


class TransactionId(msgspec.Struct, frozen=True):
    """The transaction of one attempt of one task in one epoch.

    Attributes:
        sink: Job and sink, as `name_sink_in_database` gives it.
        partition: Index of the task.
        task: Spark's id of this attempt of the task.
    """

    sink: str
    attempt: int
    epoch: int
    partition: int
    task: int

    @property
    def branch(self) -> str:
        """What tells it apart from other transactions of the sink."""
        return f"{self.attempt}.{self.epoch}.{self.partition}.{self.task}"

    @property
    def name(self) -> str:
        """Its whole name, for people."""
        return f"{self.sink}:{self.branch}"

    @property
    def version(self) -> int:
        return version_of(self.attempt, self.epoch)

    def is_same_task(self, other: TransactionId) -> bool:
        """Whether both are attempts of one task in one epoch, of which one counts."""
        return msgspec.structs.replace(other, task=self.task) == self

    @classmethod
    def parse(cls, sink: str, branch: str) -> TransactionId | None:
        """The transaction of this sink and `branch`; None if it is another program's."""
        match = _BRANCH.fullmatch(branch)
        return cls(sink, *map(int, match.groups())) if match and _SINK.fullmatch(sink) else None


class TableColumn(NamedTuple):
    """A column of the target.

    Attributes:
        type: As the database calls it.
        required: Whether a row without it is refused: not null, and no default.
    """

    name: str
    type: str
    required: bool


class WrittenField(NamedTuple):
    """A field of the stream that goes into a column of the target.

    Attributes:
        position: Of the field in the stream.
    """

    position: int
    column: str
    type: TypeInfo


class Database(ABC):
    """One connection to a database, used by one thread at a time.

    Methods raise `ConfigurationError` for what the user has to change, `LostConnectionError` if
    the connection is gone, and `SinkError` otherwise. No message holds a password.

    Attributes:
        where: The server and the database, for messages.
        target: The table with its schema, as `turnback_owners` records it.
    """

    varchar: ClassVar[str] = "varchar(200)"
    where: str
    target: str

    @abstractmethod
    def close(self) -> None:
        """Close the connection; what is open and not prepared is rolled back."""

    @abstractmethod
    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed.

        Outside of a transaction it is committed at once.
        """

    @abstractmethod
    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return all rows."""

    # -- what there is

    @abstractmethod
    def helper(self, name: str) -> str:
        """The quoted name of one of Turnback's tables, beside the target."""

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Whether one of Turnback's tables is there."""

    @abstractmethod
    def columns(self) -> list[TableColumn]:
        """The columns of the target; none if there is no such table."""

    @abstractmethod
    def unique_keys(self) -> list[frozenset[str]]:
        """The columns of each unique constraint of the target, the primary key included."""

    @abstractmethod
    def accepts(self, kind: TypeInfo, column: TableColumn) -> bool:
        """Whether every value of a type of the stream fits the column."""

    @abstractmethod
    def check_prepared_transactions(self) -> None:
        """Raise `ConfigurationError` if the server does not allow transactions to be prepared."""

    @abstractmethod
    def check_privileges(self, mode: str) -> None:
        """Raise `ConfigurationError` if the user may not do what the mode needs."""

    # -- rows

    @abstractmethod
    def insert(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Add rows to the target, within the open transaction."""

    @abstractmethod
    def upsert(
        self, names: Sequence[str], key: Sequence[str], batches: Iterable[Sequence[pa.Array]]
    ) -> None:
        """Insert rows, or update those with the same key, the last of equal ones in the end."""

    # -- transactions

    @abstractmethod
    def begin(self, txn: TransactionId | None = None) -> None:
        """Start a transaction; one that is to be prepared has an id."""

    @abstractmethod
    def commit(self) -> None:
        """Commit the open transaction, which has no id."""

    @abstractmethod
    def prepare(self, txn: TransactionId) -> None:
        """Prepare the open transaction; any connection can settle it after `close`."""

    @abstractmethod
    def roll_back(self) -> None:
        """Roll the open transaction back, if there is one."""

    @abstractmethod
    def commit_prepared(self, txn: TransactionId) -> bool:
        """Commit a prepared transaction; False if the server does not know it."""

    @abstractmethod
    def roll_back_prepared(self, txn: TransactionId) -> None:
        """Roll a prepared transaction back; one that is gone is fine."""

    @abstractmethod
    def prepared(self) -> list[TransactionId]:
        """What sinks of any job have prepared in this database; not what other programs have."""


HELPERS = {
    "turnback_owners": "target {varchar} PRIMARY KEY, job text, directory text, job_id text",
    "turnback_commits": (
        "sink {varchar}, version bigint, task integer, task_attempt bigint, "
        "PRIMARY KEY (sink, version, task, task_attempt)"
    ),
    "turnback_progress": "sink {varchar} PRIMARY KEY, version bigint NOT NULL",
}
"""Turnback's tables beside the target: its owner, which tasks have committed, and how far epochs
are published."""


def create_helpers(database: Database) -> None:
    """Create Turnback's tables where they are missing.

    Raises:
        ConfigurationError: The user may not; the message has the statements.
    """
    missing = [name for name in HELPERS if not database.has_table(name)]
    statements = {
        name: f"CREATE TABLE IF NOT EXISTS {database.helper(name)} "
        f"({HELPERS[name].format(varchar=database.varchar)})"
        for name in missing
    }
    try:
        for name, statement in statements.items():
            try:
                database.execute(statement)
            except SinkError:
                # Two jobs that create it at once: the slower one fails, and finds it there.
                if not database.has_table(name):
                    raise
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}. Turnback keeps its records in tables beside the target. Let this user "
            "create them, or create them yourself and grant SELECT, INSERT, UPDATE and DELETE: "
            + "; ".join(statements.values())
        ) from error


def has_committed(database: Database, txn: TransactionId) -> bool:
    """Whether the marker of a transaction is there, which was written within it."""
    return bool(
        database.query(
            f"SELECT 1 FROM {database.helper('turnback_commits')} WHERE sink = %s "
            "AND version = %s AND task = %s AND task_attempt = %s",
            (txn.sink, txn.version, txn.partition, txn.task),
        )
    )


def write_marker(database: Database, txn: TransactionId) -> None:
    """Write into an open transaction what tells later that it was committed."""
    database.execute(
        f"INSERT INTO {database.helper('turnback_commits')} "
        "(sink, version, task, task_attempt) VALUES (%s, %s, %s, %s)",
        (txn.sink, txn.version, txn.partition, txn.task),
    )


_MARKED_EPOCHS = 1_000


def remove_old_markers(database: Database, sink: str) -> None:
    """Keep the markers of the newest epochs: older ones are never asked for again."""
    commits = database.helper("turnback_commits")
    oldest = database.query(
        f"SELECT DISTINCT version FROM {commits} WHERE sink = %s ORDER BY version DESC "
        f"LIMIT 1 OFFSET {_MARKED_EPOCHS}",
        (sink,),
    )
    if oldest:
        database.execute(
            f"DELETE FROM {commits} WHERE sink = %s AND version <= %s", (sink, oldest[0][0])
        )


def progress(database: Database, sink: str) -> int:
    """The version of the newest epoch that was published; 0 if none was."""
    rows = database.query(
        f"SELECT version FROM {database.helper('turnback_progress')} WHERE sink = %s", (sink,)
    )
    return int(rows[0][0]) if rows else 0


def advance(database: Database, sink: str, version: int) -> bool:
    """Record within the open transaction that an epoch is published; False if a newer one is.

    Holds a lock on the record until the transaction ends, so that of two drivers one waits.
    """
    table = database.helper("turnback_progress")
    changed = database.execute(
        f"UPDATE {table} SET version = %s WHERE sink = %s AND version < %s",
        (version, sink, version),
    )
    if not changed and not progress(database, sink):
        changed = database.execute(
            f"INSERT INTO {table} (sink, version) VALUES (%s, %s)", (sink, version)
        )
    return bool(changed)
