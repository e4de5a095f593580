"""A level with keyed state run in this process: the real tasks, chains, merges and coordinator.

Spark's part (shuffling rows to partitions) is one call per partition here, so that thousands of
epochs take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from turnback import DiscardSink
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import EpochCut, SourcePosition
from turnback.config.checkpointing import CheckpointSettings
from turnback.program.graph import KeySpec, NodeKind, StreamGraph
from turnback.program.planner import plan
from turnback.sinks.base import CommitterContext
from turnback.spark.merger import MergeTask
from turnback.state.compaction import plan_merges
from turnback.state.files import StorageRef
from turnback.storage.local import LocalStorage
from turnback.types.columns import Batch
from turnback.types.hints import as_type
from turnback.worker.level import LevelInstance
from turnback.worker.message import INJECTED, Order, TaskName, decode_barrier, encode_barrier
from turnback.worker.program import Chains, level_programs

ROW = as_type("key string, n bigint")


class OneProcessJob:
    """source -> key_by("key") -> process(function) -> discard, without Spark."""

    def __init__(self, root: Path, function: Any, settings: CheckpointSettings) -> None:
        graph = StreamGraph()
        source = graph.add(NodeKind.SOURCE, "source", ROW, uid="source")
        key = KeySpec(("key",), None, (as_type("string"),))
        process = graph.add(
            NodeKind.KEYED_PROCESS, "process", ROW, (source,), key=key, function=function, uid="p"
        )
        sink = DiscardSink()
        graph.add(NodeKind.SINK, "sink", None, (process,), function=sink, uid="sink")
        (self.program,) = level_programs(plan(graph, 1, 128))
        self.instance = LevelInstance(self.program, 0)
        self.chains = Chains([self.program], 128)
        self.storage = LocalStorage(root / "job")
        self.ref = StorageRef(self.storage.uri)
        self.local = root / "local"
        self.epoch = 0
        log = CheckpointLog(self.storage)
        fence = log.fence(job="j", job_id="id", created_ms=0, host="h", pid=1, nonce="n")
        self.line = fence.line
        context = CommitterContext(job="j", job_id="id", uid="sink", attempt=fence.attempt)
        self.coordinator = CheckpointCoordinator(
            log, settings, {"sink": sink.committer(context)},
            max_parallelism=128,
        ).start()  # fmt: skip

    def run(self, rows: Sequence[tuple[str, int]]) -> None:
        """One epoch."""
        self.epoch += 1
        layout = self.program.input
        data = Batch(ROW, list(rows)).arrow
        batches = [
            layout.pack(layout.wires[0], data, None),
            layout.barriers([0], [encode_barrier(INJECTED)]),
        ]
        order = Order(
            "j", "id", 1, self.epoch, "rocksdb", str(self.local), self.ref,
            self.chains.of_level(0), self.line,
        )  # fmt: skip
        out: list[pa.RecordBatch] = list(
            self.instance.run(order, TaskName(0, self.epoch), iter(batches))
        )
        ack = decode_barrier(out[-1].column(2)[0].as_py()).acks[-1]
        if ack.state is not None:
            self.chains.confirm(0, 0, ack.state)
        merged_away = self.merge()
        position = SourcePosition(str(self.epoch))
        cut = EpochCut(self.epoch, {"source": position}, self.chains.live(), ack.schemas)
        self.coordinator.epoch_confirmed(cut)
        self.coordinator.retire(merged_away)

    def merge(self) -> list[str]:
        """Do what the merger does in the background."""
        gone: list[str] = []
        for home, files in self.chains.items():
            for merge in plan_merges(files):
                task = MergeTask(home, merge.files, merge.final, ("p",), (0, 127), self.ref, 1)
                gone += self.chains.replace(home, merge.files, task.run())
        return gone
