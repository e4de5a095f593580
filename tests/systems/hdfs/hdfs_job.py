"""A job with its directory on HDFS: notes for each number of a key which one came before it.

`python hdfs_job.py SETTINGS`, where SETTINGS is JSON: `root`, `input` and `output`; `partition_by`,
columns of the output; `save`, the directory of a savepoint with which the job stops when it has
written something; `fork`, the savepoint from which another job starts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnback import (
    FileSink,
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)


class Before(KeyedProcessFunction):
    """Gives each number of a key with the one before it."""

    last = ValueStateDescriptor("last", int)

    def process_element(self, value: Row, ctx: Any) -> Iterator[Any]:
        before = self.last.value()
        self.last.update(value.n)
        yield value.key, value.n, -1 if before is None else before


def main() -> None:
    settings = json.loads(sys.argv[1])
    env = StreamExecutionEnvironment.get_execution_environment(root=settings["root"])
    env.enable_checkpointing(10)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(100, 100))
    numbers = env.from_files(
        settings["input"], "json", "key string, n bigint", uid="numbers", max_files_per_epoch=1
    )
    found = numbers.key_by("key").process(
        Before(), output_type="key string, n bigint, before bigint"
    )
    sink = FileSink(settings["output"], "json", partition_by=settings.get("partition_by", ()))
    found.uid("before").sink_to(sink).uid("output")
    if "fork" in settings:
        env.execute("forked", bounded=True, start_from=settings["fork"], fork=True)
    elif "save" in settings:
        client = env.execute_async("numbers", bounded=False)
        while not any(Path(settings["output"]).rglob("part-*.json")):
            time.sleep(0.1)
        print(client.stop_with_savepoint(savepoint_directory=settings["save"]).result(300))
    else:
        env.execute("numbers", bounded=True)


if __name__ == "__main__":
    main()
