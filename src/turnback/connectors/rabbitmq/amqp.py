"""The parts of a message of AMQP 1.0, which is what streams of RabbitMQ hold."""

from __future__ import annotations

from collections.abc import Iterator

_APPLICATION_PROPERTIES = 0x74
_DATA = 0x75
_SEQUENCE = 0x76
_VALUE = 0x77
_BYTES_OR_TEXT = {0xA0: 1, 0xA1: 1, 0xB0: 4, 0xB1: 4}
"""How many bytes tell the length of binary data and text, by what stands before them."""
_LISTS_AND_MAPS = {0xC0: 1, 0xC1: 1, 0xD0: 4, 0xD1: 4}
_EMPTY_LIST = 0x45


def body_of(message: bytes) -> bytes:
    """What a message carries: its data, or the text that is its value.

    Bytes that are no message of AMQP are returned as they are: some clients write them.

    Raises:
        ValueError: It carries something else, such as a map.
    """
    if message[:3] == b"\x00\x53\x75" and message[3] == 0xA0 and len(message) == message[4] + 5:
        return message[5:]  # most messages are short, and nothing but data
    if message[:2] != b"\x00\x53":
        return message
    found = [part for code, part in _sections(message) if code in (_DATA, _VALUE)]
    if len(found) == 1:
        return found[0]
    return b"".join(found)


def properties_of(message: bytes) -> list[tuple[str, bytes]]:
    """The application properties of a message, as text and bytes."""
    from rstream.amqp import amqp_decoder

    if message[:2] != b"\x00\x53":
        return []
    known = amqp_decoder(message).application_properties or {}
    return [(_text(key), _bytes(value)) for key, value in known.items()]


def _sections(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The sections of a message that are binary data or text, each with its code."""
    at = 0
    while at < len(message):
        if message[at : at + 2] != b"\x00\x53" or at + 4 > len(message):
            raise ValueError("it is no message of AMQP 1.0")
        code = message[at + 2]
        kind = message[at + 3]
        at += 4
        if kind == _EMPTY_LIST:
            continue
        width = _BYTES_OR_TEXT.get(kind) or _LISTS_AND_MAPS.get(kind)
        if width is None or (kind in _LISTS_AND_MAPS and code in (_SEQUENCE, _VALUE)):
            raise ValueError("its body is neither bytes nor text")
        size = int.from_bytes(message[at : at + width], "big")
        at += width + size
        if kind in _BYTES_OR_TEXT:
            yield code, message[at - size : at]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
