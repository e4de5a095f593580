"""Where a row of state is in a local store.

Store key: 8 bytes of state id, 2 bytes of key group, component of the key, and for lists and maps
component of the list position or map key. A component is prefix-free, so everything of one key
lies together under one prefix. Long components are replaced by their hash, and the value is
wrapped in the full bytes.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

import xxhash

LONGEST = 120
HASHED = 0xFF
MAX_GROUPS = 1 << 15

LENGTHS = [bytes([n]) for n in range(LONGEST + 1)]
GROUPS = [n.to_bytes(2, "big") for n in range(MAX_GROUPS)]

_SIZE = Struct(">I")


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
    """The map key and the value of an entry.

    Args:
        rest: The store key after the component of the key.
        value: The stored value after the wrapping of the key.
    """
    if rest[0] != HASHED:
        return rest[1:], value
    end = _SIZE.size + _SIZE.unpack_from(value)[0]
    return value[_SIZE.size : end], value[end:]
