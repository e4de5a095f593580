from .batch_sink import BatchEpoch, SparkBatchSink

__all__ = [
    "BatchEpoch",
    "SparkBatchSink",
]
