"""Sealed files: a header with kind, version and checksum before the content."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import xxhash

from turnback.errors import UNDECODABLE, CorruptFileError, FormatVersionError, NotFoundError
from turnback.storage.base import Storage


def digest(data: bytes) -> str:
    """Return the checksum of some bytes: 'xxh3:' and 32 hexadecimal digits."""
    return f"xxh3:{xxhash.xxh3_128_hexdigest(data)}"


def check(data: bytes, length: int, recorded: str, name: str) -> None:
    """Raise `CorruptFileError` if length or checksum of a file are not those recorded."""
    if len(data) != length:
        raise damaged(name, f"{len(data)} bytes found, {length} recorded")
    actual = digest(data)
    if actual != recorded:
        raise damaged(name, f"checksum {actual} found, {recorded} recorded")


def damaged(name: str, what: str) -> CorruptFileError:
    """Return the error for a file that differs from what was written."""
    return CorruptFileError(
        f"{name} is damaged: {what}; nothing of it was used. Restore an intact copy of the file, "
        "or start from another checkpoint or savepoint"
    )


_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}")
_HEADER = re.compile(
    rb"turnback ([a-z][a-z0-9-]{0,63}) ([1-9][0-9]{0,8}) (0|[1-9][0-9]{0,17}) (xxh3:[0-9a-f]{32})\n"
)


def seal(kind: str, version: int, body: bytes) -> bytes:
    """Put a header before a body: what the file is, and the version of the body's format."""
    if not _KIND.fullmatch(kind) or not 0 < version < 10**9:
        raise ValueError(f"cannot seal a file of kind {kind!r}, version {version}")
    return f"turnback {kind} {version} {len(body)} {_sum(kind, version, body)}\n".encode() + body


def unseal(kind: str, newest: int, data: bytes, name: str) -> tuple[int, bytes]:
    """Check a sealed file and return its version and body; `name` is what messages call it.

    Raises `CorruptFileError` if it was cut short, changed in any bit, or is of another kind, and
    `FormatVersionError` if it is intact, but of a version that cannot be read.
    """
    header = _HEADER.match(data)
    if header is None:
        raise damaged(name, "its header is missing or incomplete")
    actual = header[1].decode()
    version = int(header[2])
    body = data[header.end() :]
    if len(body) != int(header[3]):
        raise damaged(name, f"{len(body)} bytes follow the header, {int(header[3])} recorded")
    expected = _sum(actual, version, body)
    if expected != header[4].decode():
        raise damaged(name, f"checksum {expected} found, {header[4].decode()} recorded")
    if actual != kind:
        raise damaged(name, f"it is a {actual} file, but a {kind} file is expected")
    if version > newest:
        readable = "version 1" if newest == 1 else f"versions 1 to {newest}"
        raise FormatVersionError(
            f"{name} has {kind} format version {version}; this version of Turnback reads "
            f"{readable}. Use the version of Turnback that wrote it, or a newer one"
        )
    return version, body


def _sum(kind: str, version: int, body: bytes) -> str:
    return digest(b"%s %d %d\n%s" % (kind.encode(), version, len(body), body))


T = TypeVar("T")


def encode_document(kind: str, version: int, document: msgspec.Struct) -> bytes:
    """Return the bytes of a file that holds a struct."""
    return seal(kind, version, msgspec.json.encode(document))


def decode_document(kind: str, version: int, data: bytes, name: str, type_: type[T]) -> T:
    """Read the bytes of a file that holds a struct; raises as `unseal` does."""
    _, body = unseal(kind, version, data, name)
    try:
        return msgspec.json.decode(body, type=type_)
    except UNDECODABLE as error:
        raise CorruptFileError(f"{name} is intact but cannot be used: {error}") from error


def read_document(storage: Storage, kind: str, version: int, path: str, type_: type[T]) -> T | None:
    """Read a file that holds a struct, `None` if there is none; raises as `unseal` does."""
    try:
        data = storage.get(path)
    except NotFoundError:
        return None
    return decode_document(kind, version, data, f"{storage.uri}/{path}", type_)
