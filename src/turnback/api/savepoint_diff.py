from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING

from turnback.api.savepoint import Savepoint
from turnback.core.errors import IncompatibleStateError
from turnback.snapshot.claims import StateId
from turnback.snapshot.metadata import check_state
from turnback.snapshot.reader import Change, incomparable
from turnback.snapshot.snapshot import Snapshot, StoredRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from turnback.spark.state_frames import Pair


@dataclass(frozen=True)
class StateDiff:
    """How many rows of a state differ.

    A row is a value, a list element or a map entry.

    Attributes:
        uid: The operator.
        state: Name of the state.
        added: Rows that only the second snapshot has.
        removed: Rows that only the first one has.
        changed: Rows with another value.
        unchanged: All others.
        incomparable: Why nothing could be compared; the numbers are 0 then.
    """

    uid: str
    state: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    incomparable: str | None = None

    @property
    def same(self) -> bool:
        """Whether the state is the same in both snapshots."""
        return self.incomparable is None and not (self.added or self.removed or self.changed)


class SavepointDiff:
    """What differs between two snapshots, state by state. Made by `diff`."""

    def __init__(self, old: Snapshot, new: Snapshot, spark: SparkSession) -> None:
        self._old = old
        self._new = new
        self._spark = spark

    def states(self) -> list[StateId]:
        """Uid and name of every state that is in one of the two, or in both."""
        return sorted({state.id for side in (self._old, self._new) for state in side.states})

    def state(self, uid: str, name: str) -> DataFrame:
        """What differs in a state.

        Its columns are ``key``, for lists ``position``, for maps ``map_key``, then ``change``,
        which is added, removed or changed, and the values ``old`` and ``new``, null where there is
        none. A state that only one of the snapshots has is added or removed as a whole. Equal rows
        are left out.

        Rows are found by key and map key. A list element is found by its position, which tells
        when it was added: a list that was replaced by an equal one is removed and added.

        Values are compared as they are stored: two maps in any order, decimals by their value, NaN
        is equal to NaN, 0.0 is not -0.0, and pickled objects are equal if their pickles are.

        Raises:
            StateError: Neither snapshot has such a state.
            IncompatibleStateError: Its types differ.
        """
        name_of_both = f"{self._old.name} and {self._new.name}"
        id = check_state(name_of_both, self.states(), uid, name)
        pair, problem = self._pair(id)
        if problem is not None:
            raise IncompatibleStateError(
                f"state {name!r} of operator {uid!r} cannot be compared: {problem}. Read it from "
                f"both with Savepoint.state() and bring one of them to the type of the other"
            )
        return pair.changes(self._spark)

    def summary(self) -> list[StateDiff]:
        """Count what differs in every state, with one Spark job."""
        from turnback.spark.state_frames import count_changes

        rows = [StateDiff(*id, incomparable=self._pair(id)[1]) for id in self.states()]
        comparable = [i for i, row in enumerate(rows) if row.incomparable is None]
        pairs = [self._pair((rows[i].uid, rows[i].state))[0] for i in comparable]
        for i, found in zip(comparable, count_changes(self._spark, pairs), strict=True):
            rows[i] = replace(
                rows[i],
                added=found[Change.ADDED],
                removed=found[Change.REMOVED],
                changed=found[Change.CHANGED],
                unchanged=found[Change.UNCHANGED],
            )
        return rows

    def __repr__(self) -> str:
        return f"<diff of {self._old.name} and {self._new.name}>"

    def _pair(self, id: StateId) -> tuple[Pair, str | None]:
        """A state on both sides, and why it cannot be compared."""
        from turnback.spark.state_frames import Pair

        old, new = self._rows(self._old, id), self._rows(self._new, id)
        problem = None if old is None or new is None else incomparable(old.schema, new.schema)
        there = old or new
        assert there is not None
        nothing = StoredRows(there.schema, there.storage)
        groups = self._old.max_parallelism, self._new.max_parallelism
        return Pair(old or nothing, new or nothing, *groups), problem

    def _rows(self, side: Snapshot, id: StateId) -> StoredRows | None:
        found = (state.schema for state in side.states if state.id == id)
        return next((side.rows(schema) for schema in found), None)


def diff(
    a: Savepoint | str | PathLike[str],
    b: Savepoint | str | PathLike[str],
    spark: SparkSession | None = None,
) -> SavepointDiff:
    """Compare two snapshots key by key.

    They may be of different jobs and have different numbers of key groups. Spark compares; nothing
    but counts comes to the driver.

    Args:
        a: The first, a `Savepoint` or where it is.
        b: The second.
        spark: The session to work in; by default the first one's.
    """
    old, new = (s if isinstance(s, Savepoint) else Savepoint.load(s, spark) for s in (a, b))
    return SavepointDiff(old._snapshot, new._snapshot, spark or old.spark)
