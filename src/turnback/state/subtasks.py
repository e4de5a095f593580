"""The state of an operator's subtasks: rows like those of keyed state, with the subtask as key.

A subtask has its rows in the first key group of its own, so they are in its own state files, and go
where its key groups go. `redistribute` gives them to other subtasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from turnback.errors import StateError
from turnback.functions.descriptors import StateDescriptor
from turnback.state.backend import Handle, KeyedStateBackend, sub_codec
from turnback.state.delta import DeltaBuilder
from turnback.state.key_context import KeyLocation
from turnback.state.list_and_map import POSITION, ListState, MapState
from turnback.state.schema import (
    BROADCAST,
    GROUPS,
    OPERATOR_KINDS,
    SPLIT_LIST,
    UNION_LIST,
    KeySchema,
    StateSchema,
    component,
)
from turnback.state.stores import LocalStore
from turnback.values.keys import KeyCodec, group_range
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import Types

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

SUBTASKS = KeyCodec((Types.LONG(),), by_columns=False)
"""Encodes the numbers of subtasks, as keys."""
SUBTASK_KEY = KeySchema.of(SUBTASKS)
_ROW = ("key", "sub", "value")


class OperatorListState(ListState[T]):
    """The list of a subtask, stored per element."""

    __slots__ = ()

    def drain(self, builder: DeltaBuilder) -> None:
        """Write what has changed: functions set the whole list at the end of every epoch."""
        key = self._context.key
        if key in self._cleared:
            suffix, _ = self._context.current()
            before = [data for _, data in self._context.scan(self._prefix + suffix)]
            after = self._added.get(key, [])
            if self._all_to_bytes([key] * len(after), after)[: len(before)] == before:
                # Nothing of it is gone, so that only the rest is new.
                del self._cleared[key]
                self._added = {key: after[len(before) :]}
        super().drain(builder)


class BroadcastState(MapState[K, V]):
    """A map of which all subtasks have the same entries."""

    __slots__ = ()


class OperatorStateBackend(KeyedStateBackend):
    """The state of one subtask of an operator; the subtask is the key of all of it."""

    __slots__ = ("_subtask", "parallelism")

    def __init__(self, uid: str, parallelism: int, max_parallelism: int) -> None:
        super().__init__(uid, SUBTASKS, max_parallelism)
        self.parallelism = parallelism
        self._subtask = 0

    def run_as(self, subtask: int) -> None:
        """Choose the subtask whose state it is; called before an epoch begins."""
        self._subtask = subtask

    def use(self, store: LocalStore, epoch: int, now_ms: int) -> None:
        super().use(store, epoch, now_ms)
        self.key = self._subtask

    def locate(self, key: Any) -> KeyLocation:
        group, encoded = location(key, self.parallelism, self.max_parallelism)
        where = self.locations[key] = group, encoded, GROUPS[group] + component(encoded), 0
        return where

    def _handle(self, descriptor: StateDescriptor, schema: StateSchema) -> Handle:
        descriptor.check()
        serializer = Serializer(descriptor.type)
        if descriptor.kind in (SPLIT_LIST, UNION_LIST):
            return OperatorListState(self, schema, serializer)
        assert descriptor.kind == BROADCAST
        assert descriptor.key_type is not None
        return BroadcastState(self, schema, serializer, sub_codec(descriptor.key_type))


class NoStore(LocalStore):
    """A store with nothing in it, for operators that are only asked which states they have."""

    name = "nothing"
    remedy = ""

    def __init__(self) -> None:
        self.broken = False
        self._get = lambda key: None

    def scan(self, prefix: bytes, start: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def write(self, changes: Any, marker: bytes) -> None:
        raise StateError("nothing can be written to a store that holds nothing")

    def close(self) -> None:
        """Nothing is open."""


def location(subtask: int, parallelism: int, max_parallelism: int) -> tuple[int, bytes]:
    """The key group and the key under which a subtask has its rows."""
    return group_range(subtask, parallelism, max_parallelism)[0], SUBTASKS.encode(subtask)


def without_copies(schema: StateSchema, rows: pa.Table) -> pa.Table:
    """Rows of a state; of broadcast state, which all subtasks have stored, those of the first."""
    if schema.kind != BROADCAST:
        return rows
    first = pa.scalar(SUBTASKS.encode(0), rows["key"].type)
    return rows.filter(pc.equal(rows["key"], first))


def is_redistributed(kind: str, before: int, now: int) -> bool:
    """Whether a start gives the subtasks of an operator other rows than they had stored.

    Lists that are split and broadcast state stay as they are if the parallelism does, as in Flink.
    """
    return kind in OPERATOR_KINDS and (before != now or (kind == UNION_LIST and now > 1))


def redistribute(
    kind: str, rows: Iterable[pa.Table], before: int, subtask: int, parallelism: int, epoch: int
) -> tuple[list[bytes], list[bytes]]:
    """The positions or map keys, and the values, that a subtask gets of the rows of all subtasks.

    Lists are split as Flink does: each subtask gets as many neighbouring elements as the others,
    and the first ones one more each if some are left. `before` is how many subtasks there were.
    """
    entries = [
        (SUBTASKS.decode(key), sub, value)
        for table in rows
        for key, sub, value in zip(*(table[c].to_pylist() for c in _ROW), strict=True)
    ]
    entries.sort()
    if kind == SPLIT_LIST and before == parallelism:
        entries = [entry for entry in entries if entry[0] == subtask]
    elif kind == SPLIT_LIST:
        share, left = divmod(len(entries), parallelism)
        first = subtask * share + min(subtask, left)
        entries = entries[first : first + share + (subtask < left)]
    values = [value for _, _, value in entries]
    if kind == BROADCAST:
        return [sub for _, sub, _ in entries], values
    return [POSITION.pack(epoch, i) for i in range(len(values))], values
