"""How the elements of a stream get their key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turnback.values.keys import KeyCodec
from turnback.values.typeinfo import TypeInfo, Types


@dataclass(frozen=True)
class KeySpec:
    """How the elements of a stream get their key: from `columns`, or else from a `function`.

    Attributes:
        types: Those of the parts of the key.
        as_columns: Whether what the function gives goes where Spark sends equal columns: those of
            the other input of an operator.
    """

    columns: tuple[str, ...]
    function: Callable[[Any], Any] | None
    types: tuple[TypeInfo, ...]
    as_columns: bool = False

    def codec(self) -> KeyCodec:
        """The codec of this key; refuses types that cannot be keys."""
        return KeyCodec(self.types, by_columns=self.function is None or self.as_columns)


def in_one_place(element: Any) -> int:
    """Give every element the same key."""
    return 0


IN_ONE_PLACE = KeySpec((), in_one_place, (Types.INT(),))
"""All elements have one key, so that one task gets all of them."""
