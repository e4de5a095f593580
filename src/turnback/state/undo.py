"""Undoing what an element has done to state: dicts get back what they had."""

from __future__ import annotations

from typing import Any

NOT_THERE: Any = object()
"""In place of what a dict has under a key: nothing."""


def put_back(values: dict[Any, Any], key: Any, value: Any) -> None:
    """Let a dict have under a key what it had."""
    if value is NOT_THERE:
        values.pop(key, None)
    else:
        values[key] = value
