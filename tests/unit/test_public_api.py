from importlib import import_module

import pytest

import turnback
from turnback import errors

TOP = [
    "AsyncDataStream",
    "CheckpointingMode",
    "ClaimMode",
    "CollectSink",
    "DataStream",
    "Duration",
    "FileSink",
    "JobClient",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "OutputTag",
    "PrintSink",
    "ProcessFunction",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "Savepoint",
    "SavepointWriter",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "Time",
    "TimestampAssigner",
    "Types",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "count",
    "diff",
    "look_up",
    "max_of",
    "mean_of",
    "min_of",
    "sum_of",
]
GROUPS = {
    "api": 17,
    "config": 5,
    "connectors": 5,
    "connectors.files": 1,
    "connectors.kafka": 7,
    "connectors.kinesis": 2,
    "connectors.rabbitmq": 2,
    "connectors.sql": 2,
    "connectors.tables": 2,
    "functions": 60,
    "sinks": 13,
    "spark": 2,
    "state": 6,
    "testing": 8,
    "windows": 20,
}


def test_the_names_at_the_top_are_pinned_sorted_and_there():
    assert turnback.__all__ == TOP
    assert sorted(TOP) == TOP
    assert all(hasattr(turnback, name) for name in TOP)


@pytest.mark.parametrize("group", GROUPS)
def test_groups_hold_what_they_list(group):
    module = import_module(f"turnback.{group}")
    names = module.__all__
    assert len(names) == GROUPS[group]
    assert sorted(names) == list(names)
    assert all(getattr(module, name).__doc__ for name in names)


def test_a_group_and_the_top_mean_the_same():
    for group in GROUPS:
        module = import_module(f"turnback.{group}")
        for name in set(module.__all__).intersection(TOP):
            assert getattr(module, name) is getattr(turnback, name)


def test_errors_are_public():
    assert issubclass(errors.ConfigurationError, errors.TurnbackError)


def test_every_public_name_is_described():
    assert not [name for name in TOP if not getattr(turnback, name).__doc__]
