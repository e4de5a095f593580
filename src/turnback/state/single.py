from __future__ import annotations

from typing import Any

from turnback.core import Serializer
from turnback.state.context import KeyContext
from turnback.state.delta import DeltaBuilder
from turnback.state.encode import encode_all
from turnback.state.layout import state_prefix
from turnback.state.schema import StateSchema


class SingleState:
    """A state of one value per key: what value, reducing and aggregating state have in common.

    `_cache` holds every value seen or set in this epoch, decoded, None where there is none;
    `_dirty` those that were set.
    """

    __slots__ = ("_cache", "_context", "_decode", "_dirty", "_encode_all", "_prefix", "schema")

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        self.schema = schema
        self._context = context
        self._prefix = state_prefix(*schema.id)
        self._encode_all = serializer.encode_all
        self._decode = serializer.decode
        self._cache: dict[Any, Any] = {}
        self._dirty: dict[Any, Any] = {}

    def begin(self) -> None:
        """Forget the epoch before."""
        self._cache.clear()
        self._dirty.clear()

    def drain(self, builder: DeltaBuilder) -> None:
        """Write what was set in this epoch."""
        dirty = self._dirty
        if not dirty:
            return
        places = self._context.locate_all(dirty)
        builder.add(
            self.schema,
            [place[0] for place in places],
            [place[1] for place in places],
            None,
            encode_all(self.schema, self._encode_all, list(dirty), list(dirty.values())),
        )

    def clear(self) -> None:
        """Remove the value of the current key."""
        key = self._context.key
        self._cache[key] = self._dirty[key] = None

    def _read(self) -> Any:
        """The stored value of the current key; kept for the rest of the epoch."""
        context = self._context
        key = context.key
        _, _, suffix, wrapped = context.located.get(key) or context.locate(key)
        data = context.get(self._prefix + suffix)
        value = None if data is None else self._decode(data[wrapped:] if wrapped else data)
        self._cache[key] = value
        return value
