"""State of single windows, and of keys over all their windows, for functions and triggers.

Which states these are is known when they are asked for, while elements are processed. So they share
one map per operator, from window and name to the bytes of a whole value, list or map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turnback.errors import StateError
from turnback.functions.base import ProcessWindowFunction, RuntimeContext
from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from turnback.timing.windows import TimeWindow
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, Types

WINDOW_STATE = "window.state"
GLOBAL_STATE = "window.global"
MERGING = (
    "windows that merge, such as sessions, cannot have their own state; use global_state(), "
    "which belongs to the key"
)
"""Why windows have no state; or else"""
UNFORESEEN = (
    "the use of window state cannot be detected here; override clear(self, context) in the "
    "ProcessWindowFunction to declare that it has window state"
)
NAMED_IN_WINDOW = RowTypeInfo(
    ("start", "end", "name"), (Types.LONG(), Types.LONG(), Types.STRING())
)


class WindowedStateDescriptor(MapStateDescriptor[Any, Any]):
    """A map from rows that tell a window, each field of which is a column of its table."""

    kind = "windowed"


class WindowState:
    """A state of one window, or of one key."""

    def __init__(self, states: Any, entry: Any, descriptor: StateDescriptor) -> None:
        self._states = states
        self._entry = entry
        type_ = descriptor.type
        if descriptor.kind == "list":
            type_ = ListTypeInfo(type_)
        elif descriptor.key_type is not None:
            type_ = MapTypeInfo(descriptor.key_type, type_)
        self._serializer = Serializer(type_)
        self._descriptor: Any = descriptor

    def clear(self) -> None:
        self._states.remove(self._entry)

    def _read(self) -> Any:
        data = self._states.get(self._entry)
        return None if data is None else self._serializer.decode(data)

    def _write(self, value: Any) -> None:
        if value is None:
            self.clear()
            return
        self._states.put(self._entry, self._serializer.encode(value))

    def absorb(self, other: WindowState) -> None:
        """Take over what a window had that has become part of this one."""
        raise StateError(
            f"state {self._descriptor.name!r}: {self._descriptor.kind} state of windows that merge "
            f"cannot be merged; use list, reducing or aggregating state"
        )


class _Value(WindowState):
    def value(self) -> Any:
        return self._read()

    def update(self, value: Any) -> None:
        self._write(value)


class _List(WindowState):
    def get(self) -> list[Any]:
        return self._read() or []

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def add(self, value: Any) -> None:
        self.add_all([value])

    def add_all(self, values: Iterable[Any]) -> None:
        self.update([*self.get(), *values])

    def update(self, values: Iterable[Any] | None) -> None:
        self._write(list(values or ()) or None)

    def absorb(self, other: WindowState) -> None:
        self.add_all(other._read() or ())


class _Map(WindowState):
    def get(self, key: Any) -> Any:
        return self._all().get(key)

    def put(self, key: Any, value: Any) -> None:
        self._write(self._all() | {key: value})

    def put_all(self, values: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        self._write(self._all() | dict(values))

    def remove(self, key: Any) -> None:
        entries = self._all()
        entries.pop(key, None)
        self._write(entries or None)

    def contains(self, key: Any) -> bool:
        return key in self._all()

    def items(self) -> list[tuple[Any, Any]]:
        return list(self._all().items())

    def keys(self) -> list[Any]:
        return list(self._all())

    def values(self) -> list[Any]:
        return list(self._all().values())

    def is_empty(self) -> bool:
        return not self._all()

    def __getitem__(self, key: Any) -> Any:
        return self._all()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self._all()[key]
        self.remove(key)

    def __contains__(self, key: object) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def _all(self) -> dict[Any, Any]:
        return self._read() or {}


class _Reducing(WindowState):
    def get(self) -> Any:
        return self._read()

    def add(self, value: Any) -> None:
        given = self._descriptor.reduce_function
        reduce = getattr(given, "reduce", given)
        before = self._read()
        self._write(value if before is None else reduce(before, value))

    def absorb(self, other: WindowState) -> None:
        value = other._read()
        if value is not None:
            self.add(value)


class _Aggregating(WindowState):
    def get(self) -> Any:
        accumulator = self._read()
        function = self._descriptor.aggregate_function
        return None if accumulator is None else function.get_result(accumulator)

    def add(self, value: Any) -> None:
        accumulator = self._read()
        function = self._descriptor.aggregate_function
        if accumulator is None:
            accumulator = function.create_accumulator()
        self._write(function.add(value, accumulator))

    def absorb(self, other: WindowState) -> None:
        mine = self._read()
        theirs = other._read()
        if mine is None or theirs is None:
            self._write(theirs if mine is None else mine)
            return
        merged = self._descriptor.aggregate_function.merge(mine, theirs)
        if merged is None:
            raise StateError(
                f"state {self._descriptor.name!r}: merge of its AggregateFunction returned None, "
                "so the contents of merging windows would be lost; return the merged accumulator"
            )
        self._write(merged)


_KINDS: dict[str, type[WindowState]] = {
    "value": _Value,
    "list": _List,
    "map": _Map,
    "reducing": _Reducing,
    "aggregating": _Aggregating,
}


class WindowStateStore:
    """The states of one window, or of one key; PyFlink's `KeyedStateStore`."""

    def __init__(self, states: Any, window: TimeWindow | None = None) -> None:
        self._states = states
        self._window = window

    def get_state(self, state_descriptor: ValueStateDescriptor[Any]) -> Any:
        return self._get(state_descriptor, ValueStateDescriptor, "get_state")

    def get_list_state(self, state_descriptor: ListStateDescriptor[Any]) -> Any:
        return self._get(state_descriptor, ListStateDescriptor, "get_list_state")

    def get_map_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return self._get(state_descriptor, MapStateDescriptor, "get_map_state")

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor[Any]) -> Any:
        return self._get(state_descriptor, ReducingStateDescriptor, "get_reducing_state")

    def get_aggregating_state(
        self, state_descriptor: AggregatingStateDescriptor[Any, Any, Any]
    ) -> Any:
        return self._get(state_descriptor, AggregatingStateDescriptor, "get_aggregating_state")

    def any_state(self, descriptor: StateDescriptor) -> Any:
        """The state of whatever kind the descriptor says."""
        descriptor.check()
        if descriptor.ttl is not None:
            raise StateError(
                f"state {descriptor.name!r} has a time to live, which window state does not "
                "support: it is deleted with its window. For keyed state with a time to live, "
                "use runtime_context.get_state(...) in open()"
            )
        entry = descriptor.name if self._window is None else (*self._window, descriptor.name)
        return _KINDS[descriptor.kind](self._states, entry, descriptor)

    def _get(self, descriptor: Any, wanted: type[StateDescriptor], method: str) -> Any:
        if not isinstance(descriptor, wanted):
            raise StateError(f"{method} takes a {wanted.__name__}, got {type(descriptor).__name__}")
        return self.any_state(descriptor)


class WindowStates:
    """The states that a `ProcessWindowFunction` keeps, of every window of a key and of the key.

    Args:
        refusal: Why windows cannot have state; None if they can.
    """

    def __init__(self, runtime_context: RuntimeContext, refusal: str | None = None) -> None:
        self._refusal = refusal
        self._of_windows = runtime_context.get_map_state(
            WindowedStateDescriptor(WINDOW_STATE, NAMED_IN_WINDOW, Types.BYTES())
        )
        self._of_key = runtime_context.get_map_state(
            MapStateDescriptor(GLOBAL_STATE, Types.STRING(), Types.BYTES())
        )

    def of_window(self, window: TimeWindow) -> WindowStateStore:
        if self._refusal is not None:
            raise StateError(self._refusal)
        return WindowStateStore(self._of_windows, window)

    def of_key(self) -> WindowStateStore:
        return WindowStateStore(self._of_key)

    def windows(self) -> set[tuple[int, int]]:
        return {(each[0], each[1]) for each in self._of_windows}

    def forget(self, window: TimeWindow) -> None:
        for entry in self._of_windows.of_window(window):
            self._of_windows.remove(entry)


def keeps_window_state(function: Any) -> bool:
    """Whether a function may keep state of single windows, or wants to know when they are gone."""
    if not isinstance(function, ProcessWindowFunction):
        return False
    own = [cls for cls in type(function).__mro__ if cls is not ProcessWindowFunction]
    if type(function).clear is not ProcessWindowFunction.clear:
        return True
    codes = [getattr(each, "__code__", None) for cls in own for each in vars(cls).values()]
    return any("window_state" in code.co_names for code in codes if code is not None)
