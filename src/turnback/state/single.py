from __future__ import annotations

from typing import Any

from turnback.core import Serializer
from turnback.state.cachedform import CachedForm
from turnback.state.context import KeyContext
from turnback.state.delta import DeltaBuilder
from turnback.state.encode import encode_all, misfit
from turnback.state.layout import state_prefix
from turnback.state.schema import StateSchema


class SingleState:
    """A state of one value per key: what value, reducing and aggregating state have in common.

    `_cache` holds every value seen or set in this epoch, as `CachedForm` says, None where there is
    none; `_dirty` those that were set.
    """

    __slots__ = (
        "_cache", "_context", "_dirty", "_kept", "_plain", "_prefix", "_show", "schema"
    )  # fmt: skip

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        self.schema = schema
        self._context = context
        self._prefix = state_prefix(*schema.id)
        self._kept = CachedForm(serializer)
        self._plain, self._show = self._kept.plain, self._kept.show
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
            encode_all(self.schema, self._kept.encode_all, list(dirty), list(dirty.values())),
        )

    def clear(self) -> None:
        """Remove the value of the current key."""
        key = self._context.key
        self._cache[key] = self._dirty[key] = None

    def _current(self) -> Any:
        """The value of the current key, which the caller may change."""
        try:
            kept = self._cache[self._context.key]
        except KeyError:
            kept = self._read()
        return kept if self._show is None or kept is None else self._show(kept)

    def _keep(self, value: Any) -> Any:
        """What is kept of a value whose class is not `_plain`."""
        if value is None:
            return None
        try:
            return self._kept.keep(value)
        except Exception as e:
            raise misfit(self.schema, self._context.key, value, e) from e

    def _read(self) -> Any:
        """What is stored under the current key, as it is kept for the rest of the epoch."""
        context = self._context
        key = context.key
        _, _, suffix, wrapped = context.located.get(key) or context.locate(key)
        data = context.get(self._prefix + suffix)
        value = None if data is None else self._kept.load(data[wrapped:] if wrapped else data)
        self._cache[key] = value
        return value
