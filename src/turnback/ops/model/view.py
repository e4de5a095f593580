"""The base of everything that people see."""

from __future__ import annotations

import msgspec


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything here."""
