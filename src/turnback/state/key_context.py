"""What states share while an element is processed: its key, and how to undo what it has done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from turnback.errors import StateError
from turnback.state.schema import GROUPS, component, wrapped_size
from turnback.state.stores import LocalStore
from turnback.values.keys import KeyCodec

KeyLocation = tuple[int, bytes, bytes, int]
"""Where a key is: group, encoded key, its part of the store key, bytes wrapped before values."""

_MOST_LOCATIONS = 1 << 18
_MOST_LOCATED_BYTES = 64 << 20


class KeyContext:
    """What all states of an operator share: the current key, the epoch and the store.

    Attributes:
        now_ms: The time of the epoch, by which state with a time to live goes.
        key: The current key, set before each element, normalized as `KeyCodec.normalizer` says:
            two keys that Python finds equal share their state.
        locations: Of the keys so far; they depend on nothing but the key.
    """

    __slots__ = (
        "_codec",
        "_located_bytes",
        "epoch",
        "get",
        "get_many",
        "key",
        "locations",
        "max_parallelism",
        "now_ms",
        "scan",
        "uid",
    )

    def __init__(self, uid: str, codec: KeyCodec, max_parallelism: int) -> None:
        self.uid = uid
        self.key: Any = None
        self.max_parallelism = max_parallelism
        self.epoch = -1
        self.now_ms = 0
        self.locations: dict[Any, KeyLocation] = {}
        self.get: Callable[[bytes], bytes | None] = self._no_store
        self.get_many: Callable[[list[bytes]], list[bytes | None]] = self._no_store
        self.scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]] = self._no_store
        self._codec = codec
        self._located_bytes = 0

    def use(self, store: LocalStore, epoch: int, now_ms: int) -> None:
        self.key = None
        self.epoch = epoch
        self.now_ms = now_ms
        self.get = store.get
        self.get_many = store.get_many
        self.scan = store.scan
        if len(self.locations) > _MOST_LOCATIONS or self._located_bytes > _MOST_LOCATED_BYTES:
            self.locations.clear()
            self._located_bytes = 0

    def declared_key(self) -> Any:
        """The current key as an instance of the class that was declared for keys."""
        codec = self._codec
        key = self.key
        return codec.decode(codec.encode(key)) if codec.normalizer.changes_class else key

    def key_of(self, encoded: bytes) -> Any:
        return self._codec.normalizer.normalize(self._codec.decode(encoded))

    def locate(self, key: Any) -> KeyLocation:
        """Where a key is; remembered, since a key is read and written many times."""
        if key is None:
            raise StateError(
                f"keyed state of operator {self.uid!r} was used without a current key: it can "
                "only be used while an element is being processed; in process_batch, use its "
                "read and write"
            )
        encoded = self._codec.encode(key)
        group = self._codec.group(key, self.max_parallelism)
        location = (group, encoded, GROUPS[group] + component(encoded), wrapped_size(encoded))
        self.locations[key] = location
        self._located_bytes += len(encoded)
        return location

    def current(self) -> tuple[bytes, int]:
        """Of the current key, its part of store keys, and the bytes wrapped before its values."""
        return (self.locations.get(self.key) or self.locate(self.key))[2:]

    def locate_all(self, keys: Iterable[Any]) -> list[KeyLocation]:
        get = self.locations.get
        locate = self.locate
        return [get(key) or locate(key) for key in keys]

    def _no_store(self, key: object) -> NoReturn:
        raise StateError(
            f"keyed state of operator {self.uid!r} was used before processing began: in open(), "
            "you can get handles, but not read or write values"
        )


MISSING: Any = object()
"""In place of what a dict has under a key: nothing."""


def restore_entry(values: dict[Any, Any], key: Any, value: Any) -> None:
    """Let a dict have under a key what it had."""
    if value is MISSING:
        values.pop(key, None)
    else:
        values[key] = value
