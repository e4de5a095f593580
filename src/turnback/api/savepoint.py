from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from typing import TYPE_CHECKING

from turnback.api.arguments import path_text
from turnback.checkpoint.manifest import Manifest, OperatorInfo
from turnback.config.configuration import location as absolute
from turnback.core.errors import ConfigurationError, UnsupportedTypeError
from turnback.program.plan import Plan
from turnback.snapshot.claims import Allowed, Renames, StateId, StoredState
from turnback.snapshot.directory import FileProblem, SavepointDirectory
from turnback.snapshot.draft import view_names
from turnback.snapshot.find import load_savepoint, locate, split_slot_path
from turnback.snapshot.metadata import SavepointMetadata, check_state
from turnback.snapshot.preflight import CheckReport, check
from turnback.snapshot.snapshot import Snapshot, StoredRows, verify
from turnback.state.files import StorageRef, storage_of
from turnback.types.typeinfo import type_from_descriptor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from turnback.api.environment import StreamExecutionEnvironment


@dataclass(frozen=True)
class StateInfo:
    """A state of a snapshot, without its rows.

    Attributes:
        uid: The operator.
        name: Name of the state.
        kind: ``value``, ``list``, ``map``, ``reducing`` or ``aggregating``.
        key_type: Type of the keys; several, separated by commas, for keys of several columns.
        key_columns: The stream is keyed by columns; else by a function.
        map_key_type: Type of a map's keys, else None.
        value_type: Type of values, list elements or accumulators.
        rows: Values, list elements or map entries; None where nobody has counted them, as in
            checkpoints.
        bytes: Size of its files; None where files hold several states.
    """

    uid: str
    name: str
    kind: str
    key_type: str
    key_columns: bool
    map_key_type: str | None
    value_type: str
    rows: int | None
    bytes: int | None


class Savepoint:
    """A savepoint or checkpoint, its states as tables.

    Get one with `load`. Metadata is read then; state is read by Spark's tasks when a DataFrame is
    used, and never goes through the driver. A checkpoint can be read as long as its job keeps it.
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
        """Read what a savepoint or checkpoint says of itself.

        Args:
            location: The directory of a savepoint, or the ``_metadata.json`` in it; or the file of
                a checkpoint, ``<job directory>/checkpoints/chk-7.json``.
            spark: The session DataFrames belong to; by default the running one, else a new one.
            storage_options: Credentials and endpoints of object stores.

        Raises:
            CheckpointNotFoundError: There is none, or only a part of one.
            CorruptFileError: It is damaged.
            FormatVersionError: It was written by a newer version.
            ConfigurationError: The path cannot be used.
        """
        text = absolute(path_text("location", location))
        options = dict(storage_options or {})
        slot = split_slot_path(text)
        if slot is None:
            return cls(load_savepoint(text, options), spark)
        return cls(locate(slot[1], StorageRef(slot[0], options)), spark)

    # -- what it says of itself

    @property
    def location(self) -> str:
        """Where it is."""
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
        """What the user calls it; checkpoints have no label."""
        return None if self._snapshot.metadata is None else self._snapshot.metadata.label

    @property
    def note(self) -> str | None:
        """What the user says of it; checkpoints have no note."""
        return None if self._snapshot.metadata is None else self._snapshot.metadata.note

    @property
    def drained(self) -> bool:
        """Whether event time has come to its end in it, see `JobClient.stop_with_savepoint`."""
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
        """Where each source goes on: Spark's offset as JSON, by uid."""
        return {leaf: p.offset for leaf, p in self._snapshot.sources.items()}

    @property
    def metadata(self) -> SavepointMetadata | Manifest:
        """All that is known without reading state."""
        found = self._snapshot.metadata or self._snapshot.manifest
        assert found is not None
        return found

    @property
    def is_checkpoint(self) -> bool:
        """Whether it is a checkpoint, which belongs to its job."""
        return self._snapshot.manifest is not None

    def states(self) -> list[StateInfo]:
        """All states in it, by uid and name."""
        return [_info(state) for state in sorted(self._snapshot.states, key=lambda s: s.id)]

    # -- tables

    def state(self, uid: str, name: str) -> DataFrame:
        """A state as a table.

        Its columns are ``key_group``, ``key`` (a struct of f0, f1 and so on for keys of several
        columns), for lists ``position``, for maps ``map_key``, and ``value``. Integers without
        bound and times of day are text, and a pickled object is its pickle.

        Raises:
            StateError: There is no such state.
        """
        id = check_state(self.location, self._ids(), uid, name)
        from turnback.spark.state_frames import state_frame

        return state_frame(self.spark, self._rows(id), self.max_parallelism)

    def views(self) -> dict[str, StateId]:
        """The tables that `sql` knows: uid and name of the state behind each name."""
        return {view: id for id, view in view_names(self._ids()).items()}

    def sql(self, query: str) -> DataFrame:
        """Query all states; each is a table, named after its uid and its name, see `views`.

        The tables are known to this object's queries only, so those of several savepoints do not
        get into each other's way.
        """
        from turnback.spark.state_frames import view_session

        if self._session is None:
            views = {view: self._rows(id) for view, id in self.views().items()}
            self._session = view_session(self.spark, views, self.max_parallelism)
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
        """Read every file and compare it with what was recorded; returns what is wrong."""
        storage = storage_of(self._snapshot.storage)
        if self._snapshot.manifest is None:
            return SavepointDirectory(storage).verify()
        problems = verify(storage, self._snapshot.manifest)
        return [FileProblem(problem.path, problem.reason) for problem in problems]

    def check(
        self,
        job: StreamExecutionEnvironment | Plan,
        renames: Renames | None = None,
        allow_non_restored_state: Allowed = False,
    ) -> CheckReport:
        """Tell what would happen if a job were started from it; runs nothing.

        Args:
            job: The environment with the job's program, or its plan.
            renames: What had another name when it was taken, see `execute_async`.
            allow_non_restored_state: What may be dropped if nothing claims it.
        """
        from turnback.spark.sources import stream_counts

        plan = job if isinstance(job, Plan) else job.plan()
        info, streams = self._snapshot.info(), stream_counts(plan)
        return check(plan, info, renames, allow_non_restored_state, streams)

    def delete(self) -> None:
        """Delete the savepoint for good.

        Raises:
            ConfigurationError: It is a checkpoint: its job keeps and deletes it.
        """
        if self.is_checkpoint:
            raise ConfigurationError(
                f"{self.location} is a checkpoint: job {self.job!r} itself deletes those it does "
                f"not retain any more. Only savepoints can be deleted"
            )
        SavepointDirectory(storage_of(self._snapshot.storage)).delete()

    def __repr__(self) -> str:
        kind = "checkpoint" if self.is_checkpoint else "savepoint"
        return f"<{kind} {self.location} of job {self.job!r}, epoch {self.epoch}>"

    def _ids(self) -> list[StateId]:
        return [state.id for state in self._snapshot.states]

    def _rows(self, id: StateId) -> StoredRows:
        (schema,) = (state.schema for state in self._snapshot.states if state.id == id)
        return self._snapshot.rows(schema)


def _info(state: StoredState) -> StateInfo:
    schema = state.schema
    return StateInfo(
        uid=schema.uid,
        name=schema.name,
        kind=schema.kind,
        key_type=", ".join(map(_told, schema.key.types)),
        key_columns=schema.key.columns,
        map_key_type=None if schema.sub is None else _told(schema.sub),
        value_type=_told(schema.value),
        rows=state.rows,
        bytes=state.length,
    )


def _told(descriptor: object) -> str:
    try:
        return str(type_from_descriptor(descriptor))
    except UnsupportedTypeError:
        return str(descriptor)
