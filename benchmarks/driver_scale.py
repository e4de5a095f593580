"""What one driver can take: real driver code, with the acknowledgements of thousands of tasks."""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import section
from benchmarks.machine import Machine
from benchmarks.table import table
from turnback import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.checkpoint.retention import Retention
from turnback.driver.epochs import Epochs, Merger, MergeTask
from turnback.driver.job import JobSpec
from turnback.driver.positions import Positions
from turnback.plan.plan import Plan
from turnback.sinks.memory import DiscardSink
from turnback.spark.worker import send_commands
from turnback.state.files import StateFile, merged_lineage
from turnback.state.schema import StateSchema
from turnback.storage.base import Storage
from turnback.storage.local import LocalStorage
from turnback.testing.engine import LocalEngine, LocalQuery
from turnback.values.keys import group_range
from turnback.worker.message import (
    Barrier,
    EpochCommand,
    TaskAck,
    TaskName,
    decode_barrier,
    encode_barrier,
)
from turnback.worker.program import level_programs

try:
    from turnback.worker.message import TaskSet

    named: Callable[..., Any] = TaskSet.of
except ImportError:  # acknowledgements of older versions name all upstream tasks
    named = tuple

LEVELS = 2
FILE_BYTES = 6_000
"""Of what a task writes in an epoch: sizes of state files decide when they are merged."""


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value


@dataclass
class Clock:
    """Processor seconds and bytes of each step, added up: other work on the machine adds none."""

    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    numbers: Counter[str] = field(default_factory=Counter)
    epochs: list[float] = field(default_factory=list)

    def around(self, owner: type, name: str, step: str) -> None:
        method = getattr(owner, name)

        def timed(*args: Any, **named: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*args, **named)
            finally:
                self.seconds[step] += time.thread_time() - began

        setattr(owner, name, timed)

    def reset(self) -> None:
        self.seconds.clear()
        self.numbers.clear()
        self.epochs.clear()


CLOCK = Clock()


class Properties:
    """Stands for a Spark context, which gives its properties to every task."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def setLocalProperty(self, key: str, text: str | None) -> None:  # noqa: N802 (Spark's)
        if text is not None:
            self.texts[key] = text


class Tasks:
    """Stands for the tasks: makes the barriers that the driver collects, as bytes."""

    def __init__(self, plan: Plan) -> None:
        self.programs = level_programs(plan)
        self._number = 0

    def run(self, inputs: Any, commands: Sequence[EpochCommand]) -> list[Barrier]:
        began = time.thread_time()
        blobs = self._barriers(commands)
        CLOCK.seconds["made up"] += time.thread_time() - began
        began = time.thread_time()
        properties = Properties()
        with send_commands(properties, commands):  # type: ignore[arg-type]
            CLOCK.seconds["commands"] += time.thread_time() - began
            for program, text in zip(self.programs, properties.texts.values(), strict=True):
                CLOCK.numbers["property bytes"] += len(text) * (program.level.parallelism or 1)
        CLOCK.numbers["barrier bytes"] += sum(map(len, blobs))
        began = time.thread_time()
        barriers = [decode_barrier(blob) for blob in blobs]
        CLOCK.seconds["read barriers"] += time.thread_time() - began
        return barriers

    def close(self) -> None:
        """There is nothing to close."""

    def _barriers(self, commands: Sequence[EpochCommand]) -> list[bytes]:
        upstream: tuple[TaskName, ...] = ()
        acks: list[list[TaskAck]] = []
        names: list[TaskName] = []
        for program, command in zip(self.programs, commands, strict=True):
            tasks = program.level.parallelism or 1
            names = [TaskName(p, self._next(), command.epoch) for p in range(tasks)]
            before = named(upstream)
            acks.append([self._ack(program, command, name, before) for name in names])
            upstream = tuple(names)
        last = len(self.programs) - 1
        return [
            encode_barrier(Barrier(last, name, tuple(level[i] for level in acks if i < len(level))))
            for i, name in enumerate(names)
        ]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ack(self, program: Any, command: EpochCommand, name: TaskName, upstream: Any) -> TaskAck:
        level = program.level
        uids = [op.uid for op in level.stateful]
        records = {op.uid: (100, 100) for op in level.operators}
        state = None
        schemas: tuple[StateSchema, ...] = ()
        if uids:
            first, last = group_range(name.partition, level.parallelism, program.max_parallelism)
            unique = hashlib.md5(f"{level.index}-{name}".encode()).hexdigest()
            path = (
                f"state/{command.attempt}/{level.index}-{name.partition}-{command.epoch}"
                f"-{name.attempt}-{unique[:12]}.arrow"
            )
            state = StateFile(
                path, FILE_BYTES, f"xxh3:{unique}", 100, command.epoch, command.epoch,
                first, last, tuple(uids), lineage=((command.line, command.epoch),),
            )  # fmt: skip
        return TaskAck(
            level.index, name, upstream, state, schemas, {}, records, "home",
            {"open": 0.001, "process": 0.2, "snapshot": 0.01}, 60, busy=dict.fromkeys(uids, 0.1),
        )  # fmt: skip


class ScaledQuery(LocalQuery):
    """A query whose tasks are made up."""

    def __init__(
        self, engine: LocalEngine, plan: Plan, spec: JobSpec, positions: Positions
    ) -> None:
        super().__init__(engine, plan, spec, positions)
        self.levels = Tasks(plan)  # type: ignore[assignment]


class ScaledEngine(LocalEngine):
    """Runs no tasks, but everything else."""

    def query(self, plan: Plan, spec: JobSpec, storage: Storage, attempt: int) -> LocalQuery:
        self.sources = frozenset(source.uid for source in plan.sources)
        return ScaledQuery(self, plan, spec, Positions(storage, attempt))

    def run_tasks(self, description: str, tasks: Sequence[Any]) -> list[Any]:
        if not all(isinstance(task, MergeTask) for task in tasks):
            return super().run_tasks(description, tasks)
        CLOCK.numbers["merged"] += len(tasks)
        return [merged(task) for task in tasks]


def merged(task: MergeTask) -> StateFile:
    """What a merge would give: half of the rows are of keys that come again."""
    level, partition = task.home
    unique = hashlib.md5(repr([file.path for file in task.files]).encode()).hexdigest()
    newest = max(task.files, key=lambda file: file.last_epoch)
    return msgspec.structs.replace(
        newest,
        path=f"state/{task.attempt}/{level}-{partition}-merged-{unique}.arrow",
        length=sum(file.length for file in task.files) // 2,
        rows=sum(file.rows for file in task.files) // 2,
        digest=f"xxh3:{unique}",
        first_epoch=min(file.first_epoch for file in task.files),
        lineage=merged_lineage(task.files, complete=task.final),
        complete=task.final,
    )


def count_requests() -> None:
    """Count what the driver asks its storage for."""
    for name in ("put", "put_if_absent", "get", "delete", "sizes", "list", "delete_all"):
        method = getattr(LocalStorage, name, None)
        if method is not None:
            setattr(LocalStorage, name, _counted(method, name))


def _counted(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(storage: LocalStorage, path: Any = "", *args: Any) -> Any:
        if not isinstance(path, str):
            path = list(path)
            CLOCK.numbers["delete"] += len(path)
        else:
            CLOCK.numbers[name] += 1
        if "put" in name and "/order-" in path:
            CLOCK.numbers["command files"] += 1
            CLOCK.numbers["command bytes"] += len(args[0])
        if "put" in name and "/chk-" in path:
            CLOCK.numbers["manifests"] += 1
            CLOCK.numbers["manifest bytes"] += len(args[0])
        return method(storage, path, *args)

    return call


def trial(tasks: int, epochs: int, warmup: int, place: Path) -> dict[str, float]:
    """Run a job whose epochs have so many acknowledgements."""
    parallelism = tasks // LEVELS
    (place / "in").mkdir()
    for number in range(warmup + epochs):
        (place / "in" / f"{number:06d}.json").write_text('{"k": 1}')
    CLOCK.around(Retention, "clean", "clean-up")
    CLOCK.around(Merger, "advance", "merges")
    count_requests()
    settings = {"execution.checkpointing.num-retained": 3}
    env = StreamExecutionEnvironment(None, place / "jobs", settings, engine=ScaledEngine())
    env.set_max_parallelism(max(128, parallelism)).set_parallelism(parallelism)
    env.enable_checkpointing(10)
    rows = env.from_files(place / "in", "json", "k bigint", uid="in", max_files_per_epoch=1)
    once = rows.key_by("k").process(Count(), "k bigint").uid("once")
    twice = once.key_by("k").process(Count(), "k bigint").uid("twice")
    twice.sink_to(DiscardSink()).uid("out")
    run = Epochs.run
    seen = 0

    def counting(self: Epochs, *args: Any, **named: Any) -> None:
        nonlocal seen
        before = CLOCK.seconds["made up"]
        began = time.thread_time()
        run(self, *args, **named)
        took = time.thread_time() - began - (CLOCK.seconds["made up"] - before)
        while self._coordinator.completed <= seen:  # a checkpoint of each
            time.sleep(0.002)
        seen += 1
        CLOCK.epochs.append(took)
        if seen == warmup:
            CLOCK.reset()

    Epochs.run = counting  # type: ignore[method-assign]
    began = time.process_time()
    report = env.execute("scaled", bounded=True)
    numbers = CLOCK.numbers
    manifests = max(1, numbers["manifests"])
    return {
        "epoch s": sorted(CLOCK.epochs)[len(CLOCK.epochs) // 2],
        "slowest s": max(CLOCK.epochs),
        "commands s": CLOCK.seconds["commands"] / epochs,
        "read barriers s": CLOCK.seconds["read barriers"] / epochs,
        "merges s": CLOCK.seconds["merges"] / epochs,
        "clean-up s": CLOCK.seconds["clean-up"] / manifests,
        "manifest MB": numbers["manifest bytes"] / manifests / 1e6,
        "properties MB": numbers["property bytes"] / epochs / 1e6,
        "command files": numbers["command files"] / epochs,
        "a command file MB": numbers["command bytes"] / max(1, numbers["command files"]) / 1e6,
        "barriers MB": numbers["barrier bytes"] / epochs / 1e6,
        "puts": (numbers["put"] + numbers["put_if_absent"]) / manifests,
        "gets": numbers["get"] / manifests,
        "lists": (numbers["list"]) / manifests,
        "deletes": numbers["delete"] / manifests,
        "merged": numbers["merged"] / epochs,
        "memory MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "checkpoints": report.checkpoints,
        "all s": time.process_time() - began,
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver_scale", description=__doc__)
    parser.add_argument("--tasks", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--epochs", type=int, default=12, help="counted (%(default)s)")
    parser.add_argument("--warmup", type=int, default=10, help="not counted (%(default)s)")
    parser.add_argument("--trial", action="store_true", help=argparse.SUPPRESS)
    return section.parse(parser, argv, tasks=[100], epochs=3)


def main(argv: Sequence[str] | None = None) -> int:
    given = parse(argv)
    if given.trial:
        with tempfile.TemporaryDirectory(prefix="turnback-scale-") as name:
            print(json.dumps(trial(given.tasks[0], given.epochs, given.warmup, Path(name))))
        return 0
    machine = Machine.here()
    columns = []
    for tasks in given.tasks:
        command = [sys.executable, "-m", "benchmarks.driver_scale", "--trial"]
        command += ["--tasks", str(tasks), "--epochs", str(given.epochs)]
        command += ["--warmup", str(given.warmup)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        columns.append(json.loads(done.stdout.splitlines()[-1]))
        print(tasks, columns[-1], file=sys.stderr, flush=True)
    rows = [[name, *(f"{column[name]:,.3g}" for column in columns)] for name in columns[0]]
    text = (
        "## One driver and many tasks\n\n"
        f"Two keyed levels, a checkpoint after each of {given.epochs} epochs; tasks are made up, "
        f"everything of the driver is real. {machine.describe()}\n\n"
        + table(["an epoch", *(f"{tasks:,} tasks" for tasks in given.tasks)], rows)
        + "\n\nRepeat with `python -m benchmarks.driver_scale`."
    )
    print(text)
    if given.output is not None:
        section.write(given.output, "driver-scale", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
