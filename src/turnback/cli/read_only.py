"""Whether a query only reads: `turnback query` is for looking."""

from __future__ import annotations

import re

from turnback.core.errors import ConfigurationError

_QUOTED = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`""",
    re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_READING = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"}
_WRITING = re.compile(
    r"\b(INSERT\s+(INTO|OVERWRITE)|MERGE\s+(INTO|WITH)|DELETE\s+FROM|UPDATE\s+\S+\s+SET)\b"
)
_CALLING = re.compile(r"\b(REFLECT|TRY_REFLECT|JAVA_METHOD)\s*\(")


def check_read_only(sql: str) -> None:
    """Refuse a statement that might change something.

    Raises:
        ConfigurationError: It is no query, or it writes, or calls any method of Java.
    """
    plain = _QUOTED.sub(lambda match: " " if match["comment"] else " x ", sql).upper()
    first = _WORD.search(plain)
    word = first[0] if first else ""
    writing = _WRITING.search(plain) or _CALLING.search(plain)
    if word in _READING and writing is None:
        return
    what = writing[0].strip(" (") if writing else word or "nothing"
    raise ConfigurationError(
        f"turnback query only reads, and this is {what}: write SELECT ..., and to change state use "
        "SavepointWriter"
    )
