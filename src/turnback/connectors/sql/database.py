"""What a sink needs of a SQL database: names of transactions, and one connection's abilities."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from turnback.connectors.sql.values import Limits, Respelled
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import version_of
from turnback.values.typeinfo import TypeInfo

PREFIX = "turnback"
_READABLE = re.compile(r"[A-Za-z0-9_-]+")
_PART = "[A-Za-z0-9_~-]+"
_SINK = re.compile(rf"{PREFIX}:(?:([0-9a-f]{{12}}):)?{_PART}:{_PART}")
_BRANCH = re.compile(rf"(\d+)\.(\d+)\.(\d+)\.(\d+)(?:\.({_PART}))?")


class LostConnectionError(SinkError):
    """The connection is gone; what was under way may or may not have happened."""


class LockTimeoutError(SinkError):
    """Another transaction holds a row for longer than this one may wait."""


class UnknownTransactionError(SinkError):
    """There is no such prepared transaction, or another connection has it."""


def name_sink_in_database(directory_id: str, job_id: str, uid: str) -> str:
    """What a sink is called in a database: at most 61 characters of plain ASCII.

    XA allows 64 bytes. Ids that are longer, or hold other characters, are digested.
    """
    if not directory_id:
        return name_without_directory(job_id, uid)
    return f"{name_job_in_database(directory_id, job_id)}{_part(uid, 18)}"


def name_job_in_database(directory_id: str, job_id: str) -> str:
    """What the names of a job's sinks in a database begin with."""
    return f"{PREFIX}:{directory_id}:{_part(job_id, 20)}:"


def name_without_directory(job_id: str, uid: str) -> str:
    """What a sink was called when names did not tell the job directory.

    A copy of the job has the same names, so they do not tell whose a transaction is.
    """
    return f"{PREFIX}:{_part(job_id, 32)}:{_part(uid, 18)}"


def mark_of(nonce: str) -> str:
    """A driver's nonce as it is in the names of transactions."""
    return _part(nonce, 12) if nonce else ""


def _part(text: str, longest: int) -> str:
    if len(text) <= longest and _READABLE.fullmatch(text):
        return text
    return "~" + hashlib.sha256(text.encode()).hexdigest()[: longest - 1]


class TransactionId(msgspec.Struct, frozen=True):
    """The transaction of one attempt of one task in one epoch.

    Attributes:
        sink: Job directory, job and sink, as `name_sink_in_database` gives it.
        driver: The mark of the driver's nonce: a job directory that was restored from a backup
            counts the same attempts again. Empty where names did not tell it yet.
    """

    sink: str
    attempt: int
    epoch: int
    partition: int
    task: int
    driver: str = ""

    @property
    def branch(self) -> str:
        """What tells it apart from other transactions of the sink."""
        branch = f"{self.attempt}.{self.epoch}.{self.partition}.{self.task}"
        return f"{branch}.{self.driver}" if self.driver else branch

    @property
    def name(self) -> str:
        """Its whole name, for people."""
        return f"{self.sink}:{self.branch}"

    @property
    def version(self) -> int:
        return version_of(self.attempt, self.epoch)

    @property
    def directory(self) -> str:
        """The id of the job directory; empty if the name does not tell it."""
        match = _SINK.fullmatch(self.sink)
        return (match[1] or "") if match else ""

    @property
    def marker(self) -> str:
        """What `turnback_commits` calls the sink and the driver."""
        return f"{self.sink}:{self.driver}" if self.driver else self.sink

    @classmethod
    def parse(cls, sink: str, branch: str) -> TransactionId | None:
        """The transaction of this sink and `branch`; None if it is another program's."""
        match = _BRANCH.fullmatch(branch)
        if not match or not _SINK.fullmatch(sink):
            return None
        attempt, epoch, partition, task = map(int, match.groups()[:4])
        return cls(sink, attempt, epoch, partition, task, match[5] or "")


class TableColumn(NamedTuple):
    """A column of the target.

    Attributes:
        type: As the database calls it, without its parameters.
        declared: The whole type, for messages.
        required: Whether a row without it is refused: not null, and no default.
        limits: Which values of the type it takes.
        generated: Whether the database computes it, so that nothing can be written to it.
        unique_by_itself: Whether a row that leaves it out never equals another row in it: it is
            numbered by the database, or null.
        folds: Why values that differ may be equal in it, for columns of a key; None if they never
            are.
        ignores_trailing_blanks: Whether values that differ in blanks at their end are equal in it.
        changes_text: Whether it reads text and may give back another: shorter, or spelled
            otherwise. Then each text is tried before it is written, see `Database.respelled`.
        is_json: Whether text in it is JSON, of which only the meaning is kept.
    """

    name: str
    type: str
    declared: str
    required: bool
    limits: Limits
    generated: bool = False
    unique_by_itself: bool = False
    folds: str | None = None
    ignores_trailing_blanks: bool = False
    changes_text: bool = False
    is_json: bool = False


class UniqueIndex(NamedTuple):
    """A unique constraint or index of the target; a column is None where it compares an expression.

    `problem` is why rows cannot be found by it, None if they can.
    """

    name: str
    columns: tuple[str | None, ...]
    problem: str | None = None


class WrittenField(NamedTuple):
    """A field of the stream, at a position in its rows, that goes into a column of the target."""

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
    share_lock: ClassVar[str]
    """What ends a query whose rows nobody may change before the open transaction ends."""
    find_table: ClassVar[str]
    find_column: ClassVar[str]
    """Queries with a row if there is a table in a schema, or a column in such a table."""
    where: str
    target: str
    _schema: str
    _name: str

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

    @staticmethod
    @abstractmethod
    def quoted(name: str) -> str:
        """A name as statements have it."""

    def helper(self, name: str) -> str:
        """The quoted name of one of Turnback's tables, beside the target."""
        return f"{self.quoted(self._schema)}.{self.quoted(name)}"

    def has_table(self, name: str) -> bool:
        """Whether one of Turnback's tables is there."""
        return bool(self.query(self.find_table, (self._schema, name)))

    @abstractmethod
    def columns(self) -> list[TableColumn]:
        """The columns of the target; none if there is no such table."""

    def has_column(self, table: str, column: str) -> bool:
        """Whether one of Turnback's tables has a column."""
        return bool(self.query(self.find_column, (self._schema, table, column)))

    @abstractmethod
    def unique_indexes(self) -> list[UniqueIndex]:
        """The unique constraints and indexes of the target, the primary key included."""

    @abstractmethod
    def unrehearsed(self, updated: Collection[str], written: Collection[str]) -> list[str]:
        """What may refuse rows of the target that its rehearsal takes, and what to do about each.

        `updated` are the columns that upserts change in rows that are there, `written` those and
        the key.
        """

    @abstractmethod
    def objection(self, kind: TypeInfo, column: TableColumn) -> str | None:
        """Why the column does not take values of a type of the stream, or would change some.

        None if it takes them, up to its `limits`; empty if there is nothing to say.
        """

    @abstractmethod
    def respelled(self, column: TableColumn, texts: Sequence[str]) -> list[Respelled]:
        """What a column makes of texts, in their order; `SinkError` if it refuses one of them."""

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

    @abstractmethod
    def begin_rehearsal(self) -> None:
        """Make a copy of the target without rows, which this connection alone sees.

        What was written to it is gone with `close`; `roll_back` ends the rehearsal.
        """

    @abstractmethod
    def rehearse(
        self, names: Sequence[str], key: Sequence[str], columns: Sequence[pa.Array]
    ) -> None:
        """Do with the copy what `upsert` will do with the target, to fail where that would."""

    # -- transactions

    @abstractmethod
    def begin(self, txn: TransactionId | None = None) -> None:
        """Start a transaction; one that is to be prepared has an id."""

    def commit(self) -> None:
        """Commit the open transaction, which has no id."""
        self.execute("COMMIT")

    @abstractmethod
    def limit_lock_wait(self, seconds: float) -> None:
        """Wait no longer than this for rows that other transactions hold."""

    @abstractmethod
    def prepare(self, txn: TransactionId) -> None:
        """Prepare the open transaction; any connection can settle it after `close`."""

    def roll_back(self) -> None:
        """Roll the open transaction back, if there is one."""
        self.execute("ROLLBACK")

    @abstractmethod
    def commit_prepared(self, txn: TransactionId) -> bool:
        """Commit a prepared transaction; False if the server does not know it."""

    @abstractmethod
    def roll_back_prepared(self, txn: TransactionId) -> None:
        """Roll a prepared transaction back; one that is gone is fine."""

    @abstractmethod
    def prepared(self) -> list[TransactionId]:
        """What sinks of any job have prepared in this database; not what other programs have."""


DIGITS = {"byte": 3, "short": 5, "int": 10, "long": 19, "big_int": 38}
"""How many digits integers of a stream may have."""


def digits_lacking(column: TableColumn, digits: int, scale: int, remedy: str) -> str | None:
    """Why a decimal column does not hold numbers of so many digits, `scale` of them decimals."""
    match = re.search(r"\((\d+),(-?\d+)\)", column.declared)
    if match is None:
        return None
    most = int(match[1])
    decimals = int(match[2])
    if decimals < scale:
        return f"it rounds to {decimals} decimals; declare the field as it is, or {remedy}"
    if most - decimals < digits - scale:
        return f"it has {most - decimals} digits before the point, of {digits - scale}"
    return None


HELPERS = {
    "turnback_owners": "target {varchar} PRIMARY KEY, job text, directory text, job_id text",
    "turnback_commits": (
        "sink {varchar}, version bigint, task integer, task_attempt bigint, "
        "PRIMARY KEY (sink, version, task, task_attempt)"
    ),
    "turnback_progress": "sink {varchar} PRIMARY KEY, version bigint NOT NULL, nonce text",
}
"""Turnback's tables beside the target: its owner, which tasks have committed, and which attempt and
epoch of which driver was the newest to commit or publish."""
_ADDED = {"turnback_progress": ("nonce", "text")}
"""Columns that older versions did not create."""


def create_helpers(database: Database) -> None:
    """Create Turnback's tables where they are missing, and add what older versions left out."""
    missing = [name for name in HELPERS if not database.has_table(name)]
    statements = {
        name: f"CREATE TABLE IF NOT EXISTS {database.helper(name)} "
        f"({HELPERS[name].format(varchar=database.varchar)})"
        for name in missing
    }
    for name, (column, kind) in _ADDED.items():
        if name not in missing and not database.has_column(name, column):
            statements[name] = f"ALTER TABLE {database.helper(name)} ADD COLUMN {column} {kind}"
    try:
        for name, statement in statements.items():
            try:
                database.execute(statement)
            except SinkError:
                # Two jobs that do it at once: the slower one fails, and finds it done.
                if not _is_complete(database, name):
                    raise
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}. Turnback keeps its records in tables next to the target. Allow this user "
            "to create and alter them, or create them yourself and grant SELECT, INSERT, UPDATE "
            "and DELETE: " + "; ".join(statements.values())
        ) from error


def _is_complete(database: Database, name: str) -> bool:
    column, _ = _ADDED.get(name, (None, None))
    return database.has_table(name) and (column is None or database.has_column(name, column))


def has_committed(database: Database, txn: TransactionId) -> bool:
    """Whether the marker of a transaction is there, which was written within it."""
    return bool(
        database.query(
            f"SELECT 1 FROM {database.helper('turnback_commits')} WHERE sink = %s "
            "AND version = %s AND task = %s AND task_attempt = %s",
            (txn.marker, txn.version, txn.partition, txn.task),
        )
    )


def write_marker(database: Database, txn: TransactionId) -> None:
    """Write into an open transaction what tells later that it was committed."""
    database.execute(
        f"INSERT INTO {database.helper('turnback_commits')} "
        "(sink, version, task, task_attempt) VALUES (%s, %s, %s, %s)",
        (txn.marker, txn.version, txn.partition, txn.task),
    )


_MARKED_EPOCHS = 1_000


def remove_old_markers(database: Database, sink: str, before: int) -> None:
    """Remove markers from before a version, except for those of the newest epochs."""
    commits = database.helper("turnback_commits")
    of_sink = f"(sink = %s OR LEFT(sink, {len(sink) + 1}) = %s)"
    names = (sink, f"{sink}:")
    oldest = database.query(
        f"SELECT DISTINCT version FROM {commits} WHERE {of_sink} ORDER BY version DESC "
        f"LIMIT 1 OFFSET {_MARKED_EPOCHS}",
        names,
    )
    if oldest:
        database.execute(
            f"DELETE FROM {commits} WHERE {of_sink} AND version <= %s AND version < %s",
            (*names, oldest[0][0], before),
        )
