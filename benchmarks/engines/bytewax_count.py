"""Bytewax's `stateful_map` on one worker, with recovery: snapshots of all keys touched in an epoch.

One worker is one thread of one process. Bytewax starts epochs by the clock, and snapshots at the
end of each. The answer is checked as rows reach the sink; then the flow is resumed from its
recovery store over one more record for every key, which must be counted on from there.
"""

# Bytewax is in an environment of its own, where mypy is not.
# mypy: disable-error-code="import-not-found,misc,no-any-unimported,no-untyped-call"

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from glob import glob
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from platform import python_version

from bytewax import operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main
from pyarrow import parquet

from benchmarks.engine import ENGINES
from benchmarks.engines import arguments
from benchmarks.result import Result, check, check_counts

NAME = "bytewax"
ITEMS = 50_000
"""Records the source hands over at a time: faster than with 500 or 5,000."""

Record = tuple[str, str, int]
Position = tuple[int, int]
"""Files that have been read, and batches of the next one."""
Counted = tuple[str, int]


class Files(FixedPartitionedSource[Record, Position]):
    """The records of Parquet files, in the order of their names."""

    def __init__(self, pattern: str) -> None:
        self.paths = sorted(glob(pattern))  # noqa: PTH207 - the pattern is a whole path

    def list_parts(self) -> list[str]:
        return ["files"]

    def build_part(self, step_id: str, for_part: str, resume_state: Position | None) -> FilesReader:
        return FilesReader(self.paths, resume_state or (0, 0))


class FilesReader(StatefulSourcePartition[Record, Position]):
    def __init__(self, paths: list[str], start: Position) -> None:
        self._paths = paths
        self._position = start
        self._batches = self._read(start)

    def next_batch(self) -> list[Record]:
        self._position, batch = next(self._batches)
        return batch

    def snapshot(self) -> Position:
        return self._position

    def _read(self, start: Position) -> Iterator[tuple[Position, list[Record]]]:
        """Batches, each with the position after it."""
        first, skipped = start
        for file in range(first, len(self._paths)):
            batches = parquet.ParquetFile(self._paths[file]).iter_batches(ITEMS)
            for number, batch in enumerate(islice(batches, skipped, None), skipped + 1):
                columns = [column.to_pylist() for column in batch.columns]
                yield (file, number), list(zip(*columns, strict=True))
            skipped = 0


class Checksum(DynamicSink[Counted], StatelessSinkPartition[Counted]):
    """Discards rows, and notes how many there were by when, and the sum of their counts."""

    def __init__(self) -> None:
        self.rows = self.total = 0
        self.progress: list[tuple[int, float]] = []

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Checksum:
        return self

    def write_batch(self, items: list[Counted]) -> None:
        self.rows += len(items)
        self.total += sum(n for _, n in items)
        self.progress.append((self.rows, time.monotonic()))

    def after(self, warmup: int) -> tuple[int, float]:
        """Rows that followed the first `warmup` of them, and their seconds."""
        start, since = next(each for each in self.progress if each[0] >= warmup)
        end, until = self.progress[-1]
        return end - start, until - since


class Latest(DynamicSink[Counted], StatelessSinkPartition[Counted]):
    """Keeps the last count of every key."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Latest:
        return self

    def write_batch(self, items: list[Counted]) -> None:
        self.counts.update(items)


def count(n: int | None, record: Record) -> tuple[int, int]:
    n = (n or 0) + 1
    return n, n


def flow(files: str, sink: DynamicSink[Counted]) -> Dataflow:
    flow = Dataflow("count")
    events = op.input("events", flow, Files(files))
    posts = op.key_on("post", events, lambda record: record[0])
    op.output("out", op.stateful_map("count", posts, count), sink)
    return flow


def snapshots(recovery: Path) -> int:
    """How many epochs are durable; they are numbered from 1."""
    (store,) = recovery.glob("*.sqlite3")
    with closing(sqlite3.connect(store)) as database:
        ((epoch,),) = database.execute("SELECT max(commit_epoch) FROM commits")
    return int(epoch)


def main() -> None:
    given = arguments.parse(__doc__, (NAME,))
    dataset, workload = given.dataset, given.dataset.workload
    recovery = given.scratch / "recovery"
    recovery.mkdir()
    init_db_dir(recovery, 1)
    interval = timedelta(seconds=workload.batch_records / ENGINES[NAME].rate)
    store = RecoveryConfig(recovery)
    sink = Checksum()
    cli_main(flow(dataset.batch_files, sink), epoch_interval=interval, recovery_config=store)
    check("emitted rows", sink.rows, dataset.answer.rows_per_record)
    check("sum of emitted counts", sink.total, dataset.answer.sum_per_record)
    checkpoints = snapshots(recovery)
    latest = Latest()
    cli_main(flow(dataset.batch_files_and_probe, latest), recovery_config=store)
    check_counts(latest.counts, dataset.counts_after_probe())
    records, seconds = sink.after(workload.warmup_records)
    versions = {"bytewax": version("bytewax"), "python": python_version()}
    Result(given.variant, records, (seconds,), checkpoints, versions).print()


if __name__ == "__main__":
    main()
