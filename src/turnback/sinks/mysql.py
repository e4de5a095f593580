"""`MySqlSink`: rows in a table of MariaDB or MySQL."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.core.errors import ConfigurationError, SinkError
from turnback.core.extras import require
from turnback.sinks.passwords import password_of
from turnback.sinks.sql import SqlSink, positive
from turnback.sinks.sql_database import Database, LostConnectionError, TableColumn, TransactionId
from turnback.sinks.sql_text import chunks, escaped, joined_rows, plain_text
from turnback.types.typeinfo import BasicTypeInfo, DecimalTypeInfo, TypeInfo

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")
_STRINGS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_TEXT = (*_STRINGS, "json", "enum", "set", "uuid", "inet4", "inet6")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "boolean": ("tinyint", "bit"),
    "byte": _INTEGERS,
    "short": _INTEGERS[1:],
    "int": _INTEGERS[3:],
    "long": _INTEGERS[4:],
    "big_int": ("decimal",),
    "float": ("float", "double"),
    "double": ("double",),
    "bytes": _BYTES,
    "pickled": _BYTES,
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("datetime",),
    "instant": ("timestamp", "datetime"),
    "string": _TEXT,
}
_ESCAPES = {"\\": r"\\", "'": r"\'", "\0": r"\0"}
_REFUSED = {1044, 1045, 1049, 1698, 2059}  # no access to the database, wrong password, no database
_DENIED = {1142, 1143, 1227, 1370, 1401}
_LOST = {0, 1053, 1927, 2006, 2013, 2014, 2055}
_UNKNOWN_XID, _BUSY_XID = 1397, 1400
_DETACH_S = 10.0
"""How long a server may take to notice that the connection that prepared a transaction is gone."""


class MySqlSink(SqlSink):
    """Writes the rows of a stream into a table of MariaDB or MySQL, each exactly once.

    - `mode="exactly-once"` adds a row for every element. Tasks insert rows in parallel, each in an
      XA transaction, which is prepared at the end of the epoch and committed when the checkpoint
      is complete. Needs MariaDB 10.5 or MySQL 8, and InnoDB; on MySQL the privilege
      XA_RECOVER_ADMIN.
    - `mode="upsert"` inserts elements, or updates the rows with the same `key`. Tasks stage their
      elements in the job directory; when the checkpoint is complete, the driver writes them, all
      of an epoch in one transaction. Of elements with the same key the last one counts.

    Turnback keeps its records beside the table, in `turnback_owners`, `turnback_commits` and
    `turnback_progress`; a table belongs to one job. Rows, lists and maps go into `json` columns;
    instants are written in UTC. NaN and the infinities are refused: these databases have none.

    Args:
        host: Where the server is.
        port: Its port.
        database: The database of the table.
        user: Who writes.
        password: The password; `password_from` keeps it out of the program.
        table: Exactly as the database spells it.
        columns: Which fields to write, or a dict from field to column; by default every field,
            into the column of its name.
        mode: "exactly-once" or "upsert".
        key: For upsert, the columns of the primary key or a unique one.
        password_from: The environment variable with the password.
        lock_timeout: Seconds that a task waits for a row another transaction has locked.
        unix_socket: The server's socket, instead of host and port.
        ssl: What `pymysql.connect` takes as `ssl`, such as {"ca": "/etc/ca.pem"}.

    Raises:
        ConfigurationError: An argument cannot be used, or pymysql is not installed.
    """

    kind = "mysql"

    def __init__(
        self,
        host: str = "localhost",
        port: int = 3306,
        *,
        database: str,
        user: str,
        table: str,
        password: str | None = None,
        password_from: str | None = None,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        mode: str = "exactly-once",
        key: str | Sequence[str] | None = None,
        lock_timeout: float = 60.0,
        unix_socket: str | None = None,
        ssl: Mapping[str, Any] | None = None,
    ) -> None:
        require("pymysql", "mysql", "MySqlSink")
        super().__init__(table, columns, mode, key)
        if "." in table:
            raise ConfigurationError(f"MySqlSink: {table!r}: name the database with database=")
        for name, value in (("host", host), ("database", database), ("user", user)):
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"MySqlSink: {name} is a string, not {value!r}")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise ConfigurationError(f"MySqlSink: port is a number up to 65535, not {port!r}")
        self.parameters: dict[str, Any] = {
            "host": host, "port": port, "database": database, "user": user
        }  # fmt: skip
        if unix_socket:
            self.parameters["unix_socket"] = unix_socket
        if ssl:
            self.parameters["ssl"] = dict(ssl)
        self.password_from = password_from
        self._password = password_of("MySqlSink", password, password_from, None)
        self.lock_timeout = positive("MySqlSink", "lock_timeout", lock_timeout)

    def connect(self) -> Database:
        return MySqlDatabase(self.parameters, self._password, self.table, self.lock_timeout)


@cache
def _connection_class() -> Any:
    """PyMySQL's, but one that reads the certificates of the system once, and not in every epoch.

    Without arguments for TLS nothing is checked against them, and reading them takes far longer
    than the rest of the connection.
    """
    base: Any = require("pymysql", "mysql", "MySqlSink").connections.Connection
    made: list[Any] = []

    class Connection(base):  # type: ignore[misc]
        def _create_ssl_ctx(self, sslp: Any) -> Any:
            if sslp:
                return super()._create_ssl_ctx(sslp)
            if not made:
                made.append(super()._create_ssl_ctx(sslp))
            return made[0]

    return Connection


class MySqlDatabase(Database):
    """A connection to MariaDB or MySQL."""

    varchar = "varchar(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"

    def __init__(
        self, parameters: Mapping[str, Any], password: str | None, table: str, lock_timeout: float
    ) -> None:
        self._pymysql = require("pymysql", "mysql", "MySqlSink")
        self._schema, self._name = parameters["database"], table
        self.where = "the server at {host}:{port}/{database}".format(**parameters)
        self.target = f"{self._schema}.{table}"
        self._table = f"{_quoted(self._schema)}.{_quoted(table)}"
        self._connection = self._connect(parameters, password)
        self._xid: str | None = None
        try:
            # Strict: a value that does not fit is an error. Backslashes escape, whatever is usual.
            self.execute(
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ENGINE_SUBSTITUTION', "
                "time_zone = '+00:00', innodb_lock_wait_timeout = %s",
                (max(1, round(lock_timeout)),),
            )
            self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except BaseException:
            self.close()
            raise

    def _connect(self, parameters: Mapping[str, Any], password: str | None) -> Any:
        try:
            return _connection_class()(
                **parameters,
                password=password or "",
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=10,
            )
        except self._pymysql.MySQLError as error:
            reason = str(error.args[-1])
            if password:
                reason = reason.replace(password, "***")
            told = f"{self.where} cannot be reached: {reason}"
            if error.args[0] in _REFUSED:
                raise ConfigurationError(
                    f"{told}. Check user, database and password, which is taken from password or "
                    "from the variable that password_from names"
                ) from None
            raise SinkError(f"{told}. Is the server running?") from None

    def close(self) -> None:
        with suppress(self._pymysql.MySQLError, OSError):
            self._connection.close()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        with self._failures(), self._connection.cursor() as cursor:
            return int(cursor.execute(sql, parameters or None))

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._failures(), self._connection.cursor() as cursor:
            cursor.execute(sql, parameters or None)
            return list(cursor.fetchall())

    # -- what there is

    def helper(self, name: str) -> str:
        return f"{_quoted(self._schema)}.{_quoted(name)}"

    def has_table(self, name: str) -> bool:
        return bool(
            self.query(
                "SELECT 1 FROM information_schema.tables "
                "WHERE table_schema = %s AND table_name = %s",
                (self._schema, name),
            )
        )

    def columns(self) -> list[TableColumn]:
        rows = self.query(
            "SELECT column_name, data_type, is_nullable = 'NO' AND column_default IS NULL "
            "AND extra NOT LIKE '%%auto_increment%%' AND extra NOT LIKE '%%GENERATED%%' "
            "FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (self._schema, self._name),
        )
        return [TableColumn(name, kind.lower(), bool(required)) for name, kind, required in rows]

    def unique_keys(self) -> list[frozenset[str]]:
        rows = self.query(
            "SELECT index_name, column_name FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND non_unique = 0",
            (self._schema, self._name),
        )
        keys: dict[str, set[str]] = {}
        for index, column in rows:
            keys.setdefault(index, set()).add(column)
        return [frozenset(columns) for columns in keys.values()]

    def accepts(self, kind: TypeInfo, column: TableColumn) -> bool:
        if isinstance(kind, DecimalTypeInfo):
            return column.type == "decimal"
        if not isinstance(kind, BasicTypeInfo):
            return column.type in _TEXT
        return column.type in _ACCEPTED[kind.name]

    def check_prepared_transactions(self) -> None:
        engine = self.query(
            "SELECT engine FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s",
            (self._schema, self._name),
        )
        if engine and engine[0][0] != "InnoDB":
            raise ConfigurationError(
                f"{self.where}: table {self.target} has the engine {engine[0][0]}, whose "
                "transactions cannot be prepared. Exactly-once needs InnoDB: "
                f"ALTER TABLE {self._table} ENGINE = InnoDB"
            )
        try:
            self.prepared()
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. Exactly-once lists what it has prepared: GRANT XA_RECOVER_ADMIN ON *.* "
                "to this user"
            ) from None

    def check_privileges(self, mode: str) -> None:
        statements = [f"INSERT INTO {self._table} SELECT * FROM {self._table} WHERE FALSE"]
        if mode == "upsert":
            first = _quoted(self.columns()[0].name)
            statements.append(f"UPDATE {self._table} SET {first} = {first} WHERE FALSE")
        for statement in statements:
            self.query(f"EXPLAIN {statement}")

    # -- rows

    def insert(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        self._insert(names, columns, "")

    def upsert(
        self, names: Sequence[str], key: Sequence[str], batches: Iterable[Sequence[pa.Array]]
    ) -> None:
        updated = [name for name in names if name not in key] or list(key)
        updates = ", ".join(f"{_quoted(name)} = VALUES({_quoted(name)})" for name in updated)
        for columns in batches:
            self._insert(names, columns, f" ON DUPLICATE KEY UPDATE {updates}")

    def _insert(self, names: Sequence[str], columns: Sequence[pa.Array], ending: str) -> None:
        literals = [self._literals(c, n) for c, n in zip(columns, names, strict=True)]
        listed = ", ".join(map(_quoted, names))
        for text in chunks(joined_rows(literals, ", "), "), ("):
            self.execute(f"INSERT INTO {self._table} ({listed}) VALUES ({text}){ending}")

    def _literals(self, column: pa.Array, name: str) -> pa.Array:
        kind = column.type
        if pt.is_floating(kind) and pc.all(pc.is_finite(column)).as_py() is False:
            raise SinkError(
                f"{self.where}: column {name!r} of {self.target} cannot hold NaN or an infinity; "
                "map them to None or to a number before the sink"
            )
        text = plain_text(column)
        if pt.is_binary(kind) or pt.is_large_binary(kind):
            text = pc.binary_join_element_wise("x'", text, "'", "")
        elif not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
            text = pc.binary_join_element_wise("'", escaped(text, _ESCAPES), "'", "")
        return pc.fill_null(text, "NULL")

    # -- transactions

    def begin(self, txn: TransactionId | None = None) -> None:
        self._xid = None if txn is None else _xid(txn)
        self.execute("BEGIN" if self._xid is None else f"XA START {self._xid}")

    def commit(self) -> None:
        self.execute("COMMIT")

    def prepare(self, txn: TransactionId) -> None:
        self.execute(f"XA END {_xid(txn)}")
        self.execute(f"XA PREPARE {_xid(txn)}")

    def roll_back(self) -> None:
        self.execute("ROLLBACK")

    def commit_prepared(self, txn: TransactionId) -> bool:
        return self._settle("COMMIT", txn)

    def roll_back_prepared(self, txn: TransactionId) -> None:
        self._settle("ROLLBACK", txn)

    def _settle(self, how: str, txn: TransactionId) -> bool:
        """Settle a transaction, once the connection that prepared it is gone; False if unknown."""
        end = time.monotonic() + _DETACH_S
        while True:
            try:
                self.execute(f"XA {how} {_xid(txn)}")
                return True
            except _UnknownTransactionError as error:
                if txn not in self.prepared():
                    return False
                if time.monotonic() > end:
                    raise SinkError(
                        f"{error}: it is prepared, but a connection still holds it"
                    ) from None
            time.sleep(0.02)

    def prepared(self) -> list[TransactionId]:
        found = []
        for _, length, _, data in self.query("XA RECOVER"):
            text = data if isinstance(data, str) else bytes(data).decode("latin-1")
            txn = TransactionId.parse(text[:length], text[length:])
            if txn is not None:
                found.append(txn)
        return found

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except self._pymysql.MySQLError as error:
            code, reason = (*error.args, "")[:2] if error.args else (0, "")
            told = f"{self.where}: {reason or 'the connection is closed'} ({code})"
            if code in (_UNKNOWN_XID, _BUSY_XID):
                raise _UnknownTransactionError(told) from None
            if code in _DENIED:
                raise ConfigurationError(told) from None
            if code in _LOST or not self._connection.open:
                raise LostConnectionError(told) from None
            raise SinkError(told) from None


class _UnknownTransactionError(SinkError):
    """There is no such XA transaction, or another connection has it."""


def _xid(txn: TransactionId) -> str:
    """A quoted XA id: both of its parts are plain ASCII without quotes."""
    return f"'{txn.sink}','{txn.branch}'"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
