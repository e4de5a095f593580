"""How many distinct values there are, about: HyperLogLog on columns.

A value is hashed to 64 bits: the first 12 choose a register, which keeps the greatest position of
the first 1 in the rest. Registers depend on nothing but the set of values, and the estimate on
nothing but the registers, so a result does not depend on where epochs end, nor on the order of the
elements. Sketches of common libraries differ in that: theirs estimate better while values come one
by one, and the estimate then depends on their order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from turnback.core.errors import PlanError
from turnback.program.aggregates import Aggregate
from turnback.program.groups import Groups
from turnback.types.typeinfo import BasicTypeInfo, DecimalTypeInfo, TypeInfo, Types

_BITS = 12
_REGISTERS = 1 << _BITS
_REST = 64 - _BITS
_RANKS = _REST + 2
_SPARSE = _REGISTERS // 8
"""Sketches with fewer registers in use are stored as a list of these."""

Longs = npt.NDArray[np.int64]


def approx_distinct_of(column: str) -> Aggregate:
    """About how many distinct values a column has, nulls left out; within 1.6 % in most cases.

    The state of a key takes up to 4 KiB.
    """
    return _Distinct(column)


class _Distinct(Aggregate):
    def __init__(self, column: str) -> None:
        self.columns = (column,)

    def definition(self) -> str:
        return f"approx_distinct_of({self.columns[0]})"

    def types(self, *columns: TypeInfo) -> tuple[TypeInfo, TypeInfo]:
        kind = columns[0]
        basic = isinstance(kind, BasicTypeInfo) and kind.name not in ("pickled", "big_int")
        if not basic and not isinstance(kind, DecimalTypeInfo):
            raise PlanError(f"distinct values of type {kind} cannot be counted")
        return Types.BYTES(), Types.LONG()

    def combine(self, groups: Groups, *columns: pa.Array) -> pa.Array:
        values = columns[0].dictionary_encode()
        valid = np.asarray(values.is_valid())
        hashes = _hashes(values.dictionary)[values.indices.drop_null().to_numpy()]
        numbers = (hashes >> np.uint64(_REST)).astype(np.int64)
        rest = hashes & np.uint64((1 << _REST) - 1)
        # The exponent of a number is the position of its first 1.
        ranks = _REST + 1 - np.frexp(rest.astype(np.float64))[1].astype(np.int64)
        return _sketches(groups.index[valid] * _REGISTERS + numbers, ranks, groups.count)

    def merge(self, groups: Groups, accumulators: pa.Array) -> pa.Array:
        rows, numbers, ranks = _registers(accumulators)
        return _sketches(groups.index[rows] * _REGISTERS + numbers, ranks, groups.count)

    def result(self, accumulators: pa.Array) -> pa.Array:
        rows, _, ranks = _registers(accumulators)
        histogram = np.bincount(rows * _RANKS + ranks, minlength=len(accumulators) * _RANKS)
        histogram = histogram.reshape(-1, _RANKS)
        histogram[:, 0] = _REGISTERS - histogram.sum(axis=1)
        return pa.array(np.rint(_estimate(histogram)).astype(np.int64))


def _hashes(values: pa.Array) -> npt.NDArray[np.uint64]:
    """64 bits for each of some distinct values, equal for equal ones of any type and run."""
    kind = values.type
    if pa.types.is_floating(kind):
        values = pc.add(values.cast(pa.float64()), 0.0)  # -0.0 is 0.0
    texts = values.cast(pa.string()) if not pa.types.is_binary(kind) else values
    digest = xxhash.xxh3_64_intdigest
    data = texts.cast(pa.binary()).to_pylist()
    return np.fromiter((digest(each) for each in data), np.uint64, len(data))


def _sketches(slots: Longs, ranks: Longs, count: int) -> pa.Array:
    """Sketches of so many groups; a slot is the number of a register among all of them."""
    order = np.lexsort((ranks, slots))
    slots = slots[order]
    ranks = ranks[order]
    greatest = np.flatnonzero(np.append(slots[1:] != slots[:-1], [True] * (len(slots) > 0)))
    slots = slots[greatest]
    ranks = ranks[greatest]
    ends = np.searchsorted(slots, np.arange(1, count + 1) * _REGISTERS)
    packed = ((slots % _REGISTERS) << 8 | ranks).astype(np.uint32)
    sketches = []
    start = 0
    for end in ends.tolist():
        entries = packed[start:end]
        if end - start >= _SPARSE:
            dense = np.zeros(_REGISTERS, np.uint8)
            dense[entries >> 8] = entries & 0xFF
            sketches.append(dense.tobytes())
        else:
            sketches.append(entries.astype("<u4").tobytes())
        start = end
    return pa.array(sketches, pa.binary())


def _registers(sketches: pa.Array) -> tuple[Longs, Longs, Longs]:
    """The registers in use: the sketch of each, its number, its rank."""
    rows, numbers, ranks = [[np.zeros(0, np.int64)] for _ in range(3)]
    for row, data in enumerate(sketches.to_pylist()):
        if data is None:
            continue
        if len(data) == _REGISTERS:
            dense = np.frombuffer(data, np.uint8)
            used = np.flatnonzero(dense)
            packed = used << 8 | dense[used]
        else:
            packed = np.frombuffer(data, "<u4").astype(np.int64)
        rows.append(np.full(len(packed), row))
        numbers.append(packed >> 8)
        ranks.append(packed & 0xFF)
    return np.concatenate(rows), np.concatenate(numbers), np.concatenate(ranks)


def _estimate(histogram: Longs) -> npt.NDArray[np.float64]:
    """The estimator of Otmar Ertl (2017): of no bias at any size, without tables."""
    m = float(_REGISTERS)
    z = m * _tau(1 - histogram[:, -1] / m)
    for rank in range(_RANKS - 2, 0, -1):
        z = 0.5 * (z + histogram[:, rank])
    with np.errstate(divide="ignore"):
        z = z + m * _sigma(histogram[:, 0] / m)
        estimates: npt.NDArray[np.float64] = m * m / (2 * np.log(2) * z)
    return estimates


def _sigma(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    empty = x == 1
    y = np.ones_like(x)
    z = x
    for _ in range(64):
        x = x * x
        z = z + x * y
        y = y + y
    return np.where(empty, np.inf, z)


def _tau(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    y = np.ones_like(x)
    z = 1 - x
    for _ in range(64):
        x = np.sqrt(x)
        y = 0.5 * y
        z = z - (1 - x) ** 2 * y
    return z / 3
