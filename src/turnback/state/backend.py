"""The keyed state of one operator: its handles, and what they have changed in an epoch."""

from __future__ import annotations

from typing import Any

from turnback.errors import PlanError, StateError
from turnback.functions.descriptors import StateDescriptor
from turnback.state.delta import DeltaBuilder
from turnback.state.expiry import (
    ExpiringAggregatingState,
    ExpiringListState,
    ExpiringMapState,
    ExpiringReducingState,
    ExpiringValueState,
)
from turnback.state.key_context import KeyContext
from turnback.state.list_and_map import ListState, MapState, WindowedState
from turnback.state.schema import (
    HASHED,
    MAX_GROUPS,
    KeySchema,
    StateSchema,
    split_sub,
    state_prefix,
)
from turnback.state.stores import LocalStore
from turnback.state.time_order import TimeOrderedState
from turnback.state.values import (
    AggregatingState,
    MutableValueState,
    ReducingState,
    SingleState,
    value_state_class,
)
from turnback.values.declarations import is_flat
from turnback.values.keys import KeyCodec
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import TypeInfo

_KEY = 8 + 2
"""Where the key begins in a store key: after the state and the key group."""

Handle = SingleState | ListState[Any] | MapState[Any, Any] | TimeOrderedState


class KeyedStateBackend(KeyContext):
    """The keyed state of one operator in one task.

    Handles are registered once and stay valid; `begin` puts another store behind them for each
    epoch. Nothing is written to the store: changes stay in memory until `drain`.
    """

    __slots__ = ("_descriptors", "_handles")

    def __init__(self, uid: str, codec: KeyCodec, max_parallelism: int) -> None:
        if not 1 <= max_parallelism <= MAX_GROUPS:
            raise StateError(f"max parallelism must be 1 to {MAX_GROUPS}, got {max_parallelism}")
        super().__init__(uid, codec, max_parallelism)
        self._handles: dict[str, Handle] = {}
        self._descriptors: dict[str, StateDescriptor] = {}

    def register(self, descriptor: StateDescriptor) -> Any:
        """The handle of a state; the same one for the same name."""
        schema = self._schema(descriptor)
        handle = self._handles.get(descriptor.name)
        if handle is None:
            handle = self._handles[descriptor.name] = self._handle(descriptor, schema)
            self._descriptors[descriptor.name] = descriptor
        elif handle.schema != schema:
            raise StateError(
                f"operator {self.uid!r} has two different states named {descriptor.name!r}: "
                f"{handle.schema} and {schema}; rename one of them"
            )
        return handle

    def schemas(self) -> list[StateSchema]:
        return [handle.schema for handle in self._handles.values()]

    def descriptors(self) -> list[StateDescriptor]:
        return list(self._descriptors.values())

    @property
    def key_schema(self) -> KeySchema:
        return KeySchema.of(self._codec)

    def handle(self, name: str) -> Handle | None:
        """The handle of a state, None if nobody has asked for it."""
        return self._handles.get(name)

    def stored_keys(self, name: str) -> list[Any]:
        """The keys that had something in a state when the epoch began."""
        encoded: dict[bytes, None] = {}
        for where, data in self.scan(state_prefix(self.uid, name)):
            rest = where[_KEY:]
            key = split_sub(rest, data)[0] if rest[0] == HASHED else rest[1 : 1 + rest[0]]
            encoded[key] = None
        return list(map(self.key_of, encoded))

    def begin(self, store: LocalStore, epoch: int, now_ms: int = 0) -> None:
        """Start an epoch, at a time by the clock, over a store that holds the one before."""
        self.use(store, epoch, now_ms)
        for handle in self._handles.values():
            handle.begin()

    def drain(self, builder: DeltaBuilder) -> None:
        for handle in self._handles.values():
            handle.drain(builder)

    def save(self) -> list[Any]:
        """Note what the current key has in all states, until the next call."""
        return [handle.save() for handle in self._handles.values()]

    def restore(self, saved: list[Any]) -> None:
        """Undo all that was done to states of the current key since `save`."""
        for handle, of_handle in zip(self._handles.values(), saved, strict=True):
            handle.restore(of_handle)

    def _schema(self, descriptor: StateDescriptor) -> StateSchema:
        return StateSchema.of(self.uid, descriptor, self.key_schema)

    def _handle(self, descriptor: Any, schema: StateSchema) -> Handle:
        descriptor.check()
        serializer = Serializer(descriptor.type)
        expires = schema.ttl is not None
        match descriptor.kind:
            case "value":
                flat = is_flat(descriptor.type)
                kind = value_state_class(descriptor.type) if flat else MutableValueState
                return (ExpiringValueState if expires else kind)(self, schema, serializer)
            case "list":
                return (ExpiringListState if expires else ListState)(self, schema, serializer)
            case "map":
                codec = sub_codec(descriptor.key_type)
                return (ExpiringMapState if expires else MapState)(self, schema, serializer, codec)
            case "windowed":
                return WindowedState(self, schema, serializer, sub_codec(descriptor.key_type))
            case "waiting":
                return TimeOrderedState(self, schema, serializer)
            case "reducing":
                reducing = ExpiringReducingState if expires else ReducingState
                return reducing(self, schema, serializer, descriptor.reduce_function)
            case "aggregating":
                aggregating = ExpiringAggregatingState if expires else AggregatingState
                return aggregating(self, schema, serializer, descriptor.aggregate_function)
        raise StateError(f"state {descriptor.name!r}: unknown kind {descriptor.kind!r}")


def sub_codec(type_: TypeInfo) -> Serializer | KeyCodec:
    """What encodes map keys: like keys where possible, so that equal ones have equal bytes."""
    try:
        return KeyCodec((type_,), by_columns=False)
    except PlanError:
        return Serializer(type_)
