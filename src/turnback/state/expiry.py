"""The time of the last update before each value of a state with a time to live, and who is expired.

A value, list element or map entry has expired when `now - ttl` has reached the time of its last
update. Which ones those are is decided by columns where many are looked at: no value is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.state.schema import HASHED, StateSchema, state_prefix
from turnback.state.stores import LocalStore

TIME_BYTES = 8
Limits = Mapping[tuple[str, str], int]
"""By uid and name of a state: values last updated then, or earlier, have expired."""

_TIME = Struct(">q")
_END = 1 << 31  # no value is longer, and Arrow fails for many values if none is given
_SIZE = Struct(">I")
_FIRST_PART = 10  # of a store key, after state and key group
_HASH_BYTES = 33

encode_time = _TIME.pack
"""The time of an update as it stands before a value."""


def update_time(data: bytes, at: int = 0) -> int:
    """The time of its last update that stands before a value."""
    time: int = _TIME.unpack_from(data, at)[0]
    return time


def merge_limits(schemas: Iterable[StateSchema], now_ms: int) -> dict[tuple[str, str], int]:
    """What a merge of state files at this time may leave out."""
    return {s.id: now_ms - s.ttl.ms for s in schemas if s.ttl is not None and s.ttl.merged}


def export_limits(schemas: Iterable[StateSchema], now_ms: int) -> dict[tuple[str, str], int]:
    """What a savepoint of this time leaves out."""
    return {s.id: now_ms - s.ttl.ms for s in schemas if s.ttl is not None and not s.ttl.saved}


# -- columns


def update_times(values: Any) -> npt.NDArray[np.int64]:
    """The times before a column of values; anything for null."""
    head = pc.binary_slice(values, 0, TIME_BYTES)
    if isinstance(head, pa.ChunkedArray):
        head = head.combine_chunks()
    fixed = head.cast(pa.binary(TIME_BYTES))
    times = np.frombuffer(fixed.buffers()[1] or b"", ">i8")
    return times[fixed.offset : fixed.offset + len(fixed)].astype(np.int64)


def without_times(values: Any) -> Any:
    """A column of values, without the times before them."""
    return pc.binary_slice(values, TIME_BYTES, _END)


def with_times(values: Any, times: npt.NDArray[np.int64]) -> Any:
    """A column of values, with a time before each."""
    data = pa.py_buffer(times.astype(">i8").tobytes())
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(TIME_BYTES), len(times), [None, data])
    return pc.binary_join_element_wise(fixed.cast(values.type), values, pa.scalar(b"", values.type))


class Expired:
    """Finds the rows of state files that have expired.

    Args:
        schemas: The states, by the numbers that rows have.
        limits: Which values have expired; those of states that are not in it never do.
    """

    def __init__(self, schemas: Iterable[StateSchema], limits: Limits) -> None:
        never = np.iinfo(np.int64).min
        self._limits = np.array(
            [never if s.ttl is None else limits.get(s.id, never) for s in schemas], np.int64
        )
        self._some = self._limits > never
        self.is_possible = bool(self._some.any())

    def without(self, rows: pa.Table, *, final: bool) -> pa.Table:
        """The rows without those that have expired; unless it is `final`, tombstones of them.

        A tombstone is needed as long as older files may have a value of the same entry.
        """
        if not self.is_possible or not len(rows):
            return rows
        states = rows["state"].to_numpy()
        values = rows["value"]
        mask = self._some[states]
        mask &= values.is_valid().to_numpy()
        index = np.flatnonzero(mask)
        if len(index):
            times = update_times(values.take(pa.array(index)))
            mask[index] = times <= self._limits[states[index]]
        if not mask.any():
            return rows
        if final:
            return rows.filter(pa.array(~mask))
        column = pc.if_else(pa.array(mask), pa.scalar(None, values.type), values)
        return rows.set_column(rows.schema.get_field_index("value"), rows.field("value"), column)


# -- local stores


def expired_keys(
    store: LocalStore, schemas: Iterable[StateSchema], now_ms: int, start: bytes, most: int
) -> tuple[list[bytes], bytes]:
    """Look at the next entries of a local store whose states have a time to live.

    Args:
        store: The store.
        schemas: All states in it.
        now_ms: The time.
        start: Where to begin: what the last call gave, or nothing.
        most: How many entries to look at.

    Returns:
        The store keys of those that have expired, and where the next call begins.
    """
    limits = {
        state_prefix(*s.id): now_ms - s.ttl.ms for s in schemas if s.ttl is not None and s.ttl.swept
    }
    keys: list[bytes] = []
    for prefix in sorted(limits):
        if prefix < start[: len(prefix)]:
            continue
        for where, data in store.scan(prefix, max(start, prefix)):
            if not most:
                return keys, where
            most -= 1
            if update_time(data, _wrapped_before(where, data)) <= limits[prefix]:
                keys.append(where)
    return keys, b""


def _wrapped_before(where: bytes, data: bytes) -> int:
    """How many bytes of an entry of a store stand before the time; see `schema.wrap`."""
    at = 0
    part = _FIRST_PART
    while part < len(where):
        if where[part] == HASHED:
            at += _SIZE.size + _SIZE.unpack_from(data, at)[0]
            part += _HASH_BYTES
        else:
            part += 1 + where[part]
    return at
