from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from turnback.core.errors import IncompatibleStateError
from turnback.state.layout import GROUPS, LENGTHS, LONGEST, component, state_prefix, wrap
from turnback.state.schema import SINGLE_KINDS, StateSchema
from turnback.state.store import Changes


class Applier:
    """Turns the rows of one state file into changes of a local store.

    Args:
        stored: The states of the file.
        wanted: The states of the program; rows of any other are left out.
        first_group: Smallest key group wanted.
        last_group: Greatest one.
    """

    def __init__(
        self,
        stored: Sequence[StateSchema],
        wanted: Sequence[StateSchema],
        first_group: int,
        last_group: int,
    ) -> None:
        by_id = {schema.id: schema for schema in wanted}
        self._first, self._last = first_group, last_group
        self._prefixes = [state_prefix(*schema.id) for schema in stored]
        self._single = [schema.kind in SINGLE_KINDS for schema in stored]
        self._wanted = [i for i, schema in enumerate(stored) if schema.id in by_id]
        for i in self._wanted:
            check_compatible(stored[i], by_id[stored[i].id])

    def changes(self, batch: pa.RecordBatch) -> Changes:
        """What a batch changes."""
        batch = select(batch, self._first, self._last)
        if len(self._wanted) < len(self._prefixes):
            wanted = pc.is_in(batch["state"], pa.array(self._wanted, pa.int16()))
            batch = batch.filter(wanted)
        states, groups, keys, subs, values = (column.to_pylist() for column in batch.columns)
        if batch.column(3).null_count == batch.num_rows and all(self._single):
            return self._single_valued(states, groups, keys, values)
        return self._mixed(states, groups, keys, subs, values)

    def _single_valued(
        self, states: list[int], groups: list[int], keys: list[bytes], values: list[bytes | None]
    ) -> Changes:
        prefixes, lengths, numbers = self._prefixes, LENGTHS, GROUPS
        if max(map(len, keys), default=0) > LONGEST:
            return self._mixed(states, groups, keys, [None] * len(keys), values)
        where = [
            prefixes[s] + numbers[g] + lengths[len(k)] + k
            for s, g, k in zip(states, groups, keys, strict=True)
        ]
        return Changes([], where, values)

    def _mixed(
        self,
        states: list[int],
        groups: list[int],
        keys: list[bytes],
        subs: list[bytes | None],
        values: list[bytes | None],
    ) -> Changes:
        changes = Changes([], [], [])
        clear, put_key, put_value = (
            changes.clears.append,
            changes.keys.append,
            changes.values.append,
        )
        prefixes, single = self._prefixes, self._single
        for s, g, key, sub, value in zip(states, groups, keys, subs, values, strict=True):
            where = prefixes[s] + GROUPS[g] + component(key)
            if sub is not None:
                where += component(sub)
                if value is not None and len(sub) > LONGEST:
                    value = wrap(sub, value)
            elif value is None and not single[s]:
                clear(where)
                continue
            if value is not None and len(key) > LONGEST:
                value = wrap(key, value)
            put_key(where)
            put_value(value)
        return changes


def select(batch: pa.RecordBatch, first_group: int, last_group: int) -> pa.RecordBatch:
    """The rows of a batch in the groups first..last; rows are sorted by group."""
    groups = batch["group"].to_numpy()
    start = int(groups.searchsorted(first_group, side="left"))
    end = int(groups.searchsorted(last_group, side="right"))
    return batch.slice(start, end - start)


def check_compatible(stored: StateSchema, wanted: StateSchema) -> None:
    """Raise `IncompatibleStateError` if stored values cannot be read as the program wants them."""
    differences = stored.differences(wanted)
    if differences:
        told = "; ".join(f"{what} stored {a}, wanted {b}" for what, a, b in differences)
        raise IncompatibleStateError(
            f"state {stored.name!r} of operator {stored.uid!r} does not fit the program: {told}. "
            f"Declare the stored type again, or give the state a new name"
        )
