from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from typing import TYPE_CHECKING

import msgspec

from turnback.api.arguments import path_text
from turnback.checkpoint.manifest import Manifest, OperatorInfo
from turnback.config.configuration import location as absolute
from turnback.errors import ConfigurationError, IncompatibleStateError
from turnback.plan.plan import Plan
from turnback.snapshot.diff import Change, StatePair, state_ids, state_pair
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.find import load_snapshot
from turnback.snapshot.matching import Allowed, Renames
from turnback.snapshot.metadata import SavepointMetadata, StateId
from turnback.snapshot.preflight import CheckReport, check
from turnback.snapshot.snapshot import (
    FileProblem,
    Snapshot,
    StateRow,
    StoredRows,
    state_rows,
    verify_snapshot,
)
from turnback.snapshot.writer import view_names
from turnback.state.files import storage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from turnback.api.environment import StreamExecutionEnvironment


class StateInfo(StateRow, frozen=True, kw_only=True):
    """A state of a snapshot, without its rows; `key_columns`: the stream is keyed by columns."""

    key_columns: bool


class Savepoint:
    """A savepoint or checkpoint, with its states as tables.

    Create one with `load`, which reads only metadata; Spark's tasks read state when a DataFrame is
    used, and it never goes through the driver. A checkpoint can be read as long as its job retains
    it.
    """

    def __init__(self, snapshot: Snapshot, spark: SparkSession | None = None) -> None:
        self._snapshot = snapshot
        self._spark = spark
        self._session: SparkSession | None = None

    @classmethod
    def load(
        cls,
        location: str | PathLike[str],
        spark: SparkSession | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> Savepoint:
        """Read the metadata of a savepoint or checkpoint.

        Args:
            location: The directory of a savepoint, or the ``_metadata.json`` in it; or the file of
                a checkpoint, ``<job directory>/checkpoints/chk-7.json``.
            spark: The session DataFrames belong to; by default the running one, else a new one.
            storage_options: Credentials and endpoints of object stores.

        Raises:
            CheckpointNotFoundError: There is none, or only part of one.
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer version.
            ConfigurationError: The path cannot be used.
        """
        path = absolute(path_text("location", location))
        return cls(load_snapshot(path, dict(storage_options or {})), spark)

    # -- what it says of itself

    @property
    def location(self) -> str:
        """Its location."""
        return self._snapshot.origin.uri

    @property
    def job(self) -> str:
        """The job that took it."""
        return self._snapshot.job

    @property
    def epoch(self) -> int:
        """The last epoch in it."""
        return self._snapshot.epoch

    @property
    def created(self) -> datetime:
        """When it was taken, in UTC."""
        return datetime.fromtimestamp(self._snapshot.created_ms / 1000, UTC)

    @property
    def label(self) -> str | None:
        """The label that the user gave it; checkpoints have none."""
        return None if self._snapshot.metadata is None else self._snapshot.metadata.label

    @property
    def note(self) -> str | None:
        """The note that the user gave it; checkpoints have none."""
        return None if self._snapshot.metadata is None else self._snapshot.metadata.note

    @property
    def drained(self) -> bool:
        """Whether event time has reached its end, see `JobClient.stop_with_savepoint`."""
        return self._snapshot.drained

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self._snapshot.max_parallelism

    @property
    def operators(self) -> tuple[OperatorInfo, ...]:
        """The operators of the program that took it."""
        return self._snapshot.operators

    @property
    def sources(self) -> dict[str, str | None]:
        """The position of each source: Spark's offset as JSON, by uid."""
        return {leaf: p.offset for leaf, p in self._snapshot.sources.items()}

    @property
    def metadata(self) -> SavepointMetadata | Manifest:
        """All information that is available without reading state."""
        return self._snapshot.document

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint, which belongs to its job."""
        return self._snapshot.manifest is not None

    def states(self) -> list[StateInfo]:
        """All states in it, by uid and name."""
        keys = {state.id: state.schema.key for state in self._snapshot.states}
        return [
            StateInfo(**msgspec.structs.asdict(row), key_columns=keys[row.uid, row.name].columns)
            for row in state_rows(self._snapshot)
        ]

    # -- tables

    def state(self, uid: str, name: str) -> DataFrame:
        """A state as a table.

        Its columns are ``key_group``, ``key`` (a struct of f0, f1 and so on for keys of several
        columns), for lists ``position`` from 0 on, for maps ``map_key``, for timers ``time``, for
        windows ``start`` and ``end``, and ``value``; for state with a time to live also
        ``updated_at``, when it was last updated. Integers without bound and times of day are text,
        and a pickled object is its pickle.

        Raises:
            StateError: There is no such state.
        """
        rows = self._rows(uid, name)
        from turnback.spark.state_frames import state_frame

        return state_frame(self.spark, rows, self.max_parallelism)

    def _rows(self, uid: str, name: str) -> StoredRows:
        return self._snapshot.rows(self._snapshot.state(uid, name))

    def views(self) -> dict[str, StateId]:
        """The tables available in `sql`: for each name the uid and the name of the state."""
        return {view: id for id, view in view_names(self._snapshot.state_ids).items()}

    def sql(self, query: str) -> DataFrame:
        """Query all states; each is a table, named after its uid and its name, see `views`.

        The tables exist only in this object's queries, so those of several savepoints do not
        conflict.
        """
        from turnback.spark.state_frames import view_session

        if self._session is None:
            rows = {view: self._rows(*id) for view, id in self.views().items()}
            self._session = view_session(self.spark, rows, self.max_parallelism)
        return self._session.sql(query)

    @property
    def spark(self) -> SparkSession:
        """The session DataFrames belong to."""
        if self._spark is None:
            from turnback.spark.session import spark_session

            self._spark = spark_session()
        return self._spark

    # -- what can be done with it

    def verify(self) -> list[FileProblem]:
        """Check every file against its recorded length and checksum; returns the problems."""
        return verify_snapshot(self._snapshot)

    def check(
        self,
        job: StreamExecutionEnvironment | Plan,
        renames: Renames | None = None,
        allow_non_restored_state: Allowed = False,
    ) -> CheckReport:
        """Report what would happen if a job were started from it; runs nothing.

        Args:
            job: The environment with the job's program, or its plan.
            renames: Operators and states that had another name when it was taken, see
                `execute_async`.
            allow_non_restored_state: State that may be dropped if it matches no operator.
        """
        from turnback.spark.sources import stream_counts

        plan = job if isinstance(job, Plan) else job.plan()
        streams = stream_counts(plan)
        return check(plan, self._snapshot, renames, allow_non_restored_state, streams)

    def delete(self) -> None:
        """Delete the savepoint permanently.

        Raises:
            ConfigurationError: It is a checkpoint, which only its job deletes.
        """
        if self.is_checkpoint:
            raise ConfigurationError(
                f"{self.location} is a checkpoint, and only savepoints can be deleted: job "
                f"{self.job!r} deletes checkpoints that it no longer retains"
            )
        SavepointDirectory(storage_of(self._snapshot.storage)).delete()

    def __repr__(self) -> str:
        kind = "checkpoint" if self.is_checkpoint else "savepoint"
        return f"<{kind} {self.location} of job {self.job!r}, epoch {self.epoch}>"


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
        note: What became of its type or its time to live; None if they are the same.
    """

    uid: str
    state: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    unchanged: int = 0
    incomparable: str | None = None
    note: str | None = None

    @classmethod
    def of(cls, id: StateId, pair: StatePair, counts: Mapping[Change, int]) -> StateDiff:
        """The numbers of a state, as far as it could be compared."""
        return cls(
            *id,
            added=counts.get(Change.ADDED, 0),
            removed=counts.get(Change.REMOVED, 0),
            changed=counts.get(Change.CHANGED, 0),
            unchanged=counts.get(Change.UNCHANGED, 0),
            incomparable=pair.problem,
            note=pair.note or None,
        )

    @property
    def same(self) -> bool:
        """Whether the state has the same rows in both snapshots."""
        return self.incomparable is None and not (self.added or self.removed or self.changed)


class SavepointDiff:
    """What differs between two snapshots, state by state. Made by `diff`."""

    def __init__(self, old: Snapshot, new: Snapshot, spark: SparkSession) -> None:
        self._old = old
        self._new = new
        self._spark = spark

    def states(self) -> list[StateId]:
        """Uid and name of every state that is in one of the two, or in both."""
        return state_ids(self._old, self._new)

    def state(self, uid: str, name: str) -> DataFrame:
        """What differs in a state.

        Its columns are ``key``, for lists ``position``, for maps ``map_key``, then ``change``,
        which is added, removed or changed, and the values ``old`` and ``new``, null where there is
        none. A state that only one of the snapshots has is added or removed as a whole. Equal rows
        are left out.

        Rows are found by key and map key. A list element is found by when it was added: a list that
        was replaced by an equal one is removed and added. Its position is that in the second
        snapshot, or in the first if it was removed. Where a field was added or a number widened,
        older values are brought to the newer type.

        Values are compared as they are stored: two maps in any order, decimals by their value, NaN
        is equal to NaN, 0.0 is not -0.0, and pickled objects are equal if their pickles are.

        Raises:
            StateError: Neither snapshot has such a state.
            IncompatibleStateError: Its types differ.
        """
        from turnback.spark.state_frames import changes_frame

        pair = state_pair(self._old, self._new, uid, name)
        if pair.problem is not None:
            raise IncompatibleStateError(
                f"state {name!r} of operator {uid!r} cannot be compared: {pair.problem}. Read it "
                "from both with Savepoint.state() and convert one of them to the type of the "
                "other"
            )
        return changes_frame(self._spark, pair)

    def summary(self) -> list[StateDiff]:
        """Count what differs in every state, with one Spark job."""
        from turnback.spark.state_frames import count_changes

        pairs = {id: state_pair(self._old, self._new, *id) for id in self.states()}
        comparable = [id for id, pair in pairs.items() if pair.problem is None]
        counts = count_changes(self._spark, [pairs[id] for id in comparable])
        counted = dict(zip(comparable, counts, strict=True))
        return [StateDiff.of(id, pair, counted.get(id, {})) for id, pair in pairs.items()]

    def __repr__(self) -> str:
        return f"<diff of {self._old.name} and {self._new.name}>"


def diff(
    a: Savepoint | str | PathLike[str],
    b: Savepoint | str | PathLike[str],
    spark: SparkSession | None = None,
) -> SavepointDiff:
    """Compare two snapshots key by key.

    They may be of different jobs and have different numbers of key groups. Spark compares them;
    only counts reach the driver.

    Args:
        a: The first, a `Savepoint` or its location.
        b: The second.
        spark: The session to work in; by default the first one's.
    """
    old, new = (s if isinstance(s, Savepoint) else Savepoint.load(s, spark) for s in (a, b))
    return SavepointDiff(old._snapshot, new._snapshot, spark or old.spark)
