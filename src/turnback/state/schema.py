"""What a stored state is, and where its rows are in a local store.

Store key: 8 bytes of state id, 2 bytes of key group, component of the key, and for lists and maps
component of the list position or map key. A component is prefix-free, so everything of one key
lies together under one prefix. Long components are replaced by their hash, and the value is
wrapped in the full bytes. In waiting state 8 bytes of time come before the key group, so all its
entries lie in the order of their times.

Values of a state with a time to live begin with 8 bytes, the time of their last update, in state
files and in stores; see `turnback.state.expiry`.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from turnback.errors import UnsupportedTypeError
from turnback.values.typeinfo import Descriptor, TypeInfo, type_from_descriptor

if TYPE_CHECKING:
    from turnback.functions.descriptors import StateDescriptor, StateTtlConfig
    from turnback.values.keys import KeyCodec

WAITING = "waiting"
"""What waits for its time: a map per key from times, whose entries the store sorts by time."""
WINDOWED = "windowed"
"""What belongs to windows: a map per key from rows, whose fields are columns of its table."""
SPLIT_LIST = "operator list"
UNION_LIST = "union list"
BROADCAST = "broadcast"
OPERATOR_KINDS = frozenset({SPLIT_LIST, UNION_LIST, BROADCAST})
"""State of subtasks instead of keys, see `turnback.state.subtasks`."""
KINDS = (
    "value", "list", "map", "reducing", "aggregating", WAITING, WINDOWED, *sorted(OPERATOR_KINDS),
)  # fmt: skip
LIST_KINDS = frozenset({"list", SPLIT_LIST, UNION_LIST})
MAP_KINDS = frozenset({"map", WAITING, WINDOWED, BROADCAST})
SINGLE_KINDS = frozenset({"value", "reducing", "aggregating"})


class KeySchema(msgspec.Struct, frozen=True):
    """How a stream is keyed: by `columns` or a function, which give different key groups."""

    types: tuple[Descriptor, ...]
    columns: bool

    @classmethod
    def of(cls, codec: KeyCodec) -> KeySchema:
        return cls(tuple(t.describe() for t in codec.types), codec.by_columns)

    def type_infos(self) -> tuple[TypeInfo, ...]:
        return tuple(map(type_from_descriptor, self.types))

    def codec(self) -> KeyCodec:
        from turnback.values.keys import KeyCodec  # not needed to list states, which is to be quick

        return KeyCodec(self.type_infos(), self.columns)

    def __str__(self) -> str:
        how = "columns" if self.columns else "a function"
        return f"{', '.join(map(str, self.type_infos()))} by {how}"


class StateTtl(msgspec.Struct, frozen=True, kw_only=True):
    """How long the values of a state live; `StateTtlConfig` as it is stored.

    Attributes:
        ms: How long after their last update.
        on_read: Whether a read is an update.
        shows_expired: Whether a value that has expired is returned until something removes it.
        merged: Whether merges of state files remove what has expired.
        swept: How many entries a local store looks at for every one that is written.
        saved: Whether savepoints hold what has expired.
    """

    ms: int
    on_read: bool = False
    shows_expired: bool = False
    merged: bool = True
    swept: int = 0
    saved: bool = True

    @classmethod
    def of(cls, config: StateTtlConfig) -> StateTtl:
        cleanup = config.cleanup_strategies
        sweep = cleanup.get_incremental_cleanup_strategy()
        return cls(
            ms=config.ttl.to_milliseconds(),
            on_read=config.update_type is config.UpdateType.OnReadAndWrite,
            shows_expired=config.state_visibility
            is config.StateVisibility.ReturnExpiredIfNotCleanedUp,
            merged=cleanup.get_rocksdb_compact_filter_cleanup_strategy() is not None,
            swept=0 if sweep is None else sweep.get_cleanup_size(),
            saved=not cleanup.in_full_snapshot(),
        )


class StateSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stored state without reading it.

    Attributes:
        kind: One of `KINDS`.
        value: Descriptor of the type of values, list elements or accumulators.
        sub: Descriptor of the type of a map's keys or of the times of waiting state, else None.
        ttl: How long values live; None for ever, and then they are stored without a time.
        definition: What the values stand for, where their type does not tell, for people:
            ``tumbling windows of 10 s by event time``. Values of another definition cannot be
            used. None if it does not matter, and in snapshots of versions that did not store it.
        accumulators: By field, what accumulators were made by, as `StateDescriptor.accumulators`
            has it; None where nobody has said so, as in state of earlier versions.
    """

    uid: str
    name: str
    kind: str
    key: KeySchema
    value: Descriptor
    sub: Descriptor = None
    ttl: StateTtl | None = None
    definition: str | None = None
    accumulators: dict[str, str] | None = None

    @classmethod
    def of(cls, uid: str, descriptor: StateDescriptor, key: KeySchema) -> StateSchema:
        sub = descriptor.key_type
        ttl = descriptor.ttl
        made_by = descriptor.accumulators
        return cls(
            uid=uid,
            name=descriptor.name,
            kind=descriptor.kind,
            key=key,
            value=descriptor.type.describe(),
            sub=None if sub is None else sub.describe(),
            ttl=None if ttl is None else StateTtl.of(ttl),
            definition=descriptor.definition,
            accumulators=None if made_by is None else dict(made_by),
        )

    @property
    def id(self) -> tuple[str, str]:
        return (self.uid, self.name)

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"state {self.name!r} of operator {self.uid!r}"

    def without_ttl(self) -> StateSchema:
        """The same state, as it is stored without a time to live."""
        return self if self.ttl is None else msgspec.structs.replace(self, ttl=None)

    def differences(self, other: StateSchema) -> list[tuple[str, Any, Any]]:
        """What keeps values of one from being read as the other: (what, self's, other's)."""
        compared = (
            ("kind", self.kind, other.kind),
            ("key type", self.key, other.key),
            ("map key type", _named(self.sub), _named(other.sub)),
            ("value type", _named(self.value), _named(other.value)),
            ("time of last update", _on(self.ttl), _on(other.ttl)),
        )
        return [(what, mine, theirs) for what, mine, theirs in compared if mine != theirs]


def _named(descriptor: Descriptor) -> object:
    """A type as people write it; of a newer version's types, what is stored of them."""
    try:
        return None if descriptor is None else type_from_descriptor(descriptor)
    except UnsupportedTypeError:
        return descriptor


def _on(ttl: StateTtl | None) -> str:
    return "without" if ttl is None else "with"


LONGEST = 120
HASHED = 0xFF
MAX_GROUPS = 1 << 15
LENGTHS = [bytes([n]) for n in range(LONGEST + 1)]
GROUPS = [n.to_bytes(2, "big") for n in range(MAX_GROUPS)]
_SIZE = Struct(">I")


def encode_time(time: int) -> bytes:
    """A time as it is in state files, like the keys of a map of whole numbers."""
    return msgspec.msgpack.encode(time)


def decode_time(data: bytes) -> int:
    """The time that `encode_time` was given."""
    return msgspec.msgpack.decode(data, type=int)


def time_component(time: int) -> bytes:
    """A time as part of a store key: earlier times sort first."""
    return (time + (1 << 63)).to_bytes(8, "big")


def read_time(data: bytes) -> int:
    """The time that `time_component` was given."""
    return int.from_bytes(data, "big") - (1 << 63)


def state_prefix(uid: str, name: str) -> bytes:
    """The first 8 bytes of every store key of a state."""
    return xxhash.xxh64_digest(f"{uid}\0{name}".encode())


def component(data: bytes) -> bytes:
    """One part of a store key: never a prefix of another part."""
    size = len(data)
    if size <= LONGEST:
        return LENGTHS[size] + data
    return b"\xff" + blake2b(data, digest_size=32).digest()


def wrap(full: bytes, value: bytes) -> bytes:
    """A value together with a key that was too long for the store key."""
    return _SIZE.pack(len(full)) + full + value


def wrapped_size(data: bytes) -> int:
    """How many bytes `wrap` puts before a value whose component is this."""
    size = len(data)
    return 0 if size <= LONGEST else size + _SIZE.size


def split_sub(rest: bytes, value: bytes) -> tuple[bytes, bytes]:
    """The map key and the value of an entry, from what follows the key in store key and value."""
    if rest[0] != HASHED:
        return rest[1:], value
    end = _SIZE.size + _SIZE.unpack_from(value)[0]
    return value[_SIZE.size : end], value[end:]
