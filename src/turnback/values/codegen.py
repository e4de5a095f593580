"""Functions written for one type: faster than a loop over its fields."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import CodeType
from typing import Any


def generate(name: str, lines: Iterable[str], scope: dict[str, Any]) -> Any:
    """Return the function of this name that the lines define; `scope` has what it refers to."""
    exec(_compiled("\n".join(lines)), scope)
    return scope[name]


@lru_cache(maxsize=1024)
def _compiled(source: str) -> CodeType:
    # Types of one shape have one source, and compiling it takes most of the time.
    return compile(source, "<turnback>", "exec")
