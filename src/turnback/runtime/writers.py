from __future__ import annotations

import logging

from turnback.core import Batch
from turnback.core.errors import TurnbackError
from turnback.planner import Level, Operator
from turnback.runtime.failure import user_error
from turnback.runtime.message import Order, TaskName
from turnback.sinks import SinkWriter, WriterContext

_LOG = logging.getLogger(__name__)


class SinkWriters:
    """The sink transactions of one task in one epoch, each begun with its first element."""

    def __init__(self, level: Level, order: Order, name: TaskName) -> None:
        self._order = order
        self._name = name
        self._writers: dict[str, SinkWriter] = {}
        self._operators = {op.uid: op for op in level.operators}
        self.counts: dict[str, int] = {}

    def write(self, operator: Operator, batch: Batch) -> None:
        """Write elements to a sink."""
        uid = operator.uid
        try:
            if uid not in self._writers:
                self._writers[uid] = operator.function.writer(self._context(operator))
            self._writers[uid].write(batch)
        except TurnbackError:
            raise
        except Exception as e:
            raise user_error(e, uid, operator.name, where="sink writer") from e
        self.counts[uid] = self.counts.get(uid, 0) + len(batch)

    def prepare(self) -> dict[str, tuple[bytes, ...]]:
        """Pre-commit everything; returns the transactions by sink uid."""
        transactions: dict[str, tuple[bytes, ...]] = {}
        for uid, writer in self._writers.items():
            try:
                handle = writer.prepare()
            except TurnbackError:
                raise
            except Exception as e:
                name = self._operators[uid].name
                raise user_error(e, uid, name, where="sink pre-commit") from e
            if handle is not None:
                transactions[uid] = (handle,)
        return transactions

    def abort(self) -> None:
        """Roll everything back; what cannot be is left to the next attempt."""
        for uid, writer in self._writers.items():
            try:
                writer.abort()
            except Exception as e:  # noqa: BLE001 - it must not hide why the epoch failed
                _LOG.warning("sink %r could not roll back: %s", uid, e)

    def _context(self, operator: Operator) -> WriterContext:
        order, name = self._order, self._name
        assert operator.input_type is not None
        return WriterContext(
            job=order.job,
            job_id=order.job_id,
            uid=operator.uid,
            attempt=order.attempt,
            epoch=order.epoch,
            partition=name.partition,
            task_attempt_id=name.attempt,
            type=operator.input_type,
        )
