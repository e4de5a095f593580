"""Runs windows that are folded element by element, pane by pane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from turnback.core.errors import PlanError, UserFunctionError
from turnback.functions.event_time import MAX_TIME, MIN_TIME
from turnback.plan.plan import Operator
from turnback.state.backend import KeyedStateBackend
from turnback.state.values import CacheFormat
from turnback.state.waiting import WaitingState
from turnback.timing.folded_windows import FoldedWindows, Panes
from turnback.timing.window_operator import WINDOWS, WindowContext, missing_timestamps
from turnback.values.columns import Batch
from turnback.values.row import row_class
from turnback.values.serializer import Serializer
from turnback.worker.element_context import NoTimers
from turnback.worker.event_time import TaskTime
from turnback.worker.message import user_error
from turnback.worker.ordering import Cause, Element, Ordered, OrderedRunner, TimedOutput
from turnback.worker.stamps import Times


class _Clock(NoTimers):
    """What functions of windows know of time.

    Attributes:
        watermark: How far event time has come, from element to element.
    """

    watermark = MIN_TIME

    def current_watermark(self) -> int:
        return self.watermark


class _Pane:
    """What an epoch knows of one pane.

    Attributes:
        start: Its first millisecond.
        last: Its last millisecond.
        first_window: The first window that it is in.
        last_window: The last window that it is in.
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
        self._function: FoldedWindows = operator.function
        self._state: WaitingState = self.states[WINDOWS]
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
            for mark, time, key, row, _, cause in elements:
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
                        self._late(row, time, watermark, cause, out)
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
                    self._fire_again(pane, key, cause, out)
                    due = self._next_due()
        except UserFunctionError:
            raise
        except Exception as e:
            self.backend.key = key
            raise self.failed(e, row) from e

    def _is_partly_late(self, batch: Batch, marks: Times) -> bool:
        """Whether some windows of an element have ended before it, and others may take it."""
        panes = self._function.panes
        lateness = self._function.plan.lateness_ms
        times = self._times(batch)
        pane = panes.of_time(times)
        marks = np.maximum(marks, self._clock.watermark)
        ended = panes.first_window(pane) <= marks
        return bool((ended & (panes.last_window(pane) + lateness > marks)).any())

    def _fold_batches(self, batches: Iterable[Ordered], out: TimedOutput) -> None:
        """Add elements to their panes, pane by pane.

        Each is in time for all its windows or for none, so windows may as well fire later.
        """
        panes = self._function.panes
        lateness = self._function.plan.lateness_ms
        for batch, marks in batches:
            times = self._times(batch)
            rows = batch.rows
            keys = self.key_readers[0](batch)
            lasts = panes.of_time(times)
            late = panes.last_window(lasts) + lateness <= np.maximum(marks, self._clock.watermark)
            if late.any():
                causes = list(self.causes(batch))
                for i in np.flatnonzero(late).tolist():
                    self._late(rows[i], int(times[i]), int(marks[i]), causes[i], out)
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
        panes = self._function.panes
        lateness = self._function.plan.lateness_ms
        before = self._clock.watermark
        after = self._after
        if not (
            panes.any_window(before, after)
            or (lateness and panes.any_window(before - lateness, after - lateness))
        ):
            return
        self._loaded = after
        for last, key, row in self._state.stored_until(after):
            pane = self._panes.get(last) or self._add_pane(last)
            self._function.check_start(self.operator.uid, last, row[0])
            pane.stored[key] = self._cached(row[1])
            pane.removable.add(key)

    def _enter(self, time: int) -> _Pane | None:
        """The pane of an element; None if it is too late for all its windows."""
        panes = self._function.panes
        lateness = self._function.plan.lateness_ms
        last = panes.of_time(time)
        if panes.last_window(last) + lateness <= self._clock.watermark:
            return None
        return self._panes.get(last) or self._add_pane(last)

    def _add_pane(self, last: int) -> _Pane:
        panes = self._function.panes
        lateness = self._function.plan.lateness_ms
        pane = self._panes[last] = _Pane(last, panes, lateness)
        pane.has_more = last > self._loaded and self._state.has_any(last)
        self._schedule(pane, self._clock.watermark)
        return pane

    def _schedule(self, pane: _Pane, after: int) -> None:
        """Note when the next window of a pane fires, or else when the pane is forgotten."""
        panes = self._function.panes
        time = pane.first_window
        if after >= time:
            time = panes.window_before(after) + panes.slide
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
            places = [(key, pane.last) for key in pane.removable]
            self._state.write_many(places, [None] * len(places))
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

    def _fire_again(self, pane: _Pane, key: Any, cause: Cause, out: TimedOutput) -> None:
        """Fire the windows of a late element that have ended before it, and are not forgotten."""
        panes = self._function.panes
        plan = self._function.plan
        watermark = self._clock.watermark
        final = min(pane.last_window, watermark)
        for end in range(pane.first_window, final + 1, panes.slide):
            if end + plan.lateness_ms <= watermark:
                continue
            total = None
            for last in panes.of_window(end):
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
                self._emit({key: total}, end, watermark, cause, out)

    def _emit(
        self, values: dict[Any, Any], end: int, mark: int, cause: Cause | None, out: TimedOutput
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
                origin = out.origin(end, mark, cause or out.end_of_watermark(backend.key))
                contents = [result(value)]
                given = function.plan.apply(backend.declared_key(), context, contents)
                out.collected.add(given, origin)
        except Exception as e:
            raise user_error(e, op.uid, op.name, key=backend.key, window=tuple(window)) from e

    def _late(self, row: Any, time: int, mark: int, cause: Cause, out: TimedOutput) -> None:
        late = self._function.plan.late
        if late is not None:
            out.add([(late, row)], time, mark, cause)


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, which leaves None as it is."""
    return lambda value: None if value is None else convert(value)
