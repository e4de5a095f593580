"""Operators that give elements their timestamps, by a watermark strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from turnback.core.errors import ElementTypeError
from turnback.functions.event_time import FURTHEST_TIME, MIN_TIME, TimestampAssigner
from turnback.plan.plan import Operator
from turnback.plan.sources import WHOLE
from turnback.state.backend import KeyedStateBackend
from turnback.values.columns import Batch, stream_columns
from turnback.worker.event_time import TaskTime
from turnback.worker.message import user_error
from turnback.worker.ordering import OrderedRunner
from turnback.worker.runners import Runner
from turnback.worker.stamps import ASIDE, UNPLACED, Stamps, Times


class _Timestamps:
    """Reads the timestamps of elements, as a strategy says."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        assert operator.input_type is not None
        assigner = operator.function.assigner
        if isinstance(assigner, TimestampAssigner):
            self.read: Callable[[Batch], Times] = self._by_function
        else:
            names = [name for name, _ in stream_columns(operator.input_type)]
            self._column = names.index(assigner)
            self.read = self._by_column
        assert operator.type is not None
        self._kept = [name for name, _ in stream_columns(operator.type)]
        self._keeps_all = len(self._kept) == len(stream_columns(operator.input_type))

    def bare(self, batch: Batch) -> Batch:
        """The elements as the strategy gives them on, not yet stamped."""
        if self._keeps_all:
            return batch.copy() if batch.stamps is not None else batch
        assert self._operator.type is not None
        return Batch(self._operator.type, batch.arrow.select(self._kept))

    def _by_column(self, batch: Batch) -> Times:
        column = batch.arrow.column(self._column)
        if column.null_count:
            name = self._operator.function.assigner
            row = batch.rows[column.is_null().index(True).as_py()]
            raise self._without(f"null in the column {name} of", row)
        if not pa.types.is_timestamp(column.type):
            numbers: Times = column.to_numpy().astype(np.int64)
            outside = np.flatnonzero((numbers < -FURTHEST_TIME) | (numbers > FURTHEST_TIME))
            for i in outside[:1].tolist():
                name = self._operator.function.assigner
                raise self._without(f"{numbers[i]} in the column {name} of", batch.rows[i])
            return numbers
        micros = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
        times: Times = micros.to_numpy() // 1000
        return times

    def _by_function(self, batch: Batch) -> Times:
        op = self._operator
        row = None
        times = []
        extract = op.function.assigner.extract_timestamp
        stamps = batch.stamps
        before = [MIN_TIME] * len(batch) if stamps is None else stamps.time.tolist()
        try:
            for row, known in zip(batch.rows, before, strict=True):
                times.append(extract(row, known))
        except Exception as e:
            raise user_error(e, op.uid, "extract_timestamp", element=row) from e
        for row, time in zip(batch.rows, times, strict=True):
            if type(time) is not int or not -FURTHEST_TIME <= time <= FURTHEST_TIME:
                raise self._without(f"{time!r:.40} from extract_timestamp for", row)
        return np.array(times, np.int64)

    def _without(self, what: str, row: object) -> ElementTypeError:
        op = self._operator
        return ElementTypeError(
            f"operator {op.uid!r} ({op.name}): an element has no timestamp: {what} {row!r:.80}. "
            f"Timestamps are whole milliseconds since 1970, not more than {FURTHEST_TIME} before "
            f"or after; filter such elements out before"
        )


class TimestampsRunner(Runner):
    """Gives elements their timestamps where they are read."""

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        super().__init__(operator)
        self._time = time
        self._timestamps = _Timestamps(operator)

    def process(self, batch: Batch) -> Batch | None:
        if not len(batch):
            return None
        times = self._timestamps.read(batch)
        stamped = self._timestamps.bare(batch)
        stamped.stamps = self._time.stamp(self.operator.uid, times)
        return stamped


class ShuffledTimestampsRunner(OrderedRunner):
    """Gives elements their timestamps behind a shuffle.

    One task gets all of them. If they have watermarks already, they come in the order of these.
    Else every partition of their sources has an order for itself, and a watermark.
    """

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend, time, [None])
        self._timestamps = _Timestamps(operator)
        known = "" not in operator.strategies
        self._by_watermarks = known and time.has_watermarks(operator.strategies)

    def process_rest(self) -> Batch | None:
        parts = self._in_order_of_watermarks() if self._by_watermarks else self._by_partitions()
        stamped = [self._stamped(part, partition) for part, partition in parts]
        return _joined(stamped) if stamped else None

    def _stamped(self, batch: Batch, partition: int) -> Batch:
        uid = self.operator.uid
        times = self._timestamps.read(batch)
        stamped = self._timestamps.bare(batch)
        if partition == UNPLACED:
            stamped.stamps = self.time.stamp_unplaced(uid, times)
        elif partition == ASIDE[0]:
            stamped.stamps = self.time.stamp_fed_back(uid, times)
        else:
            stamped.stamps = self.time.stamp_in_order(uid, times, partition)
        return stamped

    def _in_order_of_watermarks(self) -> list[tuple[Batch, int]]:
        """All elements whose time has come, which is as good as one partition."""
        _, after = self.watermarks()
        whole = self.whole_batches(after)
        if whole is not None:
            return [(batch, WHOLE) for batch, _ in whole]
        elements = list(self.in_order(after))
        if not elements:
            return []
        batch = Batch(self.operator.inputs[0].type, [element for _, _, _, element, *_ in elements])
        known = (MIN_TIME if time is None else time for _, time, *_ in elements)
        times = np.fromiter(known, np.int64, len(elements))
        batch.stamps = Stamps.of(times, np.full(len(times), MIN_TIME, np.int64))
        return [(batch, WHOLE)]

    def _by_partitions(self) -> list[tuple[Batch, int]]:
        """All elements, each partition in its order."""
        batches = [batch for batch in self.take_gathered() if len(batch)]
        if not batches:
            return []
        batch = _joined(batches)
        partitions = self.time.partitions(batch.stamps, self.operator.uid)
        order = self.time.order(batch.stamps, self.time.marks(batch.stamps))
        parts = []
        for number in np.unique(partitions).tolist():
            mine = order[partitions[order] == number]
            part = Batch(batch.type, batch.arrow.take(pa.array(mine)))
            part.stamps = batch.stamps.take(mine)
            parts.append((part, number))
        return parts


def _joined(batches: Sequence[Batch]) -> Batch:
    """One batch of several, all of whose elements have stamps."""
    if len(batches) == 1 and batches[0].stamps is not None:
        return batches[0]
    tables = [pa.Table.from_batches([batch.arrow]) for batch in batches]
    (data,) = pa.concat_tables(tables).combine_chunks().to_batches()
    joined = Batch(batches[0].type, data)
    joined.stamps = Stamps.join([batch.stamps or _none(len(batch)) for batch in batches])
    return joined


def _none(count: int) -> Stamps:
    none = np.full(count, MIN_TIME, np.int64)
    return Stamps.of(none, none)
