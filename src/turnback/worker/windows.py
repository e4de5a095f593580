"""Windows folded as elements come in, one by one or in whole columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from turnback.errors import PlanError, UserFunctionError
from turnback.functions.event_time import MAX_TIME, MIN_TIME
from turnback.plan.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.state.time_order import TimeOrderedState
from turnback.state.values import CacheFormat
from turnback.timing.folded_windows import (
    Panes,
    PaneWindows,
    WindowAggregation,
    WindowCombination,
)
from turnback.timing.window_operator import WINDOWS, WindowContext, missing_timestamps
from turnback.values.columns import Batch, from_column, to_column
from turnback.values.row import row_class
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import RowTypeInfo, TypeInfo
from turnback.worker.context import NoTimers
from turnback.worker.event_time import LAST, Stamps, TaskTime, Times
from turnback.worker.keys import DistinctKeys, Index, distinct_columns
from turnback.worker.message import user_error
from turnback.worker.ordering import (
    Element,
    Ordered,
    OrderedRunner,
    OutputPosition,
    TimedOutput,
    key_orders,
)
from turnback.worker.runners import BufferingRunner, ChunkedRunner


class _Clock(NoTimers):
    """What functions of windows know of time."""

    watermark = MIN_TIME

    def current_watermark(self) -> int:
        return self.watermark


class _Pane:
    """What an epoch knows of one pane.

    Attributes:
        late_from: The watermark from which on elements fire windows again.
        gone: The watermark at which it is forgotten.
        values: By key, what elements of this epoch were added to.
        stored: By key, what was read from the store, and nothing was added to.
        removable: Keys that the store has an entry of.
        has_more: Whether the store may have something that is not known here.
    """

    def __init__(self, last: int, panes: Panes, lateness: int) -> None:
        self.start = panes.start(last)
        self.last = last
        self.first_window = panes.first_window(last)
        self.last_window = panes.last_window(last)
        self.late_from = self.first_window if lateness else MAX_TIME
        self.gone = self.last_window + lateness
        self.values: dict[Any, Any] = {}
        self.stored: dict[Any, Any] = {}
        self.removable: set[Any] = set()
        self.has_more = False


class FoldedWindowRunner(OrderedRunner):
    """Folds the elements of each pane, and fires windows when their end has come."""

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        super().__init__(operator, backend, time, (None,))
        self._function: PaneWindows = operator.function
        self._grid = self._function.panes
        self._lateness = self._function.plan.lateness_ms
        self._state: TimeOrderedState = self.states[WINDOWS]
        self._row = row_class(self._function.pane_type().names)
        self._format = CacheFormat(Serializer(self._function.folding.type))
        self._to_cache = _unless_none(self._format.to_cache)
        self._clock = _Clock(operator, time)
        self._clear()

    def begin(self) -> None:
        super().begin()
        self._clear()

    def _clear(self) -> None:
        self._panes: dict[int, _Pane] = {}
        self._forgotten: list[_Pane] = []
        self._due: list[tuple[int, int]] = []
        """When something happens next to a pane, which is known by its last millisecond: a heap."""
        self._after = self._loaded = MIN_TIME
        """The watermark at the end of the epoch, and until when all panes were read."""

    def process_rest(self) -> Batch | None:
        self._clock.watermark, self._after = self.watermarks()
        out = self.timed_output()
        self._load()
        batches = self.whole_batches(self._after)
        if batches is None:
            self._fold(self.in_order(self._after), out)
        elif any(self._is_partly_late(batch, marks) for batch, marks in batches):
            self._fold(self.elements(batches), out)
        else:
            self._fold_batches(batches, out)
        self._advance(self._after, out)
        self._store()
        return self.collected(out.collected, out.stamps())

    def _fold(self, elements: Iterable[Element], out: TimedOutput) -> None:
        """Add elements to their panes, one after the other."""
        add = self._adder()
        first = self._function.folding.first
        plain = self._format.plain
        to_cache = self._to_cache
        clock = self._clock
        key = None
        row = None
        pane = None
        watermark = clock.watermark
        due = self._next_due()
        # Of the pane at hand.
        start = 1
        last = 0
        try:
            for mark, time, key, row, _, position in elements:
                if mark >= due:
                    self._advance(mark, out)
                    due = self._next_due()
                    start = 1
                    last = 0
                if mark > watermark:
                    watermark = clock.watermark = mark
                if time is None:
                    raise missing_timestamps(self._function.plan.assigner)
                if not start <= time <= last:
                    pane = self._enter(time)
                    if pane is None:
                        self._late(row, time, watermark, position, out)
                        start = 1
                        last = 0
                        continue
                    due = self._next_due()
                    start = pane.start
                    last = pane.last
                assert pane is not None
                held = pane.values.get(key)
                if held is None:
                    held = self._read(pane, key)
                value = first(row) if held is None else add(row, held)
                pane.values[key] = value if type(value) is plain else to_cache(value)
                if pane.late_from <= watermark:
                    self._fire_again(pane, key, position, out)
                    due = self._next_due()
        except UserFunctionError:
            raise
        except Exception as e:
            self.backend.key = key
            raise self.failed(e, row) from e

    def _is_partly_late(self, batch: Batch, marks: Times) -> bool:
        """Whether some windows of an element have ended before it, and others may take it."""
        times = self._times(batch)
        pane = self._grid.of_time(times)
        marks = np.maximum(marks, self._clock.watermark)
        ended = self._grid.first_window(pane) <= marks
        return bool((ended & (self._grid.last_window(pane) + self._lateness > marks)).any())

    def _fold_batches(self, batches: Iterable[Ordered], out: TimedOutput) -> None:
        """Add elements to their panes, pane by pane.

        Each is in time for all its windows or for none, so windows may as well fire later.
        """
        for batch, marks in batches:
            times = self._times(batch)
            rows = batch.rows
            keys = self.key_readers[0](batch)
            lasts = self._grid.of_time(times)
            gone = self._grid.last_window(lasts) + self._lateness
            late = gone <= np.maximum(marks, self._clock.watermark)
            if late.any():
                positions = list(self.positions(batch))
                for i in np.flatnonzero(late).tolist():
                    self._late(rows[i], int(times[i]), int(marks[i]), positions[i], out)
            order = np.argsort(lasts, kind="stable")
            order = order[~late[order]]
            ordered = lasts[order]
            starts = np.flatnonzero(np.diff(ordered, prepend=MIN_TIME)).tolist()
            for start, end in pairwise([*starts, len(order)]):
                last = int(ordered[start])
                which = order[start:end].tolist()
                pane = self._panes.get(last) or self._add_pane(last)
                if len(which) == len(rows):
                    self._fold_into(pane, keys, rows)
                else:
                    self._fold_into(pane, [keys[i] for i in which], [rows[i] for i in which])

    def _fold_into(self, pane: _Pane, keys: Iterable[Any], rows: Iterable[Any]) -> None:
        add = self._adder()
        first = self._function.folding.first
        plain = self._format.plain
        to_cache = self._to_cache
        values = pane.values
        get = pane.values.get
        key = None
        row = None
        try:
            for key, row in zip(keys, rows, strict=True):
                held = get(key)
                if held is None:
                    held = self._read(pane, key)
                value = first(row) if held is None else add(row, held)
                values[key] = value if type(value) is plain else to_cache(value)
        except Exception as e:
            self.backend.key = key
            raise self.failed(e, row) from e

    def _times(self, batch: Batch) -> Times:
        times: Times = batch.stamps.time
        if (times == MIN_TIME).any():
            op = self.operator
            missing = missing_timestamps(self._function.plan.assigner)
            raise PlanError(f"operator {op.uid!r} ({op.name}): {missing}")
        return times

    def _adder(self) -> Callable[[Any, Any], Any]:
        """A function that adds an element to what is held."""
        add = self._function.folding.adder()
        from_cache = self._format.from_cache
        return add if from_cache is None else lambda row, held: add(row, from_cache(held))

    def _next_due(self) -> int:
        return self._due[0][0] if self._due else MAX_TIME

    # -- panes

    def _load(self) -> None:
        """Read the panes of all windows that end in this epoch, if there are any."""
        before = self._clock.watermark
        after = self._after
        late = self._lateness
        are_gone = late and self._grid.any_window(before - late, after - late)
        if not are_gone and not self._grid.any_window(before, after):
            return
        self._loaded = after
        for last, key, row in self._state.stored_until(after):
            pane = self._panes.get(last) or self._add_pane(last)
            self._function.check_start(self.operator.uid, last, row[0])
            pane.stored[key] = self._cached(row[1])
            pane.removable.add(key)

    def _enter(self, time: int) -> _Pane | None:
        """The pane of an element; None if it is too late for all its windows."""
        last = self._grid.of_time(time)
        if self._grid.last_window(last) + self._lateness <= self._clock.watermark:
            return None
        return self._panes.get(last) or self._add_pane(last)

    def _add_pane(self, last: int) -> _Pane:
        pane = self._panes[last] = _Pane(last, self._grid, self._lateness)
        pane.has_more = last > self._loaded and self._state.has_any(last)
        self._schedule(pane, self._clock.watermark)
        return pane

    def _schedule(self, pane: _Pane, after: int) -> None:
        """Note when the next window of a pane fires, or else when the pane is forgotten."""
        time = pane.first_window
        if after >= time:
            time = self._grid.window_before(after) + self._grid.slide
        time = time if time <= pane.last_window else pane.gone
        if time <= self._after:
            heappush(self._due, (time, pane.last))

    def _read(self, pane: _Pane, key: Any) -> Any:
        """What a pane has of a key, on which no element of this epoch has come so far."""
        if key in pane.values:
            return None  # it has nothing any more: a function has returned None
        held = pane.stored.pop(key, None)
        if held is not None or not pane.has_more:
            return held
        self.backend.key = key
        row = self._state.get(pane.last)
        if row is None:
            return None
        self._function.check_start(self.operator.uid, pane.last, row[0])
        pane.removable.add(key)
        return self._cached(row[1])

    def _store(self) -> None:
        row = self._row
        for pane in self._forgotten:
            slots = [(key, pane.last) for key in pane.removable]
            self._state.write_many(slots, [None] * len(slots))
        for last, pane in self._panes.items():
            rows = [row(pane.start, self._value(held)) for held in pane.values.values()]
            self._state.write_many([(key, last) for key in pane.values], rows)

    def _cached(self, value: Any) -> Any:
        return value if type(value) is self._format.plain else self._to_cache(value)

    def _value(self, held: Any) -> Any:
        """A value that may be changed."""
        from_cache = self._format.from_cache
        return held if from_cache is None or held is None else from_cache(held)

    # -- firing

    def _advance(self, upto: int, out: TimedOutput) -> None:
        """Fire the windows that have ended, one after the other, and forget what is gone."""
        due = self._due
        clock = self._clock
        while due and due[0][0] <= upto:
            time, last = heappop(due)
            pane = self._panes[last]
            if clock.watermark < time <= pane.last_window:
                clock.watermark = time
                self._fire(time, out)
            if pane.gone <= time:
                self._forgotten.append(self._panes.pop(last))
            else:
                self._schedule(pane, time)

    def _fire(self, end: int, out: TimedOutput) -> None:
        lasts = self._function.panes.of_window(end)
        panes = [self._panes[last] for last in lasts if last in self._panes]
        totals: dict[Any, Any] = {}
        for pane in panes:
            for key, held in (pane.stored | pane.values).items():
                if held is None:
                    continue
                value = self._value(held)
                totals[key] = self._merge(key, totals[key], value) if key in totals else value
        encoded = [location[1] for location in self.backend.locate_all(totals)]
        in_order = [key for _, key in sorted(zip(encoded, totals, strict=True))]
        self._emit({key: totals[key] for key in in_order}, end, end - 1, None, out)

    def _merge(self, key: Any, one: Any, other: Any) -> Any:
        """What two panes of a key have together, as it would come back from the store."""
        try:
            return self._value(self._cached(self._function.folding.merge(one, other)))
        except Exception as e:
            raise user_error(e, self.operator.uid, self.operator.name, key=key) from e

    def _fire_again(
        self, pane: _Pane, key: Any, position: OutputPosition, out: TimedOutput
    ) -> None:
        """Fire the windows of a late element that have ended before it, and are not forgotten."""
        plan = self._function.plan
        watermark = self._clock.watermark
        final = min(pane.last_window, watermark)
        for end in range(pane.first_window, final + 1, self._grid.slide):
            if end + plan.lateness_ms <= watermark:
                continue
            total = None
            for last in self._grid.of_window(end):
                each = self._panes.get(last) or self._add_pane(last)
                held = each.values.get(key)
                if held is None:
                    held = each.stored.get(key) or self._read(each, key)
                    if held is not None:
                        each.stored[key] = held
                if held is not None:
                    value = self._value(held)
                    total = value if total is None else self._merge(key, total, value)
            if total is not None:
                self._emit({key: total}, end, watermark, position, out)

    def _emit(
        self,
        values: dict[Any, Any],
        end: int,
        mark: int,
        position: OutputPosition | None,
        out: TimedOutput,
    ) -> None:
        """Give out a window of some keys, because of an element or of its end."""
        function = self._function
        op = self.operator
        backend = self.backend
        window = function.panes.window(end)
        result = function.folding.result
        context = WindowContext(window, self._clock, function.states)
        try:
            for backend.key, value in values.items():
                index = out.number_for(end, mark, position or out.end_of_watermark(backend.key))
                contents = [result(value)]
                given = function.plan.apply(backend.declared_key(), context, contents)
                out.collected.add(given, index)
        except Exception as e:
            raise user_error(e, op.uid, op.name, key=backend.key, window=tuple(window)) from e

    def _late(
        self, row: Any, time: int, mark: int, position: OutputPosition, out: TimedOutput
    ) -> None:
        late = self._function.plan.late
        if late is not None:
            out.add([(late, row)], time, mark, position)


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, which leaves None as it is."""
    return lambda value: None if value is None else convert(value)


class WindowCombineRunner(ChunkedRunner):
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
        starts = pa.array(function.panes.start(panes))
        out = self.call(len(batch), function.combine, data, owners, groups, starts)
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
        self._numbers = {key: i for i, key in enumerate(self.keys)}

    def number(self, key: Any) -> int:
        number = self._numbers.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number

    def column(self) -> pa.Array:
        added = to_column(self.keys[len(self._column) :], self._type)
        return pa.concat_arrays([self._column.cast(added.type), added])


class WindowAggregationRunner(BufferingRunner):
    """The part of an aggregation in windows that comes after the shuffle.

    It works at the end of an epoch, when barriers have told how far event time had come at each
    part of the sources.
    """

    method = "merge"

    def __init__(self, operator: Operator, backend: KeyedStateBackend, time: TaskTime) -> None:
        assert operator.key is not None
        super().__init__(operator, operator.key)
        self._function: WindowAggregation = operator.function
        self._state: TimeOrderedState = backend.register(self._function.state())
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
        numbers = np.array([keys.number(key) for _, key, _ in entries], np.intp)
        panes = np.array([pane for pane, _, _ in entries], np.int64)
        return self._from_state(numbers, panes, [value for _, _, value in entries], before)

    def _read_of(self, rows: _Rows, before: int, keys: _Keys) -> _Rows:
        times = np.unique(rows.pane)
        stored = [time for time in times.tolist() if self._state.has_any(time)]
        rows = rows.take(np.flatnonzero(np.isin(rows.pane, stored)))
        if not len(rows.key):
            return self._from_state(rows.key, rows.pane, [], before)
        (owners, panes), _ = distinct_rows(rows.key, rows.pane)
        values = self._state.read_many(self._slots(keys, owners, panes))
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

        Of the rows so many are `known`, which were read; those behind them are new.
        """
        function = self._function
        (owners, panes), index = distinct_rows(rows.key, rows.pane)
        is_open = function.panes.last_window(panes) > after
        has_new, is_stored = np.zeros((2, len(panes)), np.bool_)
        has_new[index[known:]] = True
        is_stored[index[:known]] = True
        gone = is_stored & ~is_open
        self._state.write_many(
            self._slots(keys, owners[gone], panes[gone]), [None] * int(gone.sum())
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
        slots = self._slots(keys, owners[changed], panes[changed])
        self._state.write_many(slots, from_column(values, kind))

    def _slots(self, keys: _Keys, owners: Index, panes: Times) -> list[tuple[Any, int]]:
        every = keys.keys
        return [(every[i], pane) for i, pane in zip(owners.tolist(), panes.tolist(), strict=True)]
