"""SQL over the states of a snapshot, in this process and in a second, with DuckDB.

DuckDB is asked only what it answers exactly as Spark does: values, their types and the names of
columns. Which queries those are is decided by their syntax tree, and whatever is not on the list is
left to Spark. It sees the tables of the query and nothing else: no files, no network, no settings.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from turnback.errors import ConfigurationError
from turnback.snapshot.snapshot import Snapshot, StoredRows

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MOST_ROWS = 5_000_000
MOST_BYTES = 256 << 20
"""Of the files; a snapshot with more is read by Spark."""

_AGGREGATES = frozenset({"count", "sum", "min", "max", "avg"})
_FUNCTIONS = _AGGREGATES | {
    "count_star",
    "abs",
    "length",
    "+",
    "-",
    "*",
    "/",
    "%",
    "||",
    "~~",
    "!~~",
}
_INEXACT = frozenset({"avg", "*", "/", "%"})
"""Those that give decimals other types than Spark does."""
_CLASSES = frozenset(
    {"BETWEEN", "CASE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION"}
    | {"OPERATOR", "STAR", "SUBQUERY"}
)
_OPERATORS = frozenset(
    {"OPERATOR_NOT", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_COALESCE"}
    | {"COMPARE_IN", "COMPARE_NOT_IN", "STRUCT_EXTRACT"}
)
_CONSTANTS = frozenset({"BOOLEAN", "INTEGER", "NULL", "NULL_LITERAL", "STRING", "VARCHAR"})
_QUERIES = frozenset({"CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"})
_SOURCES = frozenset({"BASE_TABLE", "EMPTY", "JOIN", "SUBQUERY"})
_JOINS = frozenset({"INNER", "LEFT", "OUTER", "RIGHT"})
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "default_null_order": "nulls_first_on_asc_last_on_desc",
}


class LeftToSpark(Exception):
    """A query that Spark has to run, and why."""


def fits_here(*states: StoredRows) -> bool:
    """Whether states are small enough to be held in this process."""
    files = [file for stored in states for file in stored.held_by()]
    return (
        sum(file.rows for file in files) <= MOST_ROWS
        and sum(file.length for file in files) <= MOST_BYTES
    )


def query(snapshot: Snapshot, sql: str, most: int) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the first rows that a query gives, with the values Spark would give.

    Raises:
        LeftToSpark: It is not among those that are answered here.
        ConfigurationError: It does not only read, or is wrong.
        StorageError: A file is damaged or missing.
    """
    from turnback.snapshot.writer import view_names

    try:
        import duckdb
    except ImportError:
        raise LeftToSpark("pip install 'turnback[query]' makes most queries fast") from None
    views = {view.lower(): id for id, view in view_names(snapshot.state_ids).items()}
    with duckdb.connect(config=_SETTINGS) as connection:
        tree = _parse(connection, sql)
        names = _Check(tree, set(views)).tables()
        states = {name: snapshot.rows(snapshot.state(*views[name])) for name in names}
        if not fits_here(*states.values()):
            raise LeftToSpark("the states are large")
        for name, stored in states.items():
            _create(connection, name, stored, snapshot.max_parallelism, tree)
        connection.execute("SET lock_configuration = true").fetchall()
        try:
            result = connection.execute(sql)
            rows = [[_collected(value) for value in row] for row in result.fetchmany(most)]
        except duckdb.Error as error:
            if "Referenced column" in str(error) or "Referenced table" in str(error):
                raise ConfigurationError(f"invalid query: {_text(error)}") from error
            raise LeftToSpark(_text(error)) from error
        found = [column[0] for column in result.description or ()]
    return _names(tree, found), rows


def unknown_table(name: str, views: Sequence[str]) -> ConfigurationError:
    """Say that no state is called so, with the nearest name."""
    near = get_close_matches(name, views, 1, 0.5)
    there = ", ".join(sorted(views)) or "none"
    hint = f"did you mean {near[0]!r}?" if near else f"available tables: {there}"
    return ConfigurationError(f"there is no table {name!r}; {hint}")


def _parse(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Return the syntax tree of a query that only reads."""
    if any(mark in sql for mark in '"`\\'):
        raise LeftToSpark("Spark interprets its quotes or backslashes differently")
    ((text,),) = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed["error"] and parsed.get("error_type") != "not implemented":
        raise LeftToSpark(str(parsed.get("error_message")))
    kinds = [statement.type.name for statement in connection.extract_statements(sql)]
    if parsed["error"] or kinds != ["SELECT"]:
        raise ConfigurationError("snapshots are read-only: use a single SELECT")
    node: dict[str, Any] = parsed["statements"][0]["node"]
    return node


class _Check:
    """Looks whether Spark might answer a query otherwise, or not at all."""

    def __init__(self, tree: dict[str, Any], views: set[str]) -> None:
        self._tree = tree
        self._views = views
        self._nodes = list(_nodes(tree))
        maps = [node.get("cte_map", {}).get("map", ()) for node in self._nodes]
        self._named = {str(each["key"]).lower() for entries in maps for each in entries}

    def tables(self) -> set[str]:
        """Return the tables of the query; raises as `query` does."""
        if self._named & self._views:
            raise LeftToSpark("a name refers to two tables")
        for node in self._nodes:
            if "class" in node:
                self._expression(node)
            elif "select_list" in node:
                self._select(node)
            elif "sample" in node and "alias" in node:
                self._source(node)
            elif str(node.get("type")).endswith("_NODE"):
                _only(node["type"], _QUERIES)
        tables = {
            str(n["table_name"]).lower() for n in self._nodes if n.get("type") == "BASE_TABLE"
        }
        for name in sorted(tables - self._named - self._views):
            raise unknown_table(name, sorted(self._views))
        return tables - self._named

    def _expression(self, node: dict[str, Any]) -> None:
        kind = str(node["class"])
        type_ = str(node.get("type"))
        if kind == "OPERATOR":
            _only(type_, _OPERATORS)
        elif kind == "CONSTANT":
            _only(_constant(node)[0], _CONSTANTS)
        elif kind == "FUNCTION":
            _only(node["function_name"], _FUNCTIONS)
            if node["function_name"] in ("/", "%"):
                _check_divisor(node)
        _only(kind, _CLASSES)
        own = ("columns", "exclude_list", "replace_list", "rename_list", "filter")
        if any(node.get(name) for name in own):
            raise LeftToSpark(type_)

    def _select(self, node: dict[str, Any]) -> None:
        distinct_on = any(m.get("distinct_on_targets") for m in node["modifiers"])
        sets = len(node["group_sets"]) > 1
        if distinct_on or sets or node.get("qualify") or node.get("sample"):
            raise LeftToSpark("it uses syntax that is different in Spark")
        stars = any(n.get("class") == "STAR" for n in self._nodes)
        for item in node["select_list"]:
            named = item.get("alias") or item["class"] in ("COLUMN_REF", "STAR")
            is_first = node is _first_select(self._tree)
            if not named and ((is_first and _spark_name(item) is None) or (not is_first and stars)):
                raise LeftToSpark("a column has no name: give it one with AS")

    def _source(self, node: dict[str, Any]) -> None:
        _only(node["type"], _SOURCES)
        if node["type"] == "JOIN":
            _only(node["join_type"], _JOINS)
            _only(node["ref_type"], {"CROSS", "REGULAR"})
        if node["sample"] or node.get("at_clause") or node.get("schema_name"):
            raise LeftToSpark("it reads a table in a way that DuckDB does not share with Spark")


def _only(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise LeftToSpark(f"it uses {name}")


def _constant(node: dict[str, Any]) -> tuple[str, Any]:
    """The kind and the text of a constant, as different versions write them."""
    if "literal" in node:
        return node["literal"]["kind"], node["literal"].get("text")
    value = node["value"]
    return "NULL" if value["is_null"] else value["type"]["id"], value.get("value")


def _check_divisor(node: dict[str, Any]) -> None:
    """A division by 0 is NULL in DuckDB and an error in Spark."""
    divisor = _arguments(node)[-1]
    kind, text = _constant(divisor) if divisor["class"] == "CONSTANT" else ("", "0")
    if kind != "INTEGER" or not int(text):
        raise LeftToSpark("it may divide by 0")


def _arguments(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [each.get("expression", each) for each in node.get("arguments") or node["children"]]


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    for each in tree if isinstance(tree, list) else ():
        yield from _nodes(each)


def _first_select(tree: dict[str, Any]) -> dict[str, Any]:
    """The SELECT that names the columns of the result."""
    return next(node for node in _outer(tree) if "select_list" in node)


def _outer(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        yield tree
        tree = tree.get("child") or tree.get("left") or tree["children"][0]


def _names(tree: dict[str, Any], found: list[str]) -> list[str]:
    """The names that Spark gives to the columns of the result."""
    items = _first_select(tree)["select_list"]
    if any(item["class"] == "STAR" for item in items):
        return found
    names = [item.get("alias") or _spark_name(item) for item in items]
    return [known or name for known, name in zip(names, found, strict=True)]


def _spark_name(item: dict[str, Any]) -> str | None:
    """What Spark calls a column that the query does not name; None if that is not known here."""
    if item["class"] == "COLUMN_REF":
        return str(item["column_names"][-1])
    name = item.get("function_name")
    if name == "count_star":
        return "count(1)"
    if name not in _AGGREGATES or _arguments(item)[0]["class"] != "COLUMN_REF":
        return None
    distinct = "DISTINCT " if item.get("distinct") else ""
    return f"{name}({distinct}{_arguments(item)[0]['column_names'][-1]})"


def _create(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    stored: StoredRows,
    groups: int,
    tree: dict[str, Any],
) -> None:
    """Copy a state into a table; nothing of Python's is left for the query to reach."""
    import pyarrow as pa

    from turnback.snapshot.numbering import numbered
    from turnback.snapshot.table import StateTable

    schema = StateTable(stored.schema).arrow_schema
    used = {node.get("function_name") for node in _nodes(tree)}
    if "decimal" in str(schema) and used & _INEXACT:
        raise LeftToSpark("it calculates with decimals")
    tables = [schema.empty_table(), *numbered(stored, 0, groups - 1)]
    connection.register("given", pa.concat_tables(tables))
    connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM given').fetchall()
    connection.unregister("given")


def collected(column: pa.ChunkedArray) -> list[Any]:
    """A column as Spark collects it."""
    values = column.to_pylist(maps_as_pydicts="strict")
    return [_collected(value) for value in values]


def _collected(value: Any) -> Any:
    """A value as Spark collects it: instants are local times without a zone."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    if isinstance(value, dict):
        return {key: _collected(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_collected(item) for item in value]
    return value


def _text(error: Exception) -> str:
    return " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip())
