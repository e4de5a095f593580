"""Turnback's `KeyedBatchFunction`: one row out per record, computed with NumPy."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.engines import arguments, turnback_engine
from turnback import DataStream, Types, ValueStateDescriptor
from turnback.functions import KeyedBatchFunction, KeyedColumns


class Count(KeyedBatchFunction):
    columns = ("post",)
    count = ValueStateDescriptor("count", Types.LONG())

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        before = state.read(self.count).fill_null(0).to_numpy()
        order = np.argsort(state.index, kind="stable")
        keys = state.index[order]
        starts = np.searchsorted(keys, keys)  # where the records of each one's key begin
        n = np.empty(len(keys), np.int64)
        n[order] = before[keys] + np.arange(len(keys)) - starts + 1
        state.write(self.count, before + np.bincount(state.index))
        return pa.table({"post": batch["post"], "n": n})


def counting(events: DataStream) -> DataStream:
    return events.key_by("post").process(Count(), output_type="post string, n bigint")


if __name__ == "__main__":
    given = arguments.parse(__doc__, ("turnback-batch",))
    turnback_engine.run(given, counting, "rocksdb").print()
