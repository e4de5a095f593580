from __future__ import annotations

from turnback.config.options import OPTIONS
from turnback.config.spark import SPARK_DOC, SPARK_PREFIX

_HEAD = ("Key", "Default", "What it does", "Other names")


def table() -> str:
    """Every key as a table in Markdown, for the documentation."""
    rows = [
        (
            f"`{option.key}`",
            "" if option.default is None else f"`{option.default}`",
            option.doc,
            ", ".join(f"`{alias}`" for alias in option.aliases),
        )
        for option in OPTIONS
    ]
    rows.append((f"`{SPARK_PREFIX}*`", "", SPARK_DOC, ""))
    rule = tuple("---" for _ in _HEAD)
    return "".join(f"| {' | '.join(row)} |\n" for row in (_HEAD, rule, *sorted(rows)))
