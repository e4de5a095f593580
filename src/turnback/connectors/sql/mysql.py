"""`MySqlSink`: rows in a table of MariaDB or MySQL."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from turnback.connectors.sql.database import (
    DIGITS,
    Database,
    LockTimeoutError,
    LostConnectionError,
    TableColumn,
    TransactionId,
    UniqueIndex,
    UnknownTransactionError,
    digits_lacking,
)
from turnback.connectors.sql.sink import SqlSink, positive
from turnback.connectors.sql.values import (
    Limits,
    Respelled,
    chunks,
    escaped,
    joined_rows,
    plain_text,
)
from turnback.core.extras import require
from turnback.core.masking import password_of
from turnback.errors import ConfigurationError, SinkError
from turnback.values.typeinfo import BasicTypeInfo, DecimalTypeInfo, TypeInfo

_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")
_CAST_AT_ONCE = 500
_STRINGS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_CHANGES_TEXT = ("json", "uuid", "inet4", "inet6")
"""Types that respell text. MariaDB's json does not: the catalogue calls it longtext."""
_TEXT = (*_STRINGS, "enum", "set", *_CHANGES_TEXT)
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
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_MEANT = {"0": "\0", "n": "\n", "r": "\r"}
_NO_PAD = ("binary", "utf8mb4_0900_bin")
_REHEARSAL = "turnback_rehearsal"
_REFUSED = {1044, 1045, 1049, 1698, 2059}  # no access to the database, wrong password, no database
_DENIED = {1044, 1142, 1143, 1227, 1370, 1401}
_LOST = {0, 1053, 1927, 2006, 2013, 2014, 2055}
_UNKNOWN_XID = 1397
_BUSY_XID = 1400
_DETACH_S = 10.0
"""How long a server may take to notice that the connection that prepared a transaction is gone."""


class MySqlSink(SqlSink):
    """Writes the rows of a stream to a MariaDB or MySQL table, each exactly once.

    - `mode="exactly-once"` adds a row for every element. Tasks insert rows in parallel, each in an
      XA transaction, which is prepared at the end of the epoch and committed when the checkpoint
      is complete. Needs MariaDB 10.5 or MySQL 8, and InnoDB; on MySQL the privilege
      XA_RECOVER_ADMIN.
    - `mode="upsert"` inserts elements, or updates the rows with the same `key`. Tasks stage their
      elements in the job directory; when the checkpoint is complete, the driver writes all elements
      of an epoch in one transaction. If several elements have the same key, the last one wins.

    Turnback keeps its records next to the table, in `turnback_owners`, `turnback_commits` and
    `turnback_progress`; a table belongs to one job. Rows, lists and maps go into `json` columns;
    instants are written in UTC. NaN and the infinities are refused: these databases have none.

    Args:
        host: Host name of the server.
        port: Its port.
        database: The database of the table.
        user: The user that writes.
        password: The password; `password_from` keeps it out of the program.
        table: Exactly as the database spells it.
        columns: Which fields to write, or a dict from field to column; by default every field,
            into the column of its name.
        mode: "exactly-once" or "upsert".
        key: For upsert, the columns of the primary key or a unique one.
        password_from: The environment variable with the password.
        lock_timeout: Seconds that a task waits for a row another transaction has locked.
        unix_socket: The server's socket, instead of host and port.
        ssl: The `ssl` argument of `pymysql.connect`, such as {"ca": "/etc/ca.pem"}.

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
            raise ConfigurationError(f"MySqlSink: {table!r}: specify the database with database=")
        for name, value in (("host", host), ("database", database), ("user", user)):
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"MySqlSink: {name} must be a string, not {value!r}")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise ConfigurationError(f"MySqlSink: port must be a number up to 65535, not {port!r}")
        self.parameters: dict[str, Any] = {
            "host": host, "port": port, "database": database, "user": user
        }  # fmt: skip
        if unix_socket:
            self.parameters["unix_socket"] = unix_socket
        self._secrets = {}
        if ssl:
            self.parameters["ssl"] = {name: ssl[name] for name in ssl if name != "password"}
            if "password" in ssl:
                self._secrets["ssl.password"] = ssl["password"]
        self.password_from = password_from
        self._password = password_of("MySqlSink", password, password_from, None)
        self.lock_timeout = positive("MySqlSink", "lock_timeout", lock_timeout)

    def connect(self) -> Database:
        parameters = self.parameters
        if self._secrets:
            ssl = {**parameters["ssl"], "password": self._secrets["ssl.password"]}
            parameters = {**parameters, "ssl": ssl}
        return MySqlDatabase(parameters, self._password, self.table, self.lock_timeout)


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
    share_lock = " LOCK IN SHARE MODE"
    find_table = (
        "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    )
    find_column = (
        "SELECT 1 FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s AND column_name = %s"
    )

    def __init__(
        self, parameters: Mapping[str, Any], password: str | None, table: str, lock_timeout: float
    ) -> None:
        self._pymysql = require("pymysql", "mysql", "MySqlSink")
        self._schema = parameters["database"]
        self._name = table
        self.where = "the server at {host}:{port}/{database}".format(**parameters)
        self.target = f"{self._schema}.{table}"
        self._table = f"{_quoted(self._schema)}.{_quoted(table)}"
        self._connection = self._connect(parameters, password)
        self._xid: str | None = None
        try:
            # Strict: a value that does not fit is an error, and 0 is not the next number of an
            # AUTO_INCREMENT column. Backslashes escape, whatever is usual.
            self.execute(
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
                "NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO', "
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
            for secret in filter(None, (password, parameters.get("ssl", {}).get("password"))):
                reason = reason.replace(str(secret), "***")
            text = f"cannot reach {self.where}: {reason}"
            if error.args[0] in _REFUSED:
                raise ConfigurationError(
                    f"{text}. Check the user, the database and the password, which comes from "
                    "password or from the environment variable in password_from"
                ) from None
            raise SinkError(f"{text}. Check that the server is running") from None

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

    @staticmethod
    def quoted(name: str) -> str:
        return _quoted(name)

    def columns(self) -> list[TableColumn]:
        rows = self.query(
            "SELECT column_name, data_type, column_type, is_nullable = 'YES', column_default, "
            "extra, character_maximum_length, character_octet_length, character_set_name, "
            "collation_name FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (self._schema, self._name),
        )
        return [_column(*row) for row in rows]

    def unique_indexes(self) -> list[UniqueIndex]:
        rows = self.query(
            "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
            "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 "
            "ORDER BY index_name, seq_in_index",
            (self._schema, self._name),
        )
        found: dict[str, list[tuple[str | None, bool]]] = {}
        for index, column, prefix in rows:
            found.setdefault(index, []).append((column, prefix is not None))
        return [
            UniqueIndex(
                name,
                tuple(column for column, _ in parts),
                "it compares only a prefix of a column" if any(p for _, p in parts) else None,
            )
            for name, parts in found.items()
        ]

    def unrehearsed(self, updated: Collection[str], written: Collection[str]) -> list[str]:
        # Foreign keys to this table are left out: to find them the server opens every table.
        rows = self.query(_UNREHEARSED, (self._schema, self._name) * 4)
        problems = []
        for kind, name in rows:
            if kind == "check":
                problems += self._mixed_checks(set(updated), set(written))
            elif kind != "partitions" or not _TAKES_THE_REST.search(self._definition()):
                problems.append(_refusing(kind, name, self._table))
        return problems

    def _mixed_checks(self, updated: set[str], written: set[str]) -> list[str]:
        """CHECK constraints of columns that are updated, and of others that are not written.

        In a row that is there, columns that are not written may have any value.
        """
        names = {column.name for column in self.columns()}
        problems = []
        for line in _TEXT_IN_SQL.sub("''", self._definition()).splitlines():
            _, is_check, clause = line.partition(" CHECK (")
            quoted = _QUOTED_NAME.findall(clause) if is_check else []
            looked_at = {name.replace("``", "`") for name in quoted} & names
            if looked_at & updated and looked_at - written:
                problems.append(_refusing("check", ", ".join(sorted(looked_at)), self._table))
        return problems

    def _definition(self) -> str:
        return str(self.query(f"SHOW CREATE TABLE {self._table}")[0][1])

    def objection(self, kind: TypeInfo, column: TableColumn) -> str | None:
        base = column.type
        if isinstance(kind, DecimalTypeInfo):
            if base != "decimal":
                return ""
            return digits_lacking(column, kind.precision, kind.scale, "widen the column")
        if not isinstance(kind, BasicTypeInfo):
            return None if base in (*_STRINGS, "json") else ""
        if base not in _ACCEPTED[kind.name]:
            return ""
        if base == "decimal":
            return digits_lacking(column, DIGITS[kind.name], 0, "widen the column")
        if base == "set":
            return "it would reorder its members; use varchar"
        if base in ("float", "double") and "(" in column.declared:
            return f"it rounds; use {base} without digits"
        if base in ("time", "datetime", "timestamp") and "(6)" not in column.declared:
            return f"it truncates fractions of a second; use {base}(6)"
        return None

    def respelled(self, column: TableColumn, texts: Sequence[str]) -> list[Respelled]:
        found: list[Respelled] = []
        cast = f"CAST(CAST(%s AS {column.type}) AS CHAR)"
        for first in range(0, len(texts), _CAST_AT_ONCE):
            some = texts[first : first + _CAST_AT_ONCE]
            (row,) = self.query(f"SELECT {', '.join([cast] * len(some))}", some)
            found += map(Respelled, some, row)
        return found

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
                f"{error}. Exactly-once must list its prepared transactions: GRANT "
                "XA_RECOVER_ADMIN ON *.* to this user"
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
        self._insert(self._table, names, columns, "")

    def upsert(
        self, names: Sequence[str], key: Sequence[str], batches: Iterable[Sequence[pa.Array]]
    ) -> None:
        for columns in batches:
            self._upsert(self._table, names, key, columns)

    def begin_rehearsal(self) -> None:
        copy = self.helper(_REHEARSAL)
        try:
            self.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {copy} LIKE {self._table}")
        except _PartitionedError:
            self.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {copy} {self._unpartitioned()}")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. Upsert tests rows in a temporary copy of the table before a "
                "checkpoint includes them: GRANT CREATE TEMPORARY TABLES ON "
                f"{_quoted(self._schema)}.* to this user"
            ) from None

    def _unpartitioned(self) -> str:
        """What follows the name if the target is created anew, without its partitions."""
        _, opening, rest = self._definition().partition(" (\n")
        whole = _PARTITIONS.split(opening + rest)[0].rstrip()
        if whole.endswith(" WITH SYSTEM VERSIONING"):
            # No temporary table has that. A query leaves keys and CHECK constraints out as well.
            return f"AS SELECT * FROM {self._table} WHERE FALSE"
        return whole

    def rehearse(
        self, names: Sequence[str], key: Sequence[str], columns: Sequence[pa.Array]
    ) -> None:
        self.begin()
        self._upsert(self.helper(_REHEARSAL), names, key, columns)
        self.roll_back()

    def _upsert(
        self, table: str, names: Sequence[str], key: Sequence[str], columns: Sequence[pa.Array]
    ) -> None:
        updated = [name for name in names if name not in key] or list(key)
        updates = ", ".join(f"{_quoted(name)} = VALUES({_quoted(name)})" for name in updated)
        self._insert(table, names, columns, f" ON DUPLICATE KEY UPDATE {updates}")

    def _insert(
        self, table: str, names: Sequence[str], columns: Sequence[pa.Array], ending: str
    ) -> None:
        literals = [_literals(column) for column in columns]
        listed = ", ".join(map(_quoted, names))
        for text in chunks(joined_rows(literals, ", "), "), ("):
            self.execute(f"INSERT INTO {table} ({listed}) VALUES ({text}){ending}")

    # -- transactions

    def begin(self, txn: TransactionId | None = None) -> None:
        self._xid = None if txn is None else _xid(txn)
        self.execute("BEGIN" if self._xid is None else f"XA START {self._xid}")

    def limit_lock_wait(self, seconds: float) -> None:
        self.execute("SET SESSION innodb_lock_wait_timeout = %s", (max(1, round(seconds)),))

    def prepare(self, txn: TransactionId) -> None:
        self.execute(f"XA END {_xid(txn)}")
        self.execute(f"XA PREPARE {_xid(txn)}")

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
            except UnknownTransactionError as error:
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
            # What rows hold is nothing for a log.
            reason = _VALUE.sub(r"\1...\2", str(reason))
            text = f"{self.where}: {reason or 'the connection is closed'} ({code})"
            if code in _NO_TEMPORARY_PARTITIONS:
                raise _PartitionedError(text) from None
            if code in (_UNKNOWN_XID, _BUSY_XID):
                raise UnknownTransactionError(text) from None
            if code == _LOCK_TIMEOUT:
                raise LockTimeoutError(text) from None
            if code in _DENIED:
                raise ConfigurationError(text) from None
            if code in _LOST or not self._connection.open:
                raise LostConnectionError(text) from None
            raise SinkError(text) from None


_VALUE = re.compile(r"(entry |value: )'.*'( for (?:key|column) )", re.DOTALL)
_NO_TEMPORARY_PARTITIONS = (1478, 1562)
_LOCK_TIMEOUT = 1205


class _PartitionedError(SinkError):
    """There are no temporary tables with partitions."""


def _xid(txn: TransactionId) -> str:
    """A quoted XA id: both of its parts are plain ASCII without quotes."""
    return f"'{txn.sink}','{txn.branch}'"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literals(column: pa.Array) -> pa.Array:
    """A column as SQL reads it."""
    kind = column.type
    text = plain_text(column)
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        text = pc.binary_join_element_wise("x'", text, "'", "")
    elif not (pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind)):
        text = pc.binary_join_element_wise("'", escaped(text, _ESCAPES), "'", "")
    return pc.fill_null(text, "NULL")


def _column(
    name: str,
    data_type: str,
    column_type: str,
    nullable: int,
    default: str | None,
    extra: str,
    characters: int | None,
    octets: int | None,
    charset: str | None,
    collation: str | None,
) -> TableColumn:
    base = data_type.lower()
    declared = _shown(column_type)
    limits = Limits(nullable=bool(nullable), only_finite=True, negative_zero=False)
    if base in ("char", "varchar"):
        limits = replace(limits, most_characters=characters, trailing_blanks=base == "varchar")
    elif base in _STRINGS and (charset or "").startswith("utf8"):
        limits = replace(limits, most_bytes=octets)
    elif base in _STRINGS:
        # What is too long is refused by the server, but blanks at the end it would cut off.
        limits = replace(limits, most_characters=octets)
    elif base == "binary":
        limits = replace(limits, exact_bytes=octets)
    elif base in _BYTES:
        limits = replace(limits, most_bytes=octets)
    elif base == "enum":
        limits = replace(limits, members=tuple(map(_member, _MEMBER.findall(column_type))))
    numbered = "auto_increment" in extra.lower()
    generated = "GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper()
    no_default = default is None or default == "NULL"
    compares_bytes = collation is None or collation == "binary" or collation.endswith("_bin")
    return TableColumn(
        name=name,
        type=base,
        declared=declared,
        required=not nullable and default is None and not numbered and not generated,
        limits=limits,
        generated=generated,
        unique_by_itself=numbered or (no_default and bool(nullable)),
        folds=None if compares_bytes else _folding(collation, column_type, name),
        ignores_trailing_blanks=collation is not None
        and collation not in _NO_PAD
        and "nopad" not in collation,
        changes_text=base in _CHANGES_TEXT,
        is_json=base == "json",
    )


def _member(quoted: str) -> str:
    """A value of an enum as it is, for one as the catalogue spells it."""
    text = quoted.replace("''", "'")
    return _ESCAPED.sub(lambda match: _MEANT.get(match[1], match[1]), text)


def _folding(collation: str | None, column_type: str, name: str) -> str:
    return (
        f"its collation {collation} does not distinguish upper from lower case, or accents; "
        f"MODIFY {_quoted(name)} {column_type} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )


_TEXT_IN_SQL = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_QUOTED_NAME = re.compile(r"`((?:[^`]|``)+)`")
_UNREHEARSED = """
SELECT 'foreign key' AS kind, constraint_name AS name
FROM information_schema.referential_constraints
WHERE constraint_schema = %s AND table_name = %s
UNION ALL
SELECT 'trigger', trigger_name
FROM information_schema.triggers
WHERE event_object_schema = %s AND event_object_table = %s
AND event_manipulation IN ('INSERT', 'UPDATE')
UNION ALL
SELECT DISTINCT 'check', ''
FROM information_schema.table_constraints
WHERE table_schema = %s AND table_name = %s AND constraint_type = 'CHECK'
UNION ALL
SELECT 'partitions', partition_method
FROM information_schema.partitions
WHERE table_schema = %s AND table_name = %s AND partition_method REGEXP '^(RANGE|LIST)'
GROUP BY partition_method
ORDER BY kind, name
"""
"""What temporary copies of a table lack; triggers are shown to those only who may have some."""
_PARTITIONS = re.compile(r"^(?: |/\*!\d+ )PARTITION BY ", re.MULTILINE)
_TAKES_THE_REST = re.compile(
    r"^[ (]PARTITION (?:`(?:[^`]|``)+`|\S+) "
    r"(?:DEFAULT|VALUES LESS THAN (?:MAXVALUE|\(MAXVALUE(?:,MAXVALUE)*\)))",
    re.MULTILINE,
)
"""A partition for all other values; `information_schema` shows DEFAULT as MariaDB shows 0."""


def _refusing(kind: str, name: str, table: str) -> str:
    """What may refuse rows only when they are published, and what to do."""
    late = "may reject rows after a checkpoint has included them"
    if kind == "foreign key":
        how = f"ALTER TABLE {table} DROP FOREIGN KEY {_quoted(name)}"
        return f"has the foreign key {name!r}, which {late}. {how}"
    if kind == "trigger":
        return f"has the trigger {name!r}, which {late}, or change them. Drop it"
    if kind == "check":
        return (
            f"has a CHECK constraint of columns that are updated and others that are not written "
            f"({name}), which {late}: in an existing row the others can have any value. Drop "
            "it, or write all of its columns"
        )
    rest = "MAXVALUE" if name.startswith("RANGE") else "DEFAULT"
    return (
        f"is partitioned by {name} without a partition for all other values, which {late}. "
        f"Add one with {rest}, or partition it by HASH"
    )


def _shown(column_type: str) -> str:
    """A type for messages; the width at which integers are displayed says nothing."""
    return re.sub(r"int\(\d+\)", "int", column_type.lower())
