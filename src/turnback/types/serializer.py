"""Values to bytes and back: MessagePack, typed by the declared type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from turnback.types.coerce import misfit
from turnback.types.typeinfo import TypeInfo
from turnback.types.wire import Wire, all_pass, from_hook, wire_of

_encode = msgspec.msgpack.Encoder().encode


class Serializer:
    """Values of one type to bytes and back.

    The functions are attributes, not methods: where nothing needs to be done around them they are
    msgspec's own.

    Attributes:
        type: The type of the values.
        encode: Returns the bytes of a value, which may be None. Raises `ElementTypeError` if it
            does not fit the type: what was written can always be read.
        decode: Returns the value of bytes. Raises `msgspec.DecodeError` for bytes that are not of
            this type.
    """

    __slots__ = ("_pass", "decode", "encode", "type")

    def __init__(self, type: TypeInfo) -> None:
        self.type = type
        wire = wire_of(type)
        self.encode: Callable[[Any], bytes] = _encoder(type, wire)
        self.decode: Callable[[bytes], Any] = _decoder(wire)
        self._pass = all_pass(wire)

    def encode_all(self, values: Sequence[Any]) -> list[bytes]:
        """Return the bytes of each value: as `encode`, but with one check for all of them."""
        encode = _encode if self._pass(values) else self.encode
        try:
            return list(map(encode, values))
        except UnicodeEncodeError:
            return list(map(self.encode, values))

    def decode_all(self, data: Sequence[bytes]) -> list[Any]:
        """Return the value of each."""
        return list(map(self.decode, data))

    def __reduce__(self) -> tuple[type[Serializer], tuple[TypeInfo]]:
        return Serializer, (self.type,)

    def __repr__(self) -> str:
        return f"Serializer({self.type})"


def serializer_for(type_: TypeInfo) -> Serializer:
    """Return the serializer of a type."""
    return Serializer(type_)


def _encoder(type_: TypeInfo, wire: Wire) -> Callable[[Any], bytes]:
    exact, pack = wire.exact, wire.pack

    def encode_other(value: Any) -> bytes:
        try:
            return _encode(None if value is None else pack(value))
        except UnicodeEncodeError as error:
            raise misfit(value, type_, str(error)) from None

    if exact is None:
        return encode_other
    if wire.bounds is None:

        def encode(value: Any, encode: Any = _encode, exact: Any = exact) -> bytes:
            if value.__class__ is exact:
                try:
                    return encode(value)  # type: ignore[no-any-return]
                except UnicodeEncodeError:
                    pass
            return encode_other(value)

        return encode
    low, high = wire.bounds

    def encode_int(value: Any, encode: Any = _encode, low: int = low, high: int = high) -> bytes:
        if value.__class__ is int and low <= value <= high:
            return encode(value)  # type: ignore[no-any-return]
        return encode_other(value)

    return encode_int


def _decoder(wire: Wire) -> Callable[[bytes], Any]:
    decode = msgspec.msgpack.Decoder(wire.hint | None, dec_hook=from_hook).decode
    unpack = wire.unpack
    if unpack is None:
        return decode

    def decode_unpack(data: bytes) -> Any:
        value = decode(data)
        return None if value is None else unpack(value)

    return decode_unpack
