"""Functions over a stream and a broadcast one: what users subclass, and what runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from turnback.errors import StateError
from turnback.functions.base import Function, RuntimeContext, TimerFunction
from turnback.functions.descriptors import MapStateDescriptor, StateDescriptor
from turnback.functions.event_time import TimeDomain, TimerService
from turnback.functions.operator_state import CheckpointedFunction
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, Types

K = TypeVar("K")
V = TypeVar("V")


class ReadOnlyBroadcastState(Generic[K, V]):
    """Broadcast state as the elements of the other stream see it."""

    __slots__ = ("_state", "_where")

    def __init__(self, state: Any, where: str) -> None:
        self._state = state
        self._where = where

    def get(self, key: K) -> V | None:
        """The value of an entry, None when there is none."""
        return self._state.get(key)  # type: ignore[no-any-return]

    def contains(self, key: K) -> bool:
        return self._state.contains(key)  # type: ignore[no-any-return]

    def items(self) -> list[tuple[K, V]]:
        return self._state.items()  # type: ignore[no-any-return]

    def keys(self) -> list[K]:
        return self._state.keys()  # type: ignore[no-any-return]

    def values(self) -> list[V]:
        return self._state.values()  # type: ignore[no-any-return]

    def is_empty(self) -> bool:
        return self._state.is_empty()  # type: ignore[no-any-return]

    def __getitem__(self, key: K) -> V:
        return self._state[key]  # type: ignore[no-any-return]

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def __iter__(self) -> Iterator[K]:
        return iter(self._state)

    def put(self, *arguments: Any) -> NoReturn:
        """Refused: subtasks would come to hold different entries."""
        raise StateError(
            f"{self._where}: broadcast state can only be changed in process_broadcast_element, "
            "which runs identically in every subtask; the elements of the other stream are "
            "distributed over the subtasks"
        )

    put_all = remove = clear = __setitem__ = __delitem__ = put


class BaseBroadcastContext(Protocol):
    """Information for both sides of a broadcast process function."""

    def timestamp(self) -> int | None:
        """The element's event time in milliseconds, or the time of the timer; None without one."""

    def current_processing_time(self) -> int:
        """The time at which the epoch began, in milliseconds since 1970."""

    def current_watermark(self) -> int:
        """How far event time has come in the stream that is not broadcast."""

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        """One of the states that `broadcast` was given; read-only for the other stream."""


class BroadcastProcessFunction(Function, ABC):
    """A function over a stream without a key, connected with a broadcast one.

    In every epoch the broadcast elements come first, in the same order in all subtasks.
    """

    Context = BaseBroadcastContext
    ReadOnlyContext = BaseBroadcastContext

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield new elements for an element; `ctx` is a `ReadOnlyContext`."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield new elements for a broadcast element; `ctx` is a `Context`.

        Called in all subtasks, each of which emits its own output. It must make the same changes to
        the broadcast state in all of them, so it may depend only on the element and that state.
        """


class KeyedStateFunction(Function, ABC):
    """What `apply_to_keyed_state` does to the state of each key."""

    @abstractmethod
    def process(self, key: Any, state: Any) -> None:
        """Read or change the state of a key."""


class KeyedBroadcastProcessFunction(TimerFunction, ABC):
    """A function over a keyed stream, connected with a broadcast one; with state and timers.

    In every epoch the broadcast elements come first, in the same order in all subtasks.
    """

    class Context(BaseBroadcastContext, Protocol):
        """Information for a broadcast element."""

        def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Any) -> None:
            """Call a function, or a `KeyedStateFunction`, with each key and its state.

            These are the keys of the subtask that have a value in the state.
            """

    class ReadOnlyContext(BaseBroadcastContext, Protocol):
        """Information for an element of the keyed stream."""

        def timer_service(self) -> TimerService:
            """Timers of the key, and the current time."""

        def get_current_key(self) -> Any:
            """The key of the element."""

    class OnTimerContext(ReadOnlyContext, Protocol):
        """Information about a timer that fires."""

        def time_domain(self) -> TimeDomain:
            """Whether it is an event-time or a processing-time timer."""

    @abstractmethod
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield new elements for an element; `ctx` is a `ReadOnlyContext`."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield new elements for a broadcast element; `ctx` is a `Context`.

        As in `BroadcastProcessFunction`. There is no current key: use `ctx.apply_to_keyed_state` to
        access the state of keys.
        """


class ReadOnlyContext:
    """The context of an element of the stream that is not broadcast, or of a timer of it."""

    __slots__ = ("_states", "inner")

    def __init__(self, inner: Any, states: Mapping[str, Any]) -> None:
        self.inner = inner
        self._states = states

    def timestamp(self) -> int | None:
        return self.inner.timestamp()  # type: ignore[no-any-return]

    def current_processing_time(self) -> int:
        return self.inner.timer_service().current_processing_time()  # type: ignore[no-any-return]

    def current_watermark(self) -> int:
        return self.inner.timer_service().current_watermark()  # type: ignore[no-any-return]

    def timer_service(self) -> TimerService:
        return self.inner.timer_service()  # type: ignore[no-any-return]

    def get_current_key(self) -> Any:
        return self.inner.get_current_key()

    def time_domain(self) -> TimeDomain:
        return self.inner.time_domain()  # type: ignore[no-any-return]

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor[Any, Any]) -> Any:
        return named_state(self._states, state_descriptor)


def named_state(states: Mapping[str, Any], descriptor: Any) -> Any:
    """The state of a descriptor; raises `StateError` if `broadcast` was not given it."""
    name = getattr(descriptor, "name", descriptor)
    if not isinstance(descriptor, MapStateDescriptor) or name not in states:
        raise StateError(
            f"get_broadcast_state takes one of the descriptors that broadcast(...) was given: "
            f"{', '.join(map(repr, states))}; got {name!r}"
        )
    return states[name]


class BroadcastOperator(Function, CheckpointedFunction):
    """Runs a broadcast process function, and has its broadcast states."""

    def __init__(self, wrapped: Any, descriptors: tuple[MapStateDescriptor[Any, Any], ...]) -> None:
        self.wrapped = wrapped
        self.descriptors = descriptors
        self.states: dict[str, Any] = {}
        self._read_only: dict[str, Any] = {}
        self._context: ReadOnlyContext | None = None

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.states = {d.name: store.get_broadcast_state(d) for d in self.descriptors}
        where = type(self.wrapped).__name__
        self._read_only = {
            name: ReadOnlyBroadcastState[Any, Any](state, where)
            for name, state in self.states.items()
        }
        if isinstance(self.wrapped, CheckpointedFunction):
            self.wrapped.initialize_state(context)

    def snapshot_state(self, context: Any) -> None:
        if isinstance(self.wrapped, CheckpointedFunction):
            self.wrapped.snapshot_state(context)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.wrapped.open(runtime_context)

    def close(self) -> None:
        self.wrapped.close()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        context = self._context
        if context is None or context.inner is not ctx:
            context = self._context = ReadOnlyContext(ctx, self._read_only)
        return self.wrapped.process_element(value, context)  # type: ignore[no-any-return]


class TimedBroadcastOperator(BroadcastOperator, TimerFunction):
    """The same for a function with timers."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        context = ReadOnlyContext(ctx, self._read_only)
        return self.wrapped.on_timer(timestamp, context)  # type: ignore[no-any-return]


def numbered_type(element: TypeInfo) -> TypeInfo:
    """The type of broadcast elements on their way, with the task they are from and their number."""
    return RowTypeInfo(("task", "number", "element"), (Types.INT(), Types.LONG(), element))
