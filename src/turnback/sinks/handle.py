"""Transactions as bytes: the sink's kind, a format version and a body.

They are kept in manifests, so a later version of Turnback, or another sink that took over the
uid, may be the one to read them.
"""

import msgspec

from turnback.core.errors import SinkError


class _Handle(msgspec.Struct, frozen=True, array_like=True):
    kind: str
    version: int
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Handle).decode


def seal_handle(kind: str, version: int, body: bytes) -> bytes:
    """Wrap the body of a transaction."""
    return _encode(_Handle(kind, version, body))


def open_handle(kind: str, supported: int, data: bytes, sink: str) -> bytes:
    """Unwrap a transaction.

    Args:
        kind: The kind of sink that reads.
        supported: The newest version this code reads.
        data: What `seal_handle` made.
        sink: The sink, as error messages shall name it.

    Raises:
        SinkError: Damaged, of another kind of sink, or of a newer version.
    """
    try:
        handle = _decode(data)
    except (msgspec.MsgspecError, TypeError) as error:
        raise SinkError(f"{sink}: a prepared transaction cannot be read: {error}") from error
    if handle.kind != kind:
        raise SinkError(
            f"{sink}: a prepared transaction belongs to a {handle.kind!r} sink, but this uid now "
            f"has a {kind!r} sink; restore the old sink once to settle it, or use another uid"
        )
    if not 1 <= handle.version <= supported:
        raise SinkError(
            f"{sink}: a prepared transaction has format version {handle.version}, this version of "
            f"Turnback reads up to {supported}; upgrade Turnback to settle it"
        )
    return handle.body


def handle_kind(data: bytes) -> str | None:
    """Return the kind of sink that a transaction belongs to; None if it cannot be read."""
    try:
        return _decode(data).kind
    except (msgspec.MsgspecError, TypeError):
        return None


def name_sink(job: str, uid: str) -> str:
    """The sink as error messages name it."""
    return f"sink {uid!r} of job {job!r}"
