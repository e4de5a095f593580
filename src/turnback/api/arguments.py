"""What users pass in, checked and in one form."""

from __future__ import annotations

from datetime import datetime
from os import PathLike, fspath
from typing import Any

from turnback.config.extract import location as location
from turnback.core.errors import ConfigurationError


def positive(what: str, number: Any) -> int:
    """A whole number above 0."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigurationError(f"{what} must be a whole number above 0, got {number!r}")
    return number


def path_text(what: str, path: Any) -> str:
    """A path or URI as text."""
    text = fspath(path) if isinstance(path, str | PathLike) else None
    if not isinstance(text, str) or not text:
        raise ConfigurationError(f"{what} must be a path or a URI, got {path!r}")
    return text


def snapshot_text(given: str | int | PathLike[str] | datetime | None) -> str | int | None:
    """Which checkpoint to start from: a number, or text that says which."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    if isinstance(given, datetime):
        return given.isoformat()
    if isinstance(given, str | PathLike) and fspath(given):
        return fspath(given)
    raise ConfigurationError(
        f"start_from is a checkpoint's number, its name, its path or a time, got {given!r}"
    )
