from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from turnback.driver.engine import Engine
from turnback.state.expiring import Limits
from turnback.state.files import (
    StateFile,
    StorageRef,
    merged_lineage,
    plan_merges,
    read_state,
    storage_of,
)
from turnback.state.merging import merge
from turnback.worker.program import Chains, LevelProgram, PartitionId

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergeTask:
    """Files of one partition to be merged into one, on some executor."""

    home: PartitionId
    files: tuple[StateFile, ...]
    """In epoch order."""
    final: bool
    """Whether the result is complete, so that tombstones can go."""
    operators: tuple[str, ...]
    """Keyed operators of the level."""
    groups: tuple[int, int]
    storage: StorageRef
    attempt: int
    limits: Limits = field(default_factory=dict)
    """What has expired."""

    def run(self) -> StateFile:
        read = partial(read_state, self.storage)
        merged = merge(self.files, read, final=self.final, limits=self.limits)
        level, partition = self.home
        path = f"state/{self.attempt}/{level}-{partition}-merged-{uuid.uuid4().hex}.arrow"
        if not self.storage.inline:
            storage_of(self.storage).put(path, merged.data)
        file = replace(
            merged.file(path, max(f.last_epoch for f in self.files), inline=self.storage.inline),
            first_epoch=min(f.first_epoch for f in self.files),
            lineage=merged_lineage(self.files, complete=self.final),
        )
        if not self.final:
            return file
        # It is complete for all key groups and operators of its partition, also those without rows.
        first, last = self.groups
        return replace(
            file, first_group=first, last_group=last, operators=self.operators, complete=True
        )


class Merger:
    """Merges small state files into larger ones, as Spark jobs beside the epochs."""

    def __init__(
        self, engine: Engine, programs: Sequence[LevelProgram], storage: StorageRef, attempt: int
    ) -> None:
        self._engine = engine
        self._programs = {p.level.index: p for p in programs}
        self._storage = storage
        self._attempt = attempt
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="turnback-merge")
        self._running: tuple[list[MergeTask], Future[list[StateFile]]] | None = None

    def advance(self, chains: Chains, limits: Limits) -> list[str]:
        """Use the results of finished merges, start new ones; return the paths merged away.

        To be called between epochs, as no new epoch needs those files. What has expired by the time
        of the last epoch, as the `limits` say, is expired in all that come.
        """
        gone: list[str] = []
        if self._running is not None and self._running[1].done():
            gone = self._take(chains, *self._running)
            self._running = None
        if self._running is None and (tasks := self._due(chains, limits)):
            description = f"Turnback: merge state of {len(tasks)} partitions"
            self._running = (tasks, self._pool.submit(self._engine.run_tasks, description, tasks))
        return gone

    def close(self) -> None:
        """Start no more merges; one under way is left to end by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _take(
        self, chains: Chains, tasks: list[MergeTask], future: Future[list[StateFile]]
    ) -> list[str]:
        error = future.exception()
        if error is not None:
            # Nothing refers to a half-done merge; the files it was to replace are all there.
            _LOG.warning("merging state files failed and is tried again: %s", error)
            return []
        gone: list[str] = []
        for task, file in zip(tasks, future.result(), strict=True):
            gone += chains.replace(task.home, task.files, file)
        return gone

    def _due(self, chains: Chains, limits: Limits) -> list[MergeTask]:
        tasks: list[MergeTask] = []
        for home, files in chains.items():
            program = self._programs[home[0]]
            stateful = program.level.stateful
            alike = len({op.parallelism for op in stateful}) == 1
            tasks += [
                MergeTask(
                    home,
                    tuple(planned.files),
                    planned.final and alike,
                    tuple(op.uid for op in stateful),
                    program.groups(home[1]),
                    self._storage,
                    self._attempt,
                    limits,
                )
                for planned in plan_merges(files)
            ]
        return tasks
