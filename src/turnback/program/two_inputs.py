"""Functions over two streams: what users subclass; PyFlink's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Protocol

from turnback.program.functions import Function, ProcessFunction, TimerFunction


class CoMapFunction(Function, ABC):
    """One element of either stream in, one element out; None for none.

    After `key_by` both methods have the same state per key.
    """

    @abstractmethod
    def map1(self, value: Any) -> Any:
        """Return the new element for one of the first stream."""

    @abstractmethod
    def map2(self, value: Any) -> Any:
        """Return the new element for one of the second stream."""


class CoFlatMapFunction(Function, ABC):
    """One element of either stream in, any number out.

    After `key_by` both methods have the same state per key.
    """

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the first stream."""

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the second stream."""


class CoProcessFunction(Function, ABC):
    """One element of either stream in, any number out, with a context.

    After `key_by` both methods have the same state per key; timers need a `KeyedCoProcessFunction`.
    """

    Context = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the first stream, or nothing."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the second stream, or nothing."""


class KeyedCoProcessFunction(TimerFunction, ABC):
    """A function over two keyed streams, with state and timers per key that both share.

    State is obtained or declared as in `KeyedProcessFunction`. With an `on_timer`, elements of both
    streams come in the order of the watermarks at them, those of the first stream before those of
    the second; an element that is ahead of the other stream waits for it. Without, they come as
    they arrive.
    """

    @abstractmethod
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the first stream, or nothing."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for one of the second stream, or nothing."""


class ProcessJoinFunction(Function, ABC):
    """A function over pairs of elements of one key that an interval join has found."""

    class Context(Protocol):
        """What is known about the pair at hand."""

        def get_left_timestamp(self) -> int:
            """The event time of the left element, in milliseconds since 1970."""

        def get_right_timestamp(self) -> int:
            """The event time of the right element."""

        def get_timestamp(self) -> int:
            """The event time of what comes out: the later one of both."""

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterable[Any] | None:
        """Return or yield the new elements for a pair, or nothing.

        Called once for every pair, when the second one of it is processed.
        """


class JoinFunction(Function, ABC):
    """One new element for each pair of elements of one key and one window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any:
        """Return the new element."""


class FlatJoinFunction(Function, ABC):
    """Any number of new elements for each pair of elements of one key and one window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None:
        """Return or yield the new elements, or nothing."""


class CoGroupFunction(Function, ABC):
    """A function over all elements of two streams of one key and one window."""

    @abstractmethod
    def co_group(self, first: list[Any], second: list[Any]) -> Iterable[Any] | None:
        """Return or yield the new elements of a window; one of the lists may be empty."""
