"""Columns whose rows are divided into groups, and what can be computed for each group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from turnback.core.errors import ElementTypeError


class GroupError(ElementTypeError):
    """What cannot be computed for one of the groups.

    Attributes:
        group: The number of the group.
    """

    def __init__(self, message: str, group: int) -> None:
        super().__init__(message)
        self.group = group


@contextmanager
def naming_keys(keys: pa.Array) -> Iterator[None]:
    """Let errors name the key of the group they are about; each group has one."""
    try:
        yield
    except GroupError as e:
        raise GroupError(f"key {keys[e.group].as_py()!r:.80}: {e}", e.group) from None


class Groups:
    """Rows, divided into groups.

    What its methods return has a value for every group; null where none of its rows has one. Nulls
    among the values count as missing.

    Attributes:
        index: The group of every row.
        count: How many groups there are.
    """

    def __init__(self, index: npt.NDArray[np.int64], count: int) -> None:
        self.index = index
        self.count = count

    def largest(self) -> int:
        """The number of rows of the largest group."""
        return int(np.bincount(self.index).max()) if len(self.index) else 0

    def sizes(self) -> pa.Array:
        """The number of rows."""
        return pa.array(np.bincount(self.index, minlength=self.count), pa.int64())

    def counts(self, values: pa.Array) -> pa.Array:
        """The number of values."""
        if not values.null_count:
            return self.sizes()
        present = self.index[np.asarray(values.is_valid())]
        return pa.array(np.bincount(present, minlength=self.count), pa.int64())

    def sum(self, values: pa.Array) -> pa.Array:
        """The sum of the values."""
        return self._aggregate(values, "sum")

    def min(self, values: pa.Array) -> pa.Array:
        """The least value; NaN is greater than any number."""
        return self._extreme(values, "min")

    def max(self, values: pa.Array) -> pa.Array:
        """The greatest value; NaN is greater than any number."""
        return self._extreme(values, "max")

    def first(self, values: pa.Array, by: pa.Array) -> pa.Array:
        """The value, or null, of the row that comes first by another column."""
        return values.take(self._ends(by, last=False))

    def last(self, values: pa.Array, by: pa.Array) -> pa.Array:
        """The value, or null, of the row that comes last by another column."""
        return values.take(self._ends(by, last=True))

    def lists(self, values: pa.Array) -> pa.Array:
        """The values, in order, as lists; an empty list where there is none."""
        valid = np.flatnonzero(np.asarray(values.is_valid()))
        order = valid[np.argsort(self.index[valid], kind="stable")]
        sizes = np.bincount(self.index[valid], minlength=self.count)
        return _lists(sizes, values.take(pa.array(order)))

    def joined(self, lists: pa.Array) -> pa.Array:
        """The lists of all rows, joined in order."""
        order = np.argsort(self.index, kind="stable")
        ordered = lists.take(pa.array(order))
        lengths = ordered.value_lengths().fill_null(0).to_numpy()
        sizes = np.bincount(self.index[order], weights=lengths, minlength=self.count)
        return _lists(sizes.astype(np.int64), ordered.flatten())

    def _extreme(self, values: pa.Array, which: str) -> pa.Array:
        kind = values.type
        is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        if not is_number and pa.types.is_floating(kind):
            is_number = not pc.any(pc.is_nan(values)).as_py()
        if is_number or pa.types.is_temporal(kind):
            return self._aggregate(values, which)
        return values.take(self._ends(values, last=which == "max"))

    def _ends(self, by: pa.Array, *, last: bool) -> pa.Array:
        """The number of the first or last row of every group, in the order of a column."""
        valid = np.flatnonzero(np.asarray(by.is_valid()))
        order = valid[pc.sort_indices(by.take(pa.array(valid))).to_numpy()]
        if last:
            order = order[::-1]
        groups, positions = np.unique(self.index[order], return_index=True)
        return self._placed(groups, pa.array(order[positions]))

    def _aggregate(self, values: pa.Array, function: str) -> pa.Array:
        table = pa.table([pa.array(self.index), values], ["group", "value"])
        result = table.group_by("group", use_threads=False).aggregate([("value", function)])
        groups = result["group"].to_numpy()
        column = result[f"value_{function}"].combine_chunks()
        order = np.argsort(groups)
        return self._placed(groups[order], column.take(pa.array(order)))

    def _placed(self, groups: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
        """Values of some groups, in order, as values of all groups."""
        if len(groups) == self.count:
            return values
        where = np.full(self.count, -1, np.int64)
        where[groups] = np.arange(len(groups))
        return values.take(pa.array(where, mask=where < 0))


def _lists(sizes: npt.NDArray[np.int64], values: pa.Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
