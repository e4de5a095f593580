from __future__ import annotations

from typing import Any, Generic, TypeVar

from turnback.state.single import SingleState

T = TypeVar("T")


class ValueState(SingleState, Generic[T]):
    """One value per key.

    The object handed out is the cached one: change it only together with `update`.
    """

    __slots__ = ()

    def value(self) -> T | None:
        """The value of the current key, None when there is none."""
        try:
            return self._cache[self._context.key]  # type: ignore[no-any-return]
        except KeyError:
            return self._read()  # type: ignore[no-any-return]

    def update(self, value: T | None) -> None:
        """Set the value of the current key; None removes it."""
        key: Any = self._context.key
        self._cache[key] = self._dirty[key] = value
