"""How the elements of a stream without a key are spread over the subtasks of what reads it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from turnback.functions.base import Function
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


SINGLE_TASK = KeySpec((), in_one_place, (Types.INT(),))
"""All elements have one key, so that one task gets all of them."""


class Partitioner(Function, ABC):
    """Chooses the subtask for each key; must be deterministic. It is not opened."""

    @abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """Return the number of the subtask, from 0 to `num_partitions` - 1."""


class Spread(Enum):
    """Where elements go; the values are what users have called."""

    REBALANCE = "rebalance"
    RESCALE = "rescale"
    SHUFFLE = "shuffle"
    FORWARD = "forward"
    BROADCAST = "broadcast"
    CUSTOM = "partition_custom"


@dataclass(frozen=True)
class Partitioning:
    """How a stream is spread.

    Attributes:
        partition: For `CUSTOM`, gives the subtask for a key and the number of subtasks.
        key: For `CUSTOM`, gives the key of an element.
    """

    spread: Spread
    partition: Callable[[Any, int], int] | None = None
    key: Callable[[Any], Any] | None = None

    @property
    def exchanges(self) -> bool:
        """Whether elements leave the task they are in."""
        return self.spread is not Spread.FORWARD

    @property
    def copies(self) -> bool:
        """Whether every subtask gets all elements."""
        return self.spread is Spread.BROADCAST
