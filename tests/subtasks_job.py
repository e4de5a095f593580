"""A job with state of its subtasks: lists of every kind, raw bytes, broadcast state of two sorts.

`python tests/subtasks_job.py DIRECTORY` takes a savepoint of it, like those in `golden` called
`subtasks`. These are never made anew: they show that what older versions wrote can still be read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from turnback import (
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.functions import CheckpointedFunction, KeyedBroadcastProcessFunction
from turnback.sinks import DiscardSink
from turnback.testing import LocalEngine

NAMES = MapStateDescriptor("names", Types.LONG(), Types.STRING())


class Keep(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        row = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
        self.split = store.get_list_state(ListStateDescriptor("split", row))
        self.together = store.get_union_list_state(ListStateDescriptor("together", Types.LONG()))
        self.raw = store.get_list_state(ListStateDescriptor("raw", Types.BYTES()))
        self.shared = store.get_broadcast_state(MapStateDescriptor("shared", str, int))

    def map(self, value: Any) -> Any:
        self.split.add((value.n, str(value.n)))
        self.together.add(value.n)
        self.raw.add(bytes([value.n, 255]))
        return value

    def snapshot_state(self, context: Any) -> None:
        if self.shared.is_empty():
            self.shared.put("made", 7)


class Name(KeyedBroadcastProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(NAMES).put(value.n, f"name {value.n}")


def build(env: StreamExecutionEnvironment, events: Path) -> None:
    numbers = env.from_files(events, "json", "n bigint", uid="events", max_files_per_epoch=1)
    kept = numbers.map(Keep(), "n bigint").uid("keep")
    named = kept.key_by("n").connect(numbers.broadcast(NAMES)).process(Name(), "n bigint")
    named.uid("name").sink_to(DiscardSink()).uid("out")


def write(directory: Path, numbers: Iterable[int]) -> None:
    directory.mkdir(exist_ok=True)
    numbers = list(numbers)
    lines = "".join(f"{json.dumps({'n': n})}\n" for n in numbers)
    (directory / f"{numbers[0]}.json").write_text(lines)


def take(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        write(root / "events", range(7))
        env = StreamExecutionEnvironment(None, root / "jobs", {}, engine=LocalEngine())
        env.set_parallelism(3).enable_checkpointing(10)
        build(env, root / "events")
        client = env.execute_async("subtasks")
        while not client.report.epochs:
            client.done() and client.result()
        client.stop_with_savepoint(savepoint_directory=target).result(60)
        client.result(60)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
