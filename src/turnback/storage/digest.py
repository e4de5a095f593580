"""Checksums of stored files."""

import xxhash

from turnback.core.errors import CorruptFileError


def digest(data: bytes) -> str:
    """Return the checksum of some bytes: 'xxh3:' and 32 hexadecimal digits."""
    return _xxh3(data)


def check(data: bytes, length: int, digest: str, name: str) -> None:
    """Compare a file's bytes with what was recorded when it was written.

    Args:
        data: The bytes that were read.
        length: The recorded length.
        digest: The recorded checksum.
        name: The file, for the message.

    Raises:
        CorruptFileError: Length or checksum differ.
    """
    if len(data) != length:
        raise damaged(name, f"{len(data)} bytes found, {length} recorded")
    found = _xxh3(data)
    if found != digest:
        raise damaged(name, f"checksum {found} found, {digest} recorded")


def damaged(name: str, what: str) -> CorruptFileError:
    """Return the error that says how a file differs from what was written."""
    return CorruptFileError(
        f"{name} is damaged: {what}; nothing of it was used. Put back an intact copy of the file, "
        "or start from another checkpoint or savepoint"
    )


def _xxh3(data: bytes) -> str:
    return f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"
