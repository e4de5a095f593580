"""`PostgresSink`: rows in a table of PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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

_INTEGERS = ("int2", "int4", "int8", "numeric")
_NOT_TEXT = {*_INTEGERS, "bool", "bytea", "float4", "float8", "date", "time", "timestamp"}
_NOT_TEXT |= {"timetz", "timestamptz", "interval"}
_ACCEPTED: dict[str, tuple[str, ...]] = {
    "boolean": ("bool",),
    "byte": _INTEGERS,
    "short": _INTEGERS,
    "int": _INTEGERS[1:],
    "long": _INTEGERS[2:],
    "big_int": ("numeric",),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "bytes": ("bytea",),
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("timestamp",),
    "instant": ("timestamptz",),
}
_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}


class PostgresSink(SqlSink):
    """Writes the rows of a stream into a table of PostgreSQL, each exactly once.

    - `mode="exactly-once"` adds a row for every element. Tasks copy rows in parallel, each in a
      transaction of its own, which is prepared at the end of the epoch and committed when the
      checkpoint is complete. The server needs `max_prepared_transactions`: tasks, times the epochs
      of one checkpoint and one more.
    - `mode="upsert"` inserts elements, or updates the rows with the same `key`. Tasks stage their
      elements in the job directory; when the checkpoint is complete, the driver writes them, all
      of an epoch in one transaction. Of elements with the same key the last one counts.

    Turnback keeps its records beside the table, in `turnback_owners`, `turnback_commits` and
    `turnback_progress`; a table belongs to one job. Rows, lists and maps go into `json` or `jsonb`.

    Args:
        dsn: How to connect, as libpq takes it: "host=db dbname=shop" or "postgresql://db/shop".
        table: "table" or "schema.table", exactly as the database spells it.
        columns: Which fields to write, or a dict from field to column; by default every field,
            into the column of its name.
        mode: "exactly-once" or "upsert".
        key: For upsert, the columns of a primary key or unique constraint.
        password_from: The environment variable with the password. Without it, and without a
            password in `dsn`, the driver's PGPASSWORD is used, or what libpq finds itself.
        lock_timeout: Seconds that a task waits for a row another transaction has locked.
        **parameters: More parameters of the connection: host, port, dbname, user, sslmode, ...

    Raises:
        ConfigurationError: An argument cannot be used, or psycopg is not installed.
    """

    kind = "postgres"

    def __init__(
        self,
        dsn: str = "",
        *,
        table: str,
        columns: Sequence[str] | Mapping[str, str] | None = None,
        mode: str = "exactly-once",
        key: str | Sequence[str] | None = None,
        password_from: str | None = None,
        lock_timeout: float = 60.0,
        **parameters: Any,
    ) -> None:
        super().__init__(table, columns, mode, key)
        self.parameters = _parameters(dsn, parameters)
        given = self.parameters.pop("password", None)
        self.password_from = password_from
        self._password = password_of("PostgresSink", given, password_from, "PGPASSWORD")
        self.lock_timeout = positive("PostgresSink", "lock_timeout", lock_timeout)

    def connect(self) -> Database:
        return PostgresDatabase(self.parameters, self._password, self.table, self.lock_timeout)


def _parameters(dsn: str, more: Mapping[str, Any]) -> dict[str, str]:
    psycopg = require("psycopg", "postgres", "PostgresSink")
    if not isinstance(dsn, str):
        raise ConfigurationError("PostgresSink: dsn is a string, such as 'host=db dbname=shop'")
    try:
        text = psycopg.conninfo.make_conninfo(dsn, **more)
        found: dict[str, str] = psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.Error:
        # The error may quote a part of it, and that may be the password.
        names = f" and {', '.join(sorted(more))}" if more else ""
        raise ConfigurationError(
            f"PostgresSink: libpq cannot read dsn{names}. Give 'host=db port=5432 dbname=shop "
            "user=me' or 'postgresql://me@db:5432/shop', with special characters quoted"
        ) from None
    return {name: str(value) for name, value in found.items()}


class PostgresDatabase(Database):
    """A connection to PostgreSQL."""

    def __init__(
        self, parameters: Mapping[str, str], password: str | None, table: str, lock_timeout: float
    ) -> None:
        self._psycopg = require("psycopg", "postgres", "PostgresSink")
        self.where = "PostgreSQL at " + _address(parameters)
        self._connection = self._connect(parameters, password)
        try:
            schema, _, name = table.rpartition(".")
            self._name = name
            self._schema = schema or self.query("SELECT coalesce(current_schema(), 'public')")[0][0]
            self.target = f"{self._schema}.{name}"
            self._table = f"{_quoted(self._schema)}.{_quoted(name)}"
            self.execute("SELECT set_config('lock_timeout', %s, false)", (f"{lock_timeout:g}s",))
        except BaseException:
            self.close()
            raise

    def _connect(self, parameters: Mapping[str, str], password: str | None) -> Any:
        more = {"connect_timeout": "10", "application_name": "turnback", **parameters}
        if password is not None:
            more["password"] = password
        try:
            return self._psycopg.connect(**more, autocommit=True)
        except self._psycopg.Error as error:
            raise _refused(self.where, str(error), password) from None

    def close(self) -> None:
        with suppress(self._psycopg.Error):
            self._connection.close()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        with self._failures():
            return int(self._connection.execute(sql, parameters or None).rowcount)

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._failures():
            rows: list[tuple[Any, ...]] = self._connection.execute(
                sql, parameters or None
            ).fetchall()
            return rows

    # -- what there is

    def helper(self, name: str) -> str:
        return f"{_quoted(self._schema)}.{_quoted(name)}"

    def has_table(self, name: str) -> bool:
        return bool(
            self.query(
                "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s",
                (self._schema, name),
            )
        )

    def columns(self) -> list[TableColumn]:
        rows = self.query(
            "SELECT a.attname, coalesce(b.typname, t.typname), a.attnotnull AND NOT a.atthasdef "
            "AND a.attidentity = '' FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
            "LEFT JOIN pg_catalog.pg_type b ON b.oid = t.typbasetype AND t.typtype = 'd' "
            "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') "
            "AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (self._schema, self._name),
        )
        return [TableColumn(*row) for row in rows]

    def unique_keys(self) -> list[frozenset[str]]:
        rows = self.query(
            "SELECT array_agg(a.attname::text) FROM pg_catalog.pg_index i "
            "JOIN pg_catalog.pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
            "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NULL "
            "AND i.indexprs IS NULL GROUP BY i.indexrelid",
            (self._table,),
        )
        return [frozenset(names) for (names,) in rows]

    def accepts(self, kind: TypeInfo, column: TableColumn) -> bool:
        if isinstance(kind, DecimalTypeInfo):
            return column.type == "numeric"
        if not isinstance(kind, BasicTypeInfo):
            return column.type in ("json", "jsonb", "text")
        if kind.name == "string":
            return column.type not in _NOT_TEXT
        return column.type in _ACCEPTED.get(kind.name, ("bytea",))

    def check_prepared_transactions(self) -> None:
        if self.query("SHOW max_prepared_transactions") == [("0",)]:
            raise ConfigurationError(
                f"{self.where} does not allow prepared transactions, which exactly-once needs: "
                "max_prepared_transactions is 0. Set it to the number of tasks times the epochs of "
                "a checkpoint and one more, for example max_prepared_transactions = 100 in "
                "postgresql.conf, and restart the server; or use mode='upsert', which needs none"
            )

    def check_privileges(self, mode: str) -> None:
        needed = ("SELECT", "INSERT", "UPDATE") if mode == "upsert" else ("INSERT",)
        rights = ", ".join(f"has_table_privilege(%s, '{right}')" for right in needed)
        had = self.query(f"SELECT {rights}", (self._table,) * len(needed))[0]
        lacking = [right for right, has in zip(needed, had, strict=True) if not has]
        if lacking:
            user = self.query("SELECT current_user")[0][0]
            raise ConfigurationError(
                f"{self.where}: user {user!r} may not {' and '.join(lacking)} on {self.target}. "
                f"GRANT {', '.join(lacking)} ON {self._table} TO {_quoted(user)}"
            )

    # -- rows

    def insert(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        self._copy(self._table, names, columns)

    def upsert(
        self, names: Sequence[str], key: Sequence[str], batches: Iterable[Sequence[pa.Array]]
    ) -> None:
        listed, keys = _listed(names), _listed(key)
        rest = [_quoted(name) for name in names if name not in key]
        updates = ", ".join(f"{name} = excluded.{name}" for name in rest)
        self.execute(
            f"CREATE TEMPORARY TABLE turnback_rows ON COMMIT DROP AS "
            f"SELECT {listed} FROM {self._table} WITH NO DATA"
        )
        self.execute("ALTER TABLE turnback_rows ADD COLUMN turnback_order bigserial")
        for columns in batches:
            self._copy("turnback_rows", names, columns)
        self.execute(
            f"INSERT INTO {self._table} ({listed}) SELECT DISTINCT ON ({keys}) {listed} "
            f"FROM turnback_rows ORDER BY {keys}, turnback_order DESC "
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"
        )

    def _copy(self, table: str, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        rows = joined_rows([_copied(column) for column in columns], "\t")
        statement = f"COPY {table} ({_listed(names)}) FROM STDIN"
        cursor = self._connection.cursor()
        with self._failures(), cursor.copy(statement) as copy:
            for text in chunks(rows, "\n"):
                copy.write(text + "\n")

    # -- transactions

    def begin(self, txn: TransactionId | None = None) -> None:
        self.execute("BEGIN")

    def commit(self) -> None:
        self.execute("COMMIT")

    def prepare(self, txn: TransactionId) -> None:
        self.execute(f"PREPARE TRANSACTION {self._gid(txn)}")

    def roll_back(self) -> None:
        self.execute("ROLLBACK")

    def commit_prepared(self, txn: TransactionId) -> bool:
        try:
            self.execute(f"COMMIT PREPARED {self._gid(txn)}")
        except _UnknownTransactionError:
            return False
        return True

    def roll_back_prepared(self, txn: TransactionId) -> None:
        with suppress(_UnknownTransactionError):
            self.execute(f"ROLLBACK PREPARED {self._gid(txn)}")

    def prepared(self) -> list[TransactionId]:
        rows = self.query(
            "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = current_database() "
            "ORDER BY prepared"
        )
        parts = (gid.rpartition(":") for (gid,) in rows)
        found = (TransactionId.parse(sink, branch) for sink, _, branch in parts)
        return [txn for txn in found if txn is not None]

    def _gid(self, txn: TransactionId) -> str:
        return f"'{txn.name}'"  # plain ASCII without quotes

    @contextmanager
    def _failures(self) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except errors.UndefinedObject as error:
            raise _UnknownTransactionError(self._told(error)) from None
        except errors.InsufficientPrivilege as error:
            raise ConfigurationError(self._told(error)) from None
        except self._psycopg.Error as error:
            if self._connection.closed or isinstance(error, errors.AdminShutdown):
                raise LostConnectionError(self._told(error)) from None
            raise SinkError(self._told(error)) from None

    def _told(self, error: Any) -> str:
        parts = [error.diag.message_primary or str(error).strip()]
        parts += [part for part in (error.diag.message_detail, error.diag.message_hint) if part]
        return f"{self.where}: {'. '.join(parts)}"


class _UnknownTransactionError(SinkError):
    """There is no such prepared transaction."""


def _refused(where: str, reason: str, password: str | None) -> Exception:
    if password:
        reason = reason.replace(password, "***")
    reason = " ".join(reason.split())
    told = f"{where} cannot be reached: {reason}"
    for sign in ("authentication failed", "no password supplied", "does not exist", "pg_hba.conf"):
        if sign in reason:
            return ConfigurationError(
                f"{told}. Check user, database and password: it is taken from the dsn, from the "
                "variable that password_from names, or from PGPASSWORD"
            )
    return SinkError(f"{told}. Is the server running?")


def _address(parameters: Mapping[str, str]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST", "local")
    port = parameters.get("port") or os.environ.get("PGPORT", "5432")
    database = parameters.get("dbname") or os.environ.get("PGDATABASE", "")
    return f"{host}:{port}/{database}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _copied(column: pa.Array) -> pa.Array:
    """A column as COPY reads it."""
    text = plain_text(column)
    if pt.is_binary(column.type) or pt.is_large_binary(column.type):
        text = pc.binary_join_element_wise(r"\\x", text, "")
    elif pt.is_string(column.type) or pt.is_nested(column.type):
        text = escaped(text, _ESCAPES)
    elif pt.is_timestamp(column.type) and column.type.tz is not None:
        text = pc.binary_join_element_wise(text, "+00", "")
    return pc.fill_null(text, r"\N")
