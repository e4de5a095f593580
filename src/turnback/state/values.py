"""Keyed state of one value per key, and what all kinds of keyed state share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from turnback.errors import StateError
from turnback.state.delta import DeltaBuilder
from turnback.state.key_context import MISSING, KeyContext, restore_entry
from turnback.state.schema import StateSchema, state_prefix
from turnback.values.codegen import generate
from turnback.values.coerce import short_repr
from turnback.values.declarations import declared_value, is_flat, sufficient_class, value_test
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import TypeInfo


class _NoValue:
    """A class without values."""


class CacheFormat:
    """How the values of a state are cached in memory until the epoch ends.

    A result must not depend on where an epoch ends. So what is cached is what would come back from
    the store, and what cannot be stored is refused at once. Values that can be changed in place,
    or have such in them, are cached encoded, and every read gives a new one.

    Attributes:
        plain: Values of this very class are cached as they are, without a call of `to_cache`.
        to_cache: Turns a value other than None into what is cached; raises if it does not fit.
        from_cache: Turns what is cached into a value of the reader's own; None where it is that.
        from_bytes: Turns stored bytes into what is cached.
        to_bytes: Turns what is cached into the bytes to be stored; `all_to_bytes` does many.
    """

    __slots__ = ("all_to_bytes", "from_bytes", "from_cache", "plain", "to_bytes", "to_cache")

    def __init__(self, serializer: Serializer) -> None:
        encode = serializer.encode
        decode = serializer.decode
        self.plain: type = _NoValue
        self.to_cache: Callable[[Any], Any] = encode
        self.from_cache: Callable[[bytes], Any] | None = decode
        self.from_bytes: Callable[[bytes], Any] = _same
        self.to_bytes: Callable[[Any], bytes] = _same
        self.all_to_bytes: Callable[[Sequence[Any]], list[bytes]] = list
        if is_flat(serializer.type):
            self.plain = sufficient_class(serializer.type) or _NoValue
            self.to_cache = declared_value(serializer.type, lambda value: decode(encode(value)))
            self.from_cache = None
            self.from_bytes = decode
            self.to_bytes = encode
            self.all_to_bytes = serializer.encode_all


def _same(value: Any) -> Any:
    return value


class KeyedState:
    """Base of all kinds of keyed state."""

    __slots__ = ("_context", "_format", "_plain", "_prefix", "_to_cache", "schema")

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        self.schema = schema
        self._context = context
        self._prefix = state_prefix(*schema.id)
        self._format = CacheFormat(serializer)
        self._plain = self._format.plain
        self._to_cache: Callable[[Any], Any] = self._converted
        """What is cached of a value whose class is not `_plain`."""
        if is_flat(serializer.type):
            self._to_cache = declared_value(serializer.type, self._converted)

    def _converted(self, value: Any) -> Any:
        """What is cached of a value that cannot be cached as it is."""
        try:
            return self._format.to_cache(value)
        except Exception as e:
            raise self._mismatch(self._context.key, value, e) from e

    def _all_to_bytes(self, keys: Sequence[Any], values: Sequence[Any]) -> list[bytes | None]:
        """Encode cached values, None as None; an error names the state and the key."""
        encode = self._format.all_to_bytes
        try:
            present = [value for value in values if value is not None]
            encoded: list[bytes | None] = [*encode(present)]
        except Exception:
            for key, value in zip(keys, values, strict=True):
                try:
                    encode([value])
                except Exception as e:
                    raise self._mismatch(key, value, e) from e
            raise
        if len(present) < len(values):
            rest = iter(encoded)
            encoded = [None if value is None else next(rest) for value in values]
        return encoded

    def _mismatch(self, key: Any, value: Any, cause: Exception) -> StateError:
        return StateError(
            f"state {self.schema.name!r} of operator {self.schema.uid!r}, key {short_repr(key)}: "
            f"the value {short_repr(value)} does not match the declared type "
            f"{self.schema.value}: {cause}"
        )


class SingleState(KeyedState):
    """Base of value, reducing and aggregating state, which have one value per key.

    `_cache` holds every value seen or set in this epoch, `_dirty` those that were set. `type` is
    what a value is stored as.
    """

    __slots__ = ("_cache", "_dirty", "_from_cache", "type")

    def __init__(self, context: KeyContext, schema: StateSchema, serializer: Serializer) -> None:
        super().__init__(context, schema, serializer)
        self.type = serializer.type
        self._from_cache = self._format.from_cache
        self._cache: dict[Any, Any] = {}
        self._dirty: dict[Any, Any] = {}

    def begin(self) -> None:
        self._cache.clear()
        self._dirty.clear()

    def drain(self, builder: DeltaBuilder) -> None:
        dirty = self._dirty
        if not dirty:
            return
        locations = self._context.locate_all(dirty)
        builder.add(
            self.schema,
            [location[0] for location in locations],
            [location[1] for location in locations],
            None,
            self._all_to_bytes(list(dirty), list(dirty.values())),
        )

    def save(self) -> tuple[Any, Any]:
        """What is to be given to `restore` to undo what is done to the current key from now on."""
        key = self._context.key
        return self._cache.get(key, MISSING), self._dirty.get(key, MISSING)

    def restore(self, saved: tuple[Any, Any]) -> None:
        for values, value in zip((self._cache, self._dirty), saved, strict=True):
            restore_entry(values, self._context.key, value)

    def clear(self) -> None:
        key = self._context.key
        self._cache[key] = self._dirty[key] = None

    def _current(self) -> Any:
        """The value of the current key, which the caller may change."""
        try:
            cached = self._cache[self._context.key]
        except KeyError:
            cached = self._read()
        return cached if self._from_cache is None or cached is None else self._from_cache(cached)

    def _read(self) -> Any:
        """What is stored under the current key, as it is cached for the rest of the epoch."""
        suffix, wrapped = self._context.current()
        data = self._context.get(self._prefix + suffix)
        from_bytes = self._format.from_bytes
        value = None if data is None else from_bytes(data[wrapped:] if wrapped else data)
        self._cache[self._context.key] = value
        return value

    def _set(self, value: Any) -> None:
        if type(value) is not self._plain and value is not None:
            value = self._to_cache(value)
        key = self._context.key
        self._cache[key] = self._dirty[key] = value

    def read_many(self, keys: Sequence[Any]) -> list[Any]:
        """The values of some keys in their order, None where there is none."""
        cache = self._cache
        missing = [key for key in keys if key not in cache]
        if missing:
            locations = self._context.locate_all(missing)
            stored = self._context.get_many([self._prefix + where[2] for where in locations])
            from_bytes = self._format.from_bytes
            for key, (_, _, _, wrapped), data in zip(missing, locations, stored, strict=True):
                cache[key] = None if data is None else from_bytes(data[wrapped:])
        values = [cache[key] for key in keys]
        if self._from_cache is None:
            return values
        return [None if value is None else self._from_cache(value) for value in values]

    def write_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the values of some keys; None removes.

        The values must be as `from_column` gives them: of the class that belongs to the type.
        """
        if self._from_cache is not None:
            to_cache = self._format.to_cache
            values = [None if value is None else to_cache(value) for value in values]
        changes = dict(zip(keys, values, strict=True))
        self._cache.update(changes)
        self._dirty.update(changes)


T = TypeVar("T")
R = TypeVar("R")


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
        if type(value) is not self._plain and value is not None:
            value = self._to_cache(value)
        self._cache[key] = self._dirty[key] = value


def value_state_class(type_: TypeInfo) -> type[ValueState[Any]]:
    """Return the class of value states of a flat type; one of its own where that saves a call."""
    if sufficient_class(type_) is not None:
        return ValueState
    # Types are equal whatever class their rows have.
    return _value_state_class(type_, getattr(type_, "python_class", None))


@lru_cache(maxsize=1024)
def _value_state_class(type_: TypeInfo, python_class: type | None) -> type[ValueState[Any]]:
    scope: dict[str, Any] = {}
    test = value_test(type_, "value", scope, "value = self._to_cache(value)")
    lines = [
        "def update(self, value):",
        *(f"    {line}" for line in test),
        "    key = self._context.key",
        "    self._cache[key] = self._dirty[key] = value",
    ]
    update = generate("update", lines, scope)
    update.__doc__ = ValueState.update.__doc__
    return type("ValueState", (ValueState,), {"__slots__": (), "update": update})


class MutableValueState(ValueState[T]):
    """A value state whose values are cached encoded, since they can be changed in place.

    A class of its own, so that other value states need no check.
    """

    __slots__ = ()

    def value(self) -> T | None:
        """The value of the current key, None when there is none; a new one with every call."""
        return self._current()  # type: ignore[no-any-return]


class ReducingState(SingleState, Generic[T]):
    """One value per key, into which every added element is reduced."""

    __slots__ = ("_reduce",)

    def __init__(
        self, context: KeyContext, schema: StateSchema, serializer: Serializer, reduce_function: Any
    ) -> None:
        super().__init__(context, schema, serializer)
        self._reduce = getattr(reduce_function, "reduce", reduce_function)

    def get(self) -> T | None:
        """The reduced value of the current key, None when nothing was added."""
        value: T | None = self._current()
        return value

    def add(self, value: T) -> None:
        """Reduce an element into the value of the current key."""
        current = self._current()
        self._set(value if current is None else self._reduce(current, value))


class AggregatingState(SingleState, Generic[T, R]):
    """One accumulator per key, to which every added element is aggregated."""

    __slots__ = ("_add", "_create", "_result")

    def __init__(
        self,
        context: KeyContext,
        schema: StateSchema,
        serializer: Serializer,
        aggregate_function: Any,
    ) -> None:
        super().__init__(context, schema, serializer)
        self._create = aggregate_function.create_accumulator
        self._add = aggregate_function.add
        self._result = aggregate_function.get_result

    def get(self) -> R | None:
        """The result for the current key, None when nothing was added."""
        accumulator = self._current()
        return None if accumulator is None else self._result(accumulator)

    def add(self, value: T) -> None:
        """Add an element to the accumulator of the current key."""
        accumulator = self._current()
        self._set(self._add(value, self._create() if accumulator is None else accumulator))
