"""Runs declared aggregates in windows, on columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.core.errors import PlanError
from turnback.functions.event_time import MIN_TIME
from turnback.plan.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.state.waiting import WaitingState
from turnback.timing.window_aggregation import Times, WindowAggregation, WindowCombination
from turnback.timing.window_operator import missing_timestamps
from turnback.values.columns import Batch, from_column, to_column
from turnback.values.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.batch_runners import GatheringRunner, PortionRunner
from turnback.worker.event_time import TaskTime
from turnback.worker.keys import DistinctKeys, Index, distinct_columns
from turnback.worker.ordering import key_orders
from turnback.worker.stamps import LAST, Stamps


class WindowCombineRunner(PortionRunner):
    """The part of an aggregation in windows that comes before the shuffle."""

    method = "combine"

    def __init__(self, operator: Operator, time: TaskTime) -> None:
        self._function: WindowCombination = operator.function
        super().__init__(operator, self._function.key)
        self._time = time
        (self._strategy,) = operator.strategies

    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        function = self._function
        stamps = batch.stamps
        if stamps is None or (stamps.time == MIN_TIME).any():
            raise PlanError(
                f"operator {self.operator.uid!r}: {missing_timestamps(function.assigner)}"
            )
        panes = function.panes.of_time(stamps.time)
        over = function.over(panes, self._time.own_watermarks(stamps, self._strategy))
        data = batch.arrow
        index = keys.index
        segments = stamps.segment
        rows = stamps.row
        in_time = over < function.panes.last_window(panes)
        if not in_time.all():
            data = data.filter(pa.array(in_time))
            index, panes, over, segments, rows = (
                each[in_time] for each in (index, panes, over, segments, rows)
            )
            if not len(index):
                return None
        (which, panes, over, segments), groups = distinct_rows(index, panes, over, segments)
        owners = keys.column.take(pa.array(which))
        out = self.call(len(batch), function.combine_panes, data, owners, panes, groups)
        if out is not None:
            marks = self._time.own_marks(over, segments, self._strategy)
            first = np.full(len(panes), LAST, np.int64)
            np.minimum.at(first, groups, rows)
            out.stamps = Stamps(panes, marks, segments, first)
        return out


def distinct_rows(*columns: Times) -> tuple[tuple[Times, ...], Index]:
    """The distinct rows of some columns of numbers, as columns, and which of them each row is."""
    varying = [column for column in columns if (column != column[0]).any()]
    distinct, index = distinct_columns([pa.array(each) for each in varying or columns[:1]])
    rest = iter(distinct)
    count = len(distinct[0])
    found = tuple(
        next(rest).to_numpy()
        if any(column is each for each in varying or columns[:1])
        else np.full(count, column[0], np.int64)
        for column in columns
    )
    return found, index


@dataclass(frozen=True)
class _Rows:
    """Accumulators of panes.

    Attributes:
        key: Where the key of each is among all keys.
        pane: The last millisecond of its pane.
        over: The watermark up to which it does not count.
        accumulators: A column for each aggregate.
    """

    key: Index
    pane: Times
    over: Times
    accumulators: list[pa.Array]

    def take(self, which: Any) -> _Rows:
        columns = [column.take(pa.array(which)) for column in self.accumulators]
        return _Rows(self.key[which], self.pane[which], self.over[which], columns)

    @staticmethod
    def join(parts: Sequence[_Rows]) -> _Rows:
        return _Rows(
            np.concatenate([part.key for part in parts]),
            np.concatenate([part.pane for part in parts]),
            np.concatenate([part.over for part in parts]),
            [
                pa.concat_arrays(columns)
                for columns in zip(*(part.accumulators for part in parts), strict=True)
            ],
        )


class _Keys:
    """All keys of an epoch: those of new rows, and after them those that only the store has."""

    def __init__(self, new: DistinctKeys | None, type: TypeInfo) -> None:
        self.keys: list[Any] = [] if new is None else list(new.keys)
        self._type = type
        self._column = to_column([], type) if new is None else new.column
        self._positions = {key: i for i, key in enumerate(self.keys)}

    def place(self, key: Any) -> int:
        place = self._positions.setdefault(key, len(self.keys))
        if place == len(self.keys):
            self.keys.append(key)
        return place

    def column(self) -> pa.Array:
        added = to_column(self.keys[len(self._column) :], self._type)
        return pa.concat_arrays([self._column.cast(added.type), added])


class WindowAggregationRunner(GatheringRunner):
    """The part of an aggregation in windows that comes after the shuffle.

    It works at the end of an epoch, when barriers have told how far event time had come at each
    part of the sources.
    """

    method = "merge"

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        assert operator.key is not None
        super().__init__(operator, operator.key)
        self._function: WindowAggregation = operator.function
        self._state: WaitingState = backend.register(self._function.state())
        self._backend = backend
        self._time = time
        types = operator.key.types
        columns = operator.key.columns
        self._key_type = types[0] if len(types) == 1 else RowTypeInfo(columns, types)

    def process_rest(self) -> Batch | None:
        panes = self._function.panes
        strategies = self.operator.strategies
        uid = self.operator.uid
        before = self._time.watermark_before(strategies, uid)
        after = self._time.watermark(strategies, uid)
        batch = self.gathered()
        has_ends = panes.any_window(before, after)
        if batch is None and not has_ends:
            return None
        distinct = None if batch is None else self.keys(batch)
        keys = _Keys(distinct, self._key_type)
        rows = [self._read_until(after, before, keys)] if has_ends else []
        if batch is not None and distinct is not None:
            new = self._new_rows(batch, distinct, before)
            # What was read until now need not be read again.
            unread = new.pane > after if has_ends else np.ones(len(new.pane), np.bool_)
            rows += [self._read_of(new.take(np.flatnonzero(unread)), before, keys), new]
        known = sum(len(part.key) for part in (rows if batch is None else rows[:-1]))
        every = _Rows.join(rows)
        if not len(every.key):
            return None
        out = self._fire(keys, every, after)
        self._store(keys, every, known, after)
        return out

    def _new_rows(self, batch: Batch, keys: DistinctKeys, before: int) -> _Rows:
        """What has come, without what is too late for all windows."""
        panes = self._function.panes
        data = batch.arrow
        count = len(self._function.aggregates)
        pane = data.column(data.num_columns - count - 1).to_numpy() + (panes.width - 1)
        over = np.maximum(self._time.marks(batch.stamps), before)
        rows = _Rows(keys.index, pane, over, data.columns[data.num_columns - count :])
        in_time = over < panes.last_window(pane)
        # Lists, and what comes first or last, have the order of the source.
        order = self._time.order(batch.stamps, np.zeros_like(over))
        if in_time.all() and (order[:-1] < order[1:]).all():
            return rows
        return rows.take(order[in_time[order]])

    def _read_until(self, after: int, before: int, keys: _Keys) -> _Rows:
        """All panes in the store up to a watermark."""
        entries = self._state.stored_until(after)
        places = np.array([keys.place(key) for _, key, _ in entries], np.intp)
        panes = np.array([pane for pane, _, _ in entries], np.int64)
        return self._from_state(places, panes, [value for _, _, value in entries], before)

    def _read_of(self, rows: _Rows, before: int, keys: _Keys) -> _Rows:
        """What the store has of the keys and panes of some rows."""
        times = np.unique(rows.pane)
        stored = [time for time in times.tolist() if self._state.has_any(time)]
        rows = rows.take(np.flatnonzero(np.isin(rows.pane, stored)))
        if not len(rows.key):
            return self._from_state(rows.key, rows.pane, [], before)
        (owners, panes), _ = distinct_rows(rows.key, rows.pane)
        values = self._state.read_many(self._places(keys, owners, panes))
        found = np.array([value is not None for value in values], np.bool_)
        present = [value for value in values if value is not None]
        return self._from_state(owners[found], panes[found], present, before)

    def _from_state(self, keys: Index, panes: Times, values: list[Any], before: int) -> _Rows:
        column = to_column(values, self._function.pane_type())
        starts, folded = column.flatten()
        wrong = np.flatnonzero(starts.to_numpy() != self._function.panes.start(panes))
        for i in wrong[:1].tolist():
            self._function.check_start(self.operator.uid, int(panes[i]), starts[i].as_py())
        return _Rows(keys, panes, np.full(len(panes), before, np.int64), folded.flatten())

    def _fire(self, keys: _Keys, rows: _Rows, after: int) -> Batch | None:
        """The results of all windows that have ended by now."""
        panes = self._function.panes
        function = self._function
        if after == MIN_TIME:
            return None
        first = panes.first_window(rows.pane)
        last = panes.last_window(rows.pane)
        following = panes.window_before(np.maximum(rows.over, first)) + panes.slide
        first = np.where(rows.over >= first, following, first)
        last = np.minimum(last, panes.window_before(after))
        # Each row counts in so many of them.
        counts = np.maximum((last - first) // panes.slide + 1, 0)
        which = np.repeat(np.arange(len(counts)), counts)
        if not len(which):
            return None
        numbers = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        windows = first[which] + numbers * panes.slide
        (owners, ends), index = distinct_rows(rows.key[which], windows)
        order = np.argsort(ends, kind="stable")
        owners = owners[order]
        ends = ends[order]
        index = np.argsort(order)[index]

        def results(columns: list[pa.Array]) -> pa.RecordBatch:
            owned = keys.column().take(pa.array(owners))
            merged = function.merge(columns, index, owned)
            return function.results(owned, ends, merged)

        out = self.call(len(which), results, rows.take(which).accumulators)
        if out is not None:
            place = self._time.last_place(self.operator.strategies)
            last = self._time.given(place, self.operator.id)
            orders = np.array(key_orders(self._backend, keys.keys), np.int64)
            segments = np.full(len(ends), last, np.int64)
            out.stamps = Stamps(ends, ends - 1, segments, orders[owners])
        return out

    def _store(self, keys: _Keys, rows: _Rows, known: int, after: int) -> None:
        """Write panes that something was added to, and forget those whose last window has ended.

        Args:
            keys: All keys.
            rows: Those that were read, and then those that are new.
            known: How many of them were read.
            after: The watermark by now.
        """
        function = self._function
        (owners, panes), index = distinct_rows(rows.key, rows.pane)
        is_open = function.panes.last_window(panes) > after
        has_new, is_stored = np.zeros((2, len(panes)), np.bool_)
        has_new[index[known:]] = True
        is_stored[index[:known]] = True
        gone = is_stored & ~is_open
        self._state.write_many(
            self._places(keys, owners[gone], panes[gone]), [None] * int(gone.sum())
        )
        changed = has_new & is_open
        count = int(changed.sum())
        if not count:
            return
        chosen = np.flatnonzero(changed[index])
        groups = (np.cumsum(changed) - 1)[index[chosen]]
        columns = rows.take(chosen).accumulators
        owned = keys.column().take(pa.array(owners[changed]))
        merged = self.attempt(len(chosen), function.merge, columns, groups, owned)
        folded = pa.StructArray.from_arrays(merged, fields=list(function.accumulators.arrow()))
        starts = pa.array(function.panes.start(panes[changed]))
        kind = function.pane_type()
        values = pa.StructArray.from_arrays([starts, folded], fields=list(kind.arrow()))
        places = self._places(keys, owners[changed], panes[changed])
        self._state.write_many(places, from_column(values, kind))

    def _places(self, keys: _Keys, owners: Index, panes: Times) -> list[tuple[Any, int]]:
        every = keys.keys
        return [(every[i], pane) for i, pane in zip(owners.tolist(), panes.tolist(), strict=True)]
