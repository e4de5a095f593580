"""`PostgresSink`: rows in a table of PostgreSQL."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
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

_INTEGERS = ("int2", "int4", "int8", "numeric")
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
_NOT_TEXT = {*_INTEGERS, "bool", "bytea", "float4", "float8", "date", "time", "timestamp"}
_NOT_TEXT |= {"timetz", "timestamptz", "interval"}
_CHANGES_TEXT = {"name", "char", "money", "tsvector", "tsquery", "jsonb", "jsonpath", "xml", "uuid"}
_CHANGES_TEXT |= {"macaddr", "macaddr8", "pg_lsn", "hstore"}
"""Types that read text and may cut, round, reorder or respell it."""
_CHANGING_CATEGORIES = "CGINRV"
"""Composite, geometric, network, numeric, range and bit string types: they all respell text."""
_PLAIN_ARRAYS = {"_text", "_bool"}
"""Arrays that take each element as it is, or as what it means."""
_FOLDING_CATEGORIES = "CGR"
"""Of these, those in which different texts may be equal, each in its usual spelling."""
_HAS_SECONDS = ("time", "timestamp", "timestamptz")
_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}


class PostgresSink(SqlSink):
    """Writes the rows of a stream to a PostgreSQL table, each exactly once.

    - `mode="exactly-once"` adds a row for every element. Tasks copy rows in parallel, each in its
      own transaction, which is prepared at the end of the epoch and committed when the checkpoint
      is complete. Set `max_prepared_transactions` on the server: the number of tasks, times the
      number of epochs in a checkpoint plus one.
    - `mode="upsert"` inserts elements, or updates the rows with the same `key`. Tasks stage their
      elements in the job directory; when the checkpoint is complete, the driver writes all elements
      of an epoch in one transaction. If several elements have the same key, the last one wins.

    Turnback keeps its records next to the table, in `turnback_owners`, `turnback_commits` and
    `turnback_progress`; a table belongs to one job. Rows, lists and maps are written to `json` or
    `jsonb`.

    Args:
        dsn: The libpq connection string: "host=db dbname=shop" or "postgresql://db/shop".
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
        secret = _secret_parameters()
        self._secrets = {k: self.parameters.pop(k) for k in secret & self.parameters.keys()}
        self.password_from = password_from
        self._password = password_of("PostgresSink", given, password_from, "PGPASSWORD")
        self.lock_timeout = positive("PostgresSink", "lock_timeout", lock_timeout)

    def connect(self) -> Database:
        return PostgresDatabase(
            {**self.parameters, **self._secrets}, self._password, self.table, self.lock_timeout
        )


def _secret_parameters() -> set[str]:
    """What libpq says not to show, the password itself left out."""
    pq = require("psycopg", "postgres", "PostgresSink").pq
    options = pq.Conninfo.get_defaults()
    return {o.keyword.decode() for o in options if o.dispchar == b"*"} - {"password"}


def _parameters(dsn: str, more: Mapping[str, Any]) -> dict[str, str]:
    psycopg = require("psycopg", "postgres", "PostgresSink")
    if not isinstance(dsn, str):
        raise ConfigurationError(
            "PostgresSink: dsn must be a string, such as 'host=db dbname=shop'"
        )
    try:
        text = psycopg.conninfo.make_conninfo(dsn, **more)
        found: dict[str, str] = psycopg.conninfo.conninfo_to_dict(text)
    except psycopg.Error:
        # The error may quote a part of it, and that may be the password.
        names = f" and {', '.join(sorted(more))}" if more else ""
        raise ConfigurationError(
            f"PostgresSink: libpq cannot read dsn{names}. Use 'host=db port=5432 dbname=shop "
            "user=me' or 'postgresql://me@db:5432/shop', with special characters quoted"
        ) from None
    return {name: str(value) for name, value in found.items()}


class PostgresDatabase(Database):
    """A connection to PostgreSQL."""

    share_lock = " FOR SHARE"
    find_table = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = %s"
    find_column = (
        "SELECT 1 FROM pg_catalog.pg_attribute a "
        "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND a.attname = %s AND NOT a.attisdropped"
    )

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
            self.limit_lock_wait(lock_timeout)
        except BaseException:
            self.close()
            raise

    def _connect(self, parameters: Mapping[str, str], password: str | None) -> Any:
        more = {"connect_timeout": "10", "application_name": "turnback", **parameters}
        if password is not None:
            more["password"] = password
        try:
            # No prepared statements: a pooler may give each transaction another connection.
            return self._psycopg.connect(**more, autocommit=True, prepare_threshold=None)
        except self._psycopg.Error as error:
            secrets = [more[name] for name in _secret_parameters() & more.keys()]
            raise _refused(self.where, str(error), [password or "", *secrets]) from None

    def close(self) -> None:
        with suppress(self._psycopg.Error):
            self._connection.close()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        with self._failures():
            return int(self._connection.execute(sql, parameters or None).rowcount)

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> list[tuple[Any, ...]]:
        with self._failures():
            rows: list[tuple[Any, ...]] = self._connection.execute(
                sql, parameters or None
            ).fetchall()
            return rows

    # -- what there is

    @staticmethod
    def quoted(name: str) -> str:
        return _quoted(name)

    def columns(self) -> list[TableColumn]:
        rows = self.query(
            "SELECT a.attname, b.typname, pg_catalog.format_type(b.oid, m.modifier), m.modifier, "
            "a.attnotnull OR b.not_null, "
            "coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), t.typdefault), "
            "a.attidentity::text, a.attgenerated <> '', coalesce(l.collisdeterministic, true), "
            "b.typcategory::text "
            "FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
            # A domain may be one of another domain: only at the end there is a type.
            "CROSS JOIN LATERAL (WITH RECURSIVE chain AS ("
            "SELECT 1 AS depth, p.* FROM pg_catalog.pg_type p WHERE p.oid = a.atttypid UNION ALL "
            "SELECT depth + 1, p.* FROM pg_catalog.pg_type p JOIN chain "
            "ON chain.typtype = 'd' AND p.oid = chain.typbasetype) "
            "SELECT oid, typname, typcategory, "
            "max(typtypmod) FILTER (WHERE typtype = 'd') OVER () AS modifier, "
            "bool_or(typnotnull) OVER () AS not_null "
            "FROM chain ORDER BY depth DESC LIMIT 1) b "
            "CROSS JOIN LATERAL (SELECT CASE WHEN t.typtype = 'd' THEN b.modifier "
            "ELSE a.atttypmod END AS modifier) m "
            "LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
            "LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation "
            "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p') "
            "AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (self._schema, self._name),
        )
        return [_column(*row) for row in rows]

    def unique_indexes(self) -> list[UniqueIndex]:
        rows = self.query(
            "SELECT c.relname, array_agg(a.attname::text ORDER BY k.place), i.indisvalid, "
            "i.indimmediate, i.indpred IS NULL, NOT EXISTS (SELECT FROM pg_catalog.pg_collation l "
            "WHERE l.oid = ANY (i.indcollation::oid[]) AND NOT l.collisdeterministic) "
            "FROM pg_catalog.pg_index i "
            "JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid "
            "CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place) "
            "LEFT JOIN pg_catalog.pg_attribute a "
            "ON a.attrelid = i.indrelid AND a.attnum = k.number AND k.number > 0 "
            # Behind the key there are the columns of INCLUDE, which are not compared.
            "WHERE i.indrelid = %s::regclass AND i.indisunique AND k.place <= i.indnkeyatts "
            "GROUP BY c.relname, i.indisvalid, i.indimmediate, i.indpred IS NULL, "
            "i.indcollation",
            (self._table,),
        )
        return [_unique_index(*row) for row in rows]

    def unrehearsed(self, updated: Collection[str], written: Collection[str]) -> list[str]:
        columns = {"updated": list(updated), "written": list(written)}
        rows = self.query(_UNREHEARSED, {"table": self._table, **columns})
        return [_refusing(*row) for row in rows]

    def objection(self, kind: TypeInfo, column: TableColumn) -> str | None:
        base = column.type
        if isinstance(kind, DecimalTypeInfo):
            if base != "numeric":
                return ""
            return digits_lacking(column, kind.precision, kind.scale, "leave both out")
        if not isinstance(kind, BasicTypeInfo):
            return None if base in ("json", "jsonb", "text") else ""
        if kind.name == "string":
            return "" if base in _NOT_TEXT else None
        if base not in _ACCEPTED.get(kind.name, ("bytea",)):
            return ""
        if base == "numeric":
            return digits_lacking(column, DIGITS[kind.name], 0, "leave both out")
        if base in _HAS_SECONDS and (match := re.search(r"\(([0-5])\)", column.declared)):
            return f"it rounds to {match[1]} of 6 digits of a second; omit the number"
        return None

    def respelled(self, column: TableColumn, texts: Sequence[str]) -> list[Respelled]:
        # `format` spells a value as readers see it; a cast does not, for `inet` or `boolean`.
        kind = column.declared.replace("%", "%%")
        given = "given"
        read = f"format('%%s', given::{kind})"
        if column.type.startswith("_"):
            given = "given::text[]::text"
            read = f"{read}::text[]::text"
        found = self.query(
            f"SELECT {given}, {read} "
            "FROM unnest(%s::text[]) WITH ORDINALITY AS texts(given, place) ORDER BY place",
            (list(texts),),
        )
        return [Respelled(*row) for row in found]

    def check_prepared_transactions(self) -> None:
        if self.query("SHOW max_prepared_transactions") == [("0",)]:
            raise ConfigurationError(
                f"{self.where} does not allow prepared transactions, which exactly-once needs: "
                "max_prepared_transactions is 0. Set it to the number of tasks times (the "
                "epochs of a checkpoint + 1), for example max_prepared_transactions = 100 in "
                "postgresql.conf, and restart the server; or use mode='upsert', which does not "
                "need them"
            )

    def check_privileges(self, mode: str) -> None:
        needed = ("SELECT", "INSERT", "UPDATE") if mode == "upsert" else ("INSERT",)
        rights = ", ".join(f"has_table_privilege(%s, '{right}')" for right in needed)
        had = self.query(f"SELECT {rights}", (self._table,) * len(needed))[0]
        lacking = [right for right, has in zip(needed, had, strict=True) if not has]
        if lacking:
            user = self.query("SELECT current_user")[0][0]
            raise ConfigurationError(
                f"{self.where}: user {user!r} is not allowed to {' and '.join(lacking)} on "
                f"{self.target}. GRANT {', '.join(lacking)} ON {self._table} TO {_quoted(user)}"
            )

    # -- rows

    def insert(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        self._copy(self._table, names, columns)

    def upsert(
        self, names: Sequence[str], key: Sequence[str], batches: Iterable[Sequence[pa.Array]]
    ) -> None:
        self._upsert(self._table, names, key, batches)

    def begin_rehearsal(self) -> None:
        # In a transaction, or a pooler might give the next statement to another connection.
        self.begin()
        self.execute(
            f"CREATE TEMPORARY TABLE turnback_rehearsal (LIKE {self._table} INCLUDING ALL) "
            "ON COMMIT DROP"
        )

    def rehearse(
        self, names: Sequence[str], key: Sequence[str], columns: Sequence[pa.Array]
    ) -> None:
        self.execute("SAVEPOINT before")
        self._upsert("pg_temp.turnback_rehearsal", names, key, [columns])
        self.execute("ROLLBACK TO SAVEPOINT before")

    def _upsert(
        self,
        table: str,
        names: Sequence[str],
        key: Sequence[str],
        batches: Iterable[Sequence[pa.Array]],
    ) -> None:
        listed = _listed(names)
        keys = _listed(key)
        rest = [_quoted(name) for name in names if name not in key]
        updates = ", ".join(f"{name} = excluded.{name}" for name in rest)
        self.execute(
            f"CREATE TEMPORARY TABLE turnback_rows ON COMMIT DROP AS "
            f"SELECT {listed} FROM {table} WITH NO DATA"
        )
        self.execute("ALTER TABLE turnback_rows ADD COLUMN turnback_order bigserial")
        for columns in batches:
            self._copy("turnback_rows", names, columns)
        self.execute(
            f"INSERT INTO {table} ({listed}) SELECT DISTINCT ON ({keys}) {listed} "
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

    def limit_lock_wait(self, seconds: float) -> None:
        self.execute("SELECT set_config('lock_timeout', %s, false)", (f"{seconds:g}s",))

    def prepare(self, txn: TransactionId) -> None:
        self.execute(f"PREPARE TRANSACTION {self._gid(txn)}")

    def commit_prepared(self, txn: TransactionId) -> bool:
        try:
            self.execute(f"COMMIT PREPARED {self._gid(txn)}")
        except UnknownTransactionError:
            return False
        return True

    def roll_back_prepared(self, txn: TransactionId) -> None:
        with suppress(UnknownTransactionError):
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
            raise UnknownTransactionError(self._told(error)) from None
        except errors.InsufficientPrivilege as error:
            raise ConfigurationError(self._told(error)) from None
        except errors.LockNotAvailable as error:
            raise LockTimeoutError(self._told(error)) from None
        except self._psycopg.Error as error:
            if self._connection.closed or isinstance(error, errors.AdminShutdown):
                raise LostConnectionError(self._told(error)) from None
            raise SinkError(self._told(error)) from None

    def _told(self, error: Any) -> str:
        diag = error.diag
        text = diag.message_primary or str(error).strip()
        if (diag.sqlstate or "")[:2] not in _ABOUT_ROWS:
            parts = [text, *filter(None, (diag.message_detail, diag.message_hint))]
            return f"{self.where}: {'. '.join(parts)}"
        # What a row holds is nothing for a log: the detail has the whole row or its key, and the
        # message quotes values unless it is about a constraint.
        if not diag.constraint_name and not diag.column_name:
            text = _QUOTED_VALUE.sub('"..."', text)
        places = {"column": diag.column_name, "constraint": diag.constraint_name}
        named = [f"{what} {name!r}" for what, name in places.items() if name and name not in text]
        if not named and (match := _COPIED_COLUMN.search(diag.context or "")):
            named = [f"column {match[1]!r}"]
        at = f" ({', '.join(named)} of {self.target})" if named else f" ({self.target})"
        return f"{self.where}: {text}{at}"


_ABOUT_ROWS = ("22", "23", "44", "P0")
"""Classes of errors whose texts may hold values of rows."""
_QUOTED_VALUE = re.compile(r'".*"', re.DOTALL)
_COPIED_COLUMN = re.compile(r"^COPY .*, column ([^:,]+)", re.MULTILINE)


def _refused(where: str, reason: str, secrets: Sequence[str]) -> Exception:
    for secret in filter(None, secrets):
        reason = reason.replace(secret, "***")
    reason = " ".join(reason.split())
    text = f"cannot reach {where}: {reason}"
    for sign in ("authentication failed", "no password supplied", "does not exist", "pg_hba.conf"):
        if sign in reason:
            return ConfigurationError(
                f"{text}. Check the user, the database and the password, which comes from the "
                "dsn, from the environment variable in password_from, or from PGPASSWORD"
            )
    return SinkError(f"{text}. Check that the server is running")


def _address(parameters: Mapping[str, str]) -> str:
    host = parameters.get("host") or parameters.get("hostaddr") or os.environ.get("PGHOST", "local")
    port = parameters.get("port") or os.environ.get("PGPORT", "5432")
    database = parameters.get("dbname") or os.environ.get("PGDATABASE", "")
    return f"{host}:{port}/{database}"


def _column(
    name: str,
    base: str,
    declared: str,
    modifier: int,
    not_null: bool,
    default: str | None,
    identity: str,
    generated: bool,
    deterministic: bool,
    category: str,
) -> TableColumn:
    limits = Limits(nullable=not not_null, nul=False)
    if base == "varchar" and modifier > 0:
        limits = replace(limits, most_characters=modifier - 4)
    elif base == "bpchar" and modifier > 0:
        limits = replace(limits, exact_characters=modifier - 4)
    elif base == "bpchar":
        limits = replace(limits, trailing_blanks=False)
    folds = None
    if base == "citext":
        folds = "its type is citext, which does not distinguish upper from lower case; use text"
    elif not deterministic:
        folds = 'its collation is not deterministic; use COLLATE "C"'
    elif base.startswith("_"):
        folds = "different texts, such as {1,2} and {1, 2}, are the same array; use text"
    elif base == "jsonb":
        folds = 'different texts, such as {"a":1} and {"a": 1}, are the same document; use text'
    elif category in _FOLDING_CATEGORIES:
        folds = f"different texts may be the same {declared}; use text"
    numbered = bool(identity) or any(
        (default or "").startswith(function) for function in ("nextval(", "gen_random_uuid(")
    )
    return TableColumn(
        name=name,
        type=base,
        declared=declared,
        required=not_null and default is None and not identity and not generated,
        limits=limits,
        generated=generated or identity == "a",
        unique_by_itself=numbered or (default is None and not not_null),
        folds=folds,
        ignores_trailing_blanks=base == "bpchar",
        changes_text=(
            base in _CHANGES_TEXT
            or category in _CHANGING_CATEGORIES
            or (base.startswith("_") and base not in _PLAIN_ARRAYS)
        ),
        is_json=base == "jsonb",
    )


def _unique_index(
    name: str,
    columns: list[str | None],
    valid: bool,
    immediate: bool,
    whole: bool,
    deterministic: bool,
) -> UniqueIndex:
    problem = None
    if not immediate:
        problem = "its constraint is DEFERRABLE, which ON CONFLICT does not support"
    elif not valid:
        problem = "it is not valid; REINDEX it"
    elif not whole:
        problem = "it covers only some of the rows"
    elif not deterministic:
        problem = 'it compares by a nondeterministic collation; use COLLATE "C"'
    return UniqueIndex(name, tuple(columns), problem)


_UNREHEARSED = r"""
WITH target AS (SELECT %(table)s::regclass::oid AS id),
tree AS (
    SELECT id FROM target
    UNION SELECT relid::oid FROM target, pg_catalog.pg_partition_tree(id)
),
of_check AS (
    -- What CHECK constraints look at: instead of a generated column, what it is made of.
    SELECT c.oid AS check_id, coalesce(b.attname, a.attname)::text AS name
    FROM target JOIN pg_catalog.pg_constraint c ON c.conrelid = id AND c.contype = 'c'
    JOIN pg_catalog.pg_attribute a ON a.attrelid = id AND a.attnum = ANY (c.conkey)
    LEFT JOIN pg_catalog.pg_attrdef g
    ON g.adrelid = id AND g.adnum = a.attnum AND a.attgenerated <> ''
    LEFT JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_attrdef'::regclass AND d.objid = g.oid
    AND d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = id
    AND d.refobjsubid NOT IN (0, a.attnum)
    LEFT JOIN pg_catalog.pg_attribute b ON b.attrelid = id AND b.attnum = d.refobjsubid
),
found AS (
    SELECT 'foreign key' AS kind, conname::text AS name, conrelid AS place
    FROM pg_catalog.pg_constraint WHERE contype = 'f' AND conparentid = 0
    AND conrelid IN (SELECT id FROM tree)
    UNION ALL
    SELECT 'reference', conname, conrelid
    FROM pg_catalog.pg_constraint WHERE contype = 'f' AND conparentid = 0
    AND confrelid IN (SELECT id FROM tree) AND EXISTS (
        SELECT FROM pg_catalog.pg_attribute WHERE attrelid = confrelid
        AND attnum = ANY(confkey) AND attname::text = ANY(%(updated)s::text[])
    )
    UNION ALL
    -- In a row that is there, columns that are not written may have any value.
    SELECT 'check', conname, conrelid
    FROM pg_catalog.pg_constraint, target WHERE contype = 'c' AND conrelid = id
    AND EXISTS (SELECT FROM of_check WHERE check_id = oid AND name <> ALL (%(written)s::text[]))
    AND (NOT convalidated OR EXISTS (
        SELECT FROM of_check WHERE check_id = oid AND name = ANY (%(updated)s::text[])
    ))
    UNION ALL
    SELECT 'EXCLUDE constraint', conname, conrelid
    FROM pg_catalog.pg_constraint WHERE contype = 'x' AND coninhcount = 0
    AND conrelid IN (SELECT id FROM tree)
    UNION ALL
    SELECT 'partition constraint', conname, conrelid
    FROM pg_catalog.pg_constraint WHERE contype IN ('c', 'n', 'p', 'u') AND coninhcount = 0
    AND conrelid IN (SELECT id FROM tree EXCEPT SELECT id FROM target)
    UNION ALL
    -- 4: BEFORE or AFTER INSERT, 16: UPDATE. Those of a partitioned table are copied to partitions.
    (SELECT DISTINCT ON (tgname) 'trigger', tgname, tgrelid
    FROM pg_catalog.pg_trigger, target
    WHERE NOT tgisinternal AND tgenabled <> 'D' AND tgtype & 20 <> 0
    AND tgrelid IN (SELECT id FROM tree) ORDER BY tgname, tgrelid <> id)
    UNION ALL
    -- 2: UPDATE, 3: INSERT. The rules of partitions are not asked.
    SELECT 'rule', rulename, ev_class
    FROM pg_catalog.pg_rewrite, target
    WHERE ev_class = id AND ev_type IN ('2', '3') AND ev_enabled <> 'D'
    UNION ALL
    SELECT 'row security', current_user, id
    FROM target WHERE pg_catalog.row_security_active(id)
    UNION ALL
    SELECT 'parent', inhparent::regclass::text, id
    FROM pg_catalog.pg_inherits JOIN target ON inhrelid = id
    JOIN pg_catalog.pg_class c ON c.oid = id AND c.relispartition
    UNION ALL
    SELECT 'partitions', '', partrelid
    FROM pg_catalog.pg_partitioned_table
    WHERE partstrat IN ('r', 'l') AND partdefid = 0 AND partrelid IN (SELECT id FROM tree)
)
SELECT kind, name, place::regclass::text FROM found ORDER BY kind, place, name
"""
"""What `LIKE ... INCLUDING ALL` does not copy, or what works otherwise in a table without rows."""


def _refusing(kind: str, name: str, place: str) -> str:
    """What may refuse rows only when they are published, and what to do."""
    late = "may reject rows after a checkpoint has included them"
    if kind == "reference":
        return (
            f"is referenced by the foreign key {name!r} of {place} with columns that are "
            f"updated, which {late}. Drop it, or omit these columns"
        )
    if kind == "check":
        return (
            f"has the CHECK constraint {name!r} of columns that are updated and others that are "
            f"not written, which {late}: in an existing row the others can have any value. "
            f"ALTER TABLE {place} DROP CONSTRAINT {_quoted(name)}, or write all of its columns"
        )
    if kind == "trigger":
        return (
            f"has the trigger {name!r}, which {late}, or change them. Drop it, or "
            f"ALTER TABLE {place} DISABLE TRIGGER {_quoted(name)}"
        )
    if kind == "rule":
        return f"has the rule {name!r}, and ON CONFLICT does not support tables with rules. Drop it"
    if kind == "row security":
        return (
            f"has row security for user {name!r}, which {late}. Write as its owner, or "
            f"ALTER ROLE {_quoted(name)} BYPASSRLS"
        )
    if kind == "parent":
        return (
            f"is a partition of {name}, which {late} that belong to other partitions. Write to "
            f"{name}"
        )
    if kind == "partitions":
        return (
            f"has no default partition in {place}, which {late}. CREATE TABLE {place}_default "
            f"PARTITION OF {place} DEFAULT, with any name"
        )
    if kind == "partition constraint":
        return (
            f"has a partition with its own constraint, {name!r} of {place}, which {late}. Drop "
            "it, or add it to the whole table"
        )
    how = f"ALTER TABLE {place} DROP CONSTRAINT {_quoted(name)}"
    return f"has the {kind} {name!r}, which {late}. {how}"


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
