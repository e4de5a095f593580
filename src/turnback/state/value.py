from __future__ import annotations

from typing import Any, Generic, TypeVar

from turnback.state.single import SingleState

T = TypeVar("T")


class ValueState(SingleState, Generic[T]):
    """One value per key.

    A list, a dict or any other value that can be changed in place is the caller's own: changes
    count when it is given to `update`, and what is done to it afterwards does not.
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
        if type(value) is not self._plain:
            value = self._keep(value)
        self._cache[key] = self._dirty[key] = value


class ChangeableValueState(ValueState[T]):
    """A value state whose values are kept encoded, since they can be changed in place.

    A class of its own, so that other value states need not ask.
    """

    __slots__ = ()

    def value(self) -> T | None:
        """The value of the current key, None when there is none; a new one with every call."""
        return self._current()  # type: ignore[no-any-return]
