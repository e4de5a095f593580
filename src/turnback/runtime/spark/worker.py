from __future__ import annotations

import atexit
import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from turnback.core.errors import TurnbackError
from turnback.runtime.failure import marked
from turnback.runtime.level import LevelInstance
from turnback.runtime.message import Order, TaskName
from turnback.runtime.program import load_program

_LOG = logging.getLogger(__name__)
_KEPT = 64


class InstanceKey(NamedTuple):
    """Whose functions are open: those of one attempt of one driver, in one partition of a level.

    Copies of a job directory share id and attempt numbers, so neither tells two jobs apart.
    """

    directory: str
    attempt: int
    line: str
    level: int
    partition: int


_instances: OrderedDict[InstanceKey, LevelInstance] = OrderedDict()


@dataclass(frozen=True)
class LevelTask:
    """What Spark calls in each task of a level.

    Attributes:
        blob: The pickled `LevelProgram`, the same bytes in every epoch.
        level: Index of the level.
        shared: Whether one instance serves all partitions (a level without state).
        order: What to do in this epoch.
    """

    blob: bytes
    level: int
    shared: bool
    order: Order

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the epoch's share of this partition."""
        context = TaskContext.get()
        assert context is not None
        name = TaskName(
            context.partitionId(),
            context.taskAttemptId(),
            context.stageId(),
            context.attemptNumber(),
        )
        partition = -1 if self.shared else name.partition
        order = self.order
        key = InstanceKey(order.storage.uri, order.attempt, order.line, self.level, partition)
        try:
            yield from self._instance(key, name.partition).run(self.order, name, batches)
        except TurnbackError as e:
            _discard(key)
            raise marked(e) from e
        except BaseException:
            _discard(key)
            raise

    def _instance(self, key: InstanceKey, partition: int) -> LevelInstance:
        instance = _instances.get(key)
        if instance is None:
            instance = _instances[key] = LevelInstance(load_program(self.blob), partition)
            _evict(key)
        _instances.move_to_end(key)
        return instance


def _discard(key: InstanceKey) -> None:
    """Give an instance up: what its functions hold may be half done."""
    instance = _instances.pop(key, None)
    if instance is not None:
        try:
            instance.close()
        except Exception:  # noqa: BLE001 - the failure before it is what matters
            _LOG.exception("close() failed after a failure")


def _evict(newest: InstanceKey) -> None:
    for key in list(_instances):
        same_job = key.directory == newest.directory
        if same_job and key.line != newest.line and key.attempt <= newest.attempt:
            _instances.pop(key).close()
    while len(_instances) > _KEPT:
        _instances.popitem(last=False)[1].close()


@atexit.register
def _close_all() -> None:
    while _instances:
        _instances.popitem()[1].close()
