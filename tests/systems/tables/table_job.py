"""The job that tests of table sinks kill, as a process of its own; without a JVM.

Elements are numbered within their key, so that a reader of the tables can name every gap and every
duplicate:

    files -> key_by(key) -> Number -> all   (append)
                               +----> last  (upsert by key)
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from deltalake import write_deltalake
from table_support import PLACES

from turnback import KeyedProcessFunction, Row, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.connectors.tables.delta import DeltaTarget
from turnback.testing import LocalEngine
from turnback.testing.crash_points import Countdown, Point, changes

SCHEMA = "key string, seq bigint"
NUMBERED = "key string, seq bigint, previous bigint, team bigint"

_FLUSH, _PUT = "connectors.tables.files:TableWriter._flush", "storage.local:LocalStorage.put"
_COMMITTER = "connectors.tables.sink:TableCommitter"
POINTS = {
    "before-files": Point(_FLUSH, "before"),
    "note-without-files": Point(_PUT, "between", _FLUSH),
    "prepared": Point("connectors.tables.files:TableWriter.prepare", "after"),
    "before-manifest": Point("checkpoint.log:CheckpointLog.append", "before"),
    "after-manifest": Point("checkpoint.log:CheckpointLog.append", "after"),
    "before-publish": Point(f"{_COMMITTER}._publish", "before"),
    "notes-gone": Point(f"{_COMMITTER}._forget_notes", "after"),
    "published": Point(f"{_COMMITTER}._publish", "after"),
    "before-staged-files-go": Point(f"{_COMMITTER}._drop_staged", "before"),
    "not-recorded": Point("checkpoint.commits:Committers.commit", "after"),
    "before-clean-up": Point(f"{_COMMITTER}._remove_left", "before"),
    "recovered": Point(f"{_COMMITTER}.recover", "after"),
}
_JOIN = "connectors.tables.compaction:FileMerger.join"
JOIN_POINTS = {
    "join-noted": Point(_PUT, "between", _JOIN),
    "joined": Point(_JOIN, "after"),
    "join-published": Point("connectors.tables.compaction:FileMerger.settle", "before"),
    "join-settled": Point("connectors.tables.compaction:FileMerger.settle", "after"),
    "joined-files-go": Point(
        "storage.local:LocalStorage.delete",
        "between",
        "connectors.tables.sink:TableCommitter._append",
    ),
}
"""Those that only a job reaches which writes the output of several checkpoints at once."""
_DELTA, _ICEBERG = "connectors.tables.delta:DeltaTarget", "connectors.tables.iceberg:IcebergTarget"
COMPACTION_POINTS = {
    "before-compaction": Point("connectors.tables.sink:TableSink.compact", "before"),
    "delta-compacted": Point(f"{_DELTA}._sync", "before", f"{_DELTA}.compact"),
    "iceberg-joined": Point("connectors.tables.iceberg:JoinedFiles.commit", "before"),
    "iceberg-compacted": Point(f"{_ICEBERG}._sync", "before", f"{_ICEBERG}.compact"),
    "compaction-done": Point("connectors.tables.sink:TableSink.compact", "after"),
}
"""Those of a job that compacts its tables in the background."""


class Number(KeyedProcessFunction):
    """Adds what the state of the key says came before."""

    last = ValueStateDescriptor("last", int)

    def process_element(self, value, ctx):
        previous = self.last.value()
        self.last.update(value.seq)
        yield Row(value.key, value.seq, -1 if previous is None else previous, value.seq % 3)


def without_markers() -> None:
    """Let sinks append as a program would that knows nothing of epochs."""

    def append(self, files, mark):
        import pyarrow.parquet as pq

        for file in files:
            rows = pq.read_table(f"{self._sink.uri}/{file.path}")
            write_deltalake(self._sink.uri, rows, mode="append")
        self._table = None
        DeltaTarget.look(self)

    DeltaTarget.append = append


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("format", choices=PLACES)
    parser.add_argument("base", type=Path)
    parser.add_argument("--kill-at", help="a point, and after a colon how often it is passed")
    parser.add_argument("--without-markers", action="store_true")
    parser.add_argument("--write-every", type=int, default=1)
    parser.add_argument("--compact-files", type=int)
    arguments = parser.parse_args()
    if arguments.without_markers:
        without_markers()
    if arguments.kill_at:
        name, _, count = arguments.kill_at.partition(":")
        reached = Countdown(int(count or 1), lambda: os.kill(os.getpid(), signal.SIGKILL))
        for module, change in changes((POINTS | JOIN_POINTS | COMPACTION_POINTS)[name], reached):
            change(import_module(module))
    healthy = {"write_every": arguments.write_every, "compact_files": arguments.compact_files}
    run(arguments.format, arguments.base, healthy, partitioned=not arguments.without_markers)
    return 0


def run(format_name: str, base: Path, healthy: dict[str, Any], *, partitioned: bool) -> None:
    env = StreamExecutionEnvironment(None, base / "jobs", {}, engine=LocalEngine())
    env.set_parallelism(2).enable_checkpointing(10)
    events = env.from_files(base / "input", "json", SCHEMA, uid="events", max_files_per_epoch=1)
    numbered = events.key_by("key").process(Number(), NUMBERED).uid("number")
    everything, last = (PLACES[format_name](base / name) for name in ("all", "last"))
    by = ["team"] if partitioned else []
    numbered.sink_to(everything.sink(partition_by=by, **healthy)).uid("to-all")
    latest = numbered.key_by("key").process(Number(), NUMBERED).uid("again")
    latest.sink_to(last.sink(mode="upsert", key=["key"], **healthy)).uid("to-last")
    env.execute("numbers", bounded=True, epoch_interval=20)


if __name__ == "__main__":
    sys.exit(main())
