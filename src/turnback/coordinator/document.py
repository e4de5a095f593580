"""Small durable files: a frozen struct as sealed JSON."""

from typing import TypeVar

import msgspec

from turnback.core.errors import ConfigurationError, CorruptFileError
from turnback.storage.envelope import seal, unseal

T = TypeVar("T")
_MAX_ID = 80
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def encode_document(kind: str, version: int, document: msgspec.Struct) -> bytes:
    """Return the bytes of a file that holds a struct."""
    return seal(kind, version, msgspec.json.encode(document))


def decode_document(kind: str, version: int, data: bytes, name: str, type_: type[T]) -> T:
    """Read the bytes of a file that holds a struct.

    Args:
        kind: What the file has to be.
        version: The newest readable version.
        data: The whole file.
        name: The file, for messages.
        type_: The struct.

    Raises:
        CorruptFileError: It is damaged, or its content cannot be used.
        FormatVersionError: It was written by a newer version.
    """
    _, body = unseal(kind, version, data, name)
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.MsgspecError as error:
        raise CorruptFileError(f"{name} is intact but cannot be used: {error}") from error


def is_id(text: object) -> bool:
    """Return whether this can be the id of a file: letters, digits, '-' and '_', nothing else."""
    return isinstance(text, str) and 0 < len(text) <= _MAX_ID and _SAFE.issuperset(text)


def check_id(id_: str, what: str) -> str:
    """Return the id, or refuse what could lead to another path than its own.

    Raises:
        ConfigurationError: It holds anything but letters, digits, '-' and '_'.
    """
    if not is_id(id_):
        raise ConfigurationError(
            f"{id_!r} is not the id of a {what}: ids are 1 to {_MAX_ID} letters, digits, '-' or "
            "'_'; copy it as it was printed"
        )
    return id_
