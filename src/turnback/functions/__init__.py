from turnback.functions.base import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from turnback.functions.declared import declared_states
from turnback.functions.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)

__all__ = [
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedProcessFunction",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "ProcessFunction",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "RuntimeContext",
    "StateDescriptor",
    "ValueStateDescriptor",
    "declared_states",
]
