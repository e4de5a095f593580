from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnback.core import KeyCodec, TypeInfo


@dataclass(frozen=True)
class KeySpec:
    """How the elements of a stream get their key: from columns, or from a function.

    Attributes:
        columns: The key columns; empty when a function computes the key.
        function: Computes the key of an element; None when columns are named.
        types: The type of each part of the key.
    """

    columns: tuple[str, ...]
    function: Callable[[Any], Any] | None
    types: tuple[TypeInfo, ...]

    def codec(self) -> KeyCodec:
        """The codec of this key; refuses types that cannot be keys."""
        return KeyCodec(self.types, by_columns=self.function is None)
