from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from turnback.core import KeyCodec
from turnback.core.errors import StateError
from turnback.state.layout import GROUPS, LENGTHS, LONGEST, component, wrapped_size
from turnback.state.store import LocalStore

Place = tuple[int, bytes, bytes, int]
"""Where a key is: group, encoded key, its part of the store key, bytes wrapped before values."""

_MOST_PLACES = 1 << 18


class KeyContext:
    """What all states of an operator share: the current key, the epoch and the store.

    Attributes:
        uid: The operator.
        key: The current key, set before each element, in the form that `KeyCodec.form` gives it:
            two keys that Python finds equal share their state.
        epoch: The current epoch.
        located: Places of keys met so far; depends on nothing but the key.
        get: Reads one entry of the store.
        scan: Reads all entries below a prefix.
    """

    __slots__ = ("_codec", "epoch", "get", "key", "located", "max_parallelism", "scan", "uid")

    def __init__(self, uid: str, codec: KeyCodec, max_parallelism: int) -> None:
        self.uid = uid
        self.key: Any = None
        self.max_parallelism = max_parallelism
        self.epoch = -1
        self.located: dict[Any, Place] = {}
        self.get: Callable[[bytes], bytes | None] = self._no_store
        self.scan: Callable[[bytes], Iterable[tuple[bytes, bytes]]] = self._no_store
        self._codec = codec

    def use(self, store: LocalStore, epoch: int) -> None:
        """Exchange the store."""
        self.key = None
        self.epoch = epoch
        self.get = store.get
        self.scan = store.scan
        if len(self.located) > _MOST_PLACES:
            self.located.clear()

    def declared_key(self) -> Any:
        """The current key as an instance of the class that was declared for keys."""
        codec, key = self._codec, self.key
        return codec.decode(codec.encode(key)) if codec.form.differs else key

    def locate(self, key: Any) -> Place:
        """Where a key is; remembered, since a key is read and written many times."""
        if key is None:
            raise StateError(
                f"keyed state of operator {self.uid!r} was used without a current key: it can only "
                f"be used while an element is processed"
            )
        encoded = self._codec.encode(key)
        group = self._codec.group(key, self.max_parallelism)
        size = len(encoded)
        if size <= LONGEST:
            place = (group, encoded, GROUPS[group] + LENGTHS[size] + encoded, 0)
        else:
            place = (group, encoded, GROUPS[group] + component(encoded), wrapped_size(encoded))
        self.located[key] = place
        return place

    def locate_all(self, keys: Iterable[Any]) -> list[Place]:
        """Where the keys are."""
        get, locate = self.located.get, self.locate
        return [get(key) or locate(key) for key in keys]

    def _no_store(self, key: bytes) -> NoReturn:
        raise StateError(
            f"keyed state of operator {self.uid!r} was used before processing had begun: open() "
            f"may ask for handles, not for values"
        )
