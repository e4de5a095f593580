import turnback

PUBLIC = [
    "Aggregate",
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "ClaimMode",
    "CollectSink",
    "DataStream",
    "DataStreamSink",
    "DiscardSink",
    "Duration",
    "ExternalizedCheckpointRetention",
    "FileSink",
    "FilterFunction",
    "FlatMapFunction",
    "Groups",
    "JobClient",
    "KeySelector",
    "KeyedBatchFunction",
    "KeyedColumns",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "OutputTag",
    "PrintSink",
    "ProcessFunction",
    "ReduceFunction",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "Row",
    "RuntimeContext",
    "Savepoint",
    "SavepointFormat",
    "SavepointWriter",
    "StreamExecutionEnvironment",
    "Time",
    "TimeDomain",
    "TimerService",
    "TimestampAssigner",
    "TwoPhaseCommitSink",
    "Types",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "approx_distinct_of",
    "count",
    "count_of",
    "diff",
    "first_of",
    "last_of",
    "list_of",
    "max_of",
    "mean_of",
    "min_of",
    "stddev_of",
    "sum_of",
    "variance_of",
]


def test_the_public_names_are_pinned_sorted_and_there():
    assert turnback.__all__ == PUBLIC
    assert sorted(PUBLIC) == PUBLIC
    assert all(hasattr(turnback, name) for name in PUBLIC)


def test_every_public_name_is_described():
    undescribed = [name for name in PUBLIC if not getattr(turnback, name).__doc__]
    assert not undescribed
