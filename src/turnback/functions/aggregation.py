"""A declared aggregation as two operators: one combines before the shuffle, one merges after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from turnback.core.errors import PlanError
from turnback.functions.aggregates import Aggregate
from turnback.functions.base import KeyedBatchFunction, KeyedColumns, RuntimeContext
from turnback.functions.descriptors import ValueStateDescriptor
from turnback.functions.groups import Groups, naming_keys
from turnback.functions.key_spec import KeySpec
from turnback.values.columns import stream_columns, stream_schema
from turnback.values.typeinfo import RowTypeInfo, TypeInfo

ACCUMULATORS = "aggregates"
"""Name of the state of an aggregation: a row with the accumulator of every aggregate."""
_KEY = "key"
"""Name of the column that a key function's keys become."""


@dataclass(frozen=True)
class Combination:
    """Turns elements into one row per key: the key, and the accumulators of its elements.

    Attributes:
        key: How the elements get their key.
        aggregates: By name.
        type: Of its rows.
    """

    key: KeySpec
    aggregates: Mapping[str, Aggregate]
    type: RowTypeInfo

    def combine(
        self, batch: pa.RecordBatch, keys: pa.Array, index: npt.NDArray[np.int64]
    ) -> pa.RecordBatch:
        groups = Groups(index, len(keys))
        columns = key_columns(keys, self.key)
        for aggregate in self.aggregates.values():
            inputs = [batch.column(name) for name in aggregate.columns]
            with naming_keys(keys):
                columns.append(aggregate.combine(groups, *inputs))
        return record_batch(columns, self.type)


class Aggregation(KeyedBatchFunction):
    """Merges what combinations give into the accumulators of its keys.

    It gives one row per key that has changed: the key, and the result of every aggregate.
    """

    def __init__(
        self,
        key: KeySpec,
        aggregates: Mapping[str, Aggregate],
        accumulators: RowTypeInfo,
        type: RowTypeInfo,
    ) -> None:
        self.key = key
        self.aggregates = aggregates
        self.accumulators = accumulators
        self.type = type

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor[Any](ACCUMULATORS, self.accumulators)
        self.state = runtime_context.get_state(
            descriptor.accumulated_by(definitions(self.aggregates))
        )

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.RecordBatch:
        count = len(state.keys)
        index = np.concatenate([np.arange(count), state.index])
        before = state.read(self.state).flatten()
        both = [
            pa.concat_arrays([old, batch.column(name)])
            for name, old in zip(self.aggregates, before, strict=True)
        ]
        with naming_keys(state.keys):
            merged = merge_accumulators(self.aggregates, both, index, count)
        results = results_of(self.aggregates, merged)
        fields = list(self.accumulators.arrow())
        state.write(self.state, pa.StructArray.from_arrays(merged, fields=fields))
        return record_batch([*key_columns(state.keys, self.key), *results], self.type)


def plan_aggregation(
    input_type: TypeInfo, key: KeySpec, aggregates: Mapping[str, Aggregate]
) -> tuple[Combination, Aggregation]:
    """Check a declared aggregation, and divide it.

    Raises:
        PlanError: It names columns that are not there, or cannot be aggregated.
    """
    columns = dict(stream_columns(input_type))
    keys = key.columns if key.function is None else (_KEY,)
    states: list[TypeInfo] = []
    results: list[TypeInfo] = []
    if not aggregates:
        raise PlanError("aggregate needs at least one aggregate, such as n=count()")
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PlanError(
                f"aggregate: {name}={aggregate!r:.80} is no aggregate; write for example "
                f"{name}=count() or {name}=sum_of('amount')"
            )
        if name in keys:
            raise PlanError(f"aggregate: {name!r} is the name of the key; choose another")
        missing = [column for column in aggregate.columns if column not in columns]
        if missing:
            raise PlanError(
                f"aggregate: {name}: there is no column {missing[0]!r}; there are {list(columns)}"
            )
        try:
            state, result = aggregate.types(*(columns[column] for column in aggregate.columns))
        except PlanError as e:
            raise PlanError(f"aggregate: {name}: {e}") from None
        states.append(state)
        results.append(result)
    names = tuple(aggregates)
    combined = RowTypeInfo((*keys, *names), (*key.types, *states))
    output = RowTypeInfo((*keys, *names), (*key.types, *results))
    merged = replace(key, columns=keys, function=None)
    return (
        Combination(key, dict(aggregates), combined),
        Aggregation(merged, dict(aggregates), RowTypeInfo(names, tuple(states)), output),
    )


def definitions(aggregates: Mapping[str, Aggregate]) -> dict[str, str]:
    """What makes the accumulators of each aggregate, which is stored with them."""
    return {name: aggregate.definition() for name, aggregate in aggregates.items()}


def merge_accumulators(
    aggregates: Mapping[str, Aggregate],
    columns: Sequence[pa.Array],
    index: npt.NDArray[np.int64],
    count: int,
) -> list[pa.Array]:
    """The accumulators of every aggregate, one for each group of rows."""
    merged = []
    for aggregate, column in zip(aggregates.values(), columns, strict=True):
        # What an aggregate that is new in this program has seen so far is null.
        groups = Groups(index[np.asarray(column.is_valid())], count)
        merged.append(aggregate.merge(groups, column.drop_null()).cast(column.type))
    return merged


def results_of(
    aggregates: Mapping[str, Aggregate], accumulators: Sequence[pa.Array]
) -> list[pa.Array]:
    """What comes out of every aggregate."""
    pairs = zip(aggregates.values(), accumulators, strict=True)
    return [aggregate.result(column) for aggregate, column in pairs]


def key_columns(keys: pa.Array, key: KeySpec) -> list[pa.Array]:
    """The columns of keys."""
    return [keys] if len(key.types) == 1 else keys.flatten()


def record_batch(columns: list[pa.Array], type_: RowTypeInfo) -> pa.RecordBatch:
    """A batch of a type, of columns that may be narrower."""
    schema = stream_schema(type_)
    cast = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.record_batch(cast, schema=schema)
