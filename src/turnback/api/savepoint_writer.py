from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from turnback.api.arguments import check_frame, given_key, key_groups, path_text, source_position
from turnback.api.savepoint import Savepoint
from turnback.checkpoint.manifest import RedriveProgress, SourcePosition
from turnback.config.checkpointing import SavepointFormat
from turnback.config.configuration import location
from turnback.connectors.kafka.source import kafka_position
from turnback.core.clock import SystemClock
from turnback.core.ids import check_job_name, check_uid
from turnback.errors import ConfigurationError, StateError
from turnback.functions.descriptors import StateDescriptor
from turnback.job.request import check_label
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavepointMetadata
from turnback.snapshot.snapshot import Snapshot
from turnback.snapshot.writer import SavepointDraft
from turnback.state.files import StorageRef, storage_of
from turnback.state.schema import StateSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from turnback.spark.state_frames import SavepointFiles, SavepointPosition, StateContent


class SavepointWriter:
    """Writes a changed savepoint, or a new one from batch data.

    Methods describe its content and return the writer; nothing is written before `write`. Unchanged
    states are copied file by file.

        SavepointWriter.new().with_state(
            "count", ValueStateDescriptor("total", int), totals, key_by="user"
        ).write("/savepoints/first")
    """

    def __init__(
        self,
        draft: SavepointDraft[StateContent, SavepointPosition],
        base: Snapshot | None,
        job: str,
        max_parallelism: int,
        spark: SparkSession | None,
    ) -> None:
        self._draft = draft
        self._base = base
        self._job = job
        self._max_parallelism = max_parallelism
        self._spark = spark

    @classmethod
    def new(
        cls,
        max_parallelism: int = 128,
        *,
        job: str = "bootstrap",
        spark: SparkSession | None = None,
    ) -> Self:
        """Start empty.

        Args:
            max_parallelism: The number of key groups; that of the job that will start from it.
            job: The job it is for; a job with another name must be started with ``fork=True``.
            spark: The session to work in.
        """
        name = check_job_name(job)
        groups = key_groups("max_parallelism", max_parallelism)
        return cls(SavepointDraft("the new savepoint"), None, name, groups, spark)

    @classmethod
    def from_existing(cls, savepoint: Savepoint | str | PathLike[str]) -> Self:
        """Start with the content of a savepoint or checkpoint, which itself is not changed."""
        from turnback.spark.state_frames import CopiedState, SavepointPosition

        given = savepoint if isinstance(savepoint, Savepoint) else Savepoint.load(savepoint)
        base = given._snapshot
        groups = base.max_parallelism
        draft: SavepointDraft[StateContent, SavepointPosition] = SavepointDraft(
            base.name,
            [(s.schema, CopiedState(base.rows(s), groups)) for s in base.states],
            base.operators,
            {leaf: SavepointPosition(p, base.storage) for leaf, p in base.sources.items()},
            given.metadata.watermarks,
        )
        return cls(draft, base, base.job, groups, given._spark)

    # -- states

    def with_state(
        self,
        uid: str,
        descriptor: StateDescriptor,
        df: DataFrame,
        *,
        key_by: str | Sequence[str] | None = None,
        key_type: Any = None,
    ) -> Self:
        """Add a state, or replace the one of that name.

        The DataFrame needs a column ``value`` of the state's type, for lists ``position`` (0, 1, 2
        and so on within a key), for maps ``map_key``, and the key; if the descriptor has a time to
        live, ``updated_at`` (if it is missing, a job with a time to live uses its start as the last
        update). Types are as in `Savepoint.state`. Other columns are ignored.

        Specify the key in the same way as the job does:

        - ``key_by="user"``, ``key_by=["country", "user"]``: the job keys by these columns.
        - ``key_type=str``: the job keys by a function that returns this type. The column ``key``
          holds its results.
        - neither: the key is the same as for the operator's other states in the savepoint; the
          column is ``key``.

        Args:
            uid: The operator.
            descriptor: Name and type of the state.
            df: Its rows, one for each key, list element or map entry.
            key_by: The columns with the key.
            key_type: The type of the column ``key``.

        Raises:
            StateError: A column is missing or of another type, or the key differs from that of the
                operator's other states.
        """
        from turnback.spark.state_frames import check_columns

        check_uid(uid)
        if not isinstance(descriptor, StateDescriptor):
            raise ConfigurationError(
                f"with_state takes a descriptor such as ValueStateDescriptor('total', int), got "
                f"{descriptor!r}"
            )
        check_frame("with_state", df)
        columns = (key_by,) if isinstance(key_by, str) else None if key_by is None else (*key_by,)
        state = f"state {descriptor.name!r} of operator {uid!r}"
        key = given_key(state, df, columns, key_type) or self._draft.key_of(uid)
        if key is None:
            raise ConfigurationError(
                f"with_state: operator {uid!r} has no other state that defines how its stream is "
                "keyed; give key_by= (columns) or key_type= (a function)"
            )
        schema = StateSchema.of(uid, descriptor, key)
        self._draft.put(schema, check_columns(df, schema, columns))
        return self

    def transform_state(
        self,
        uid: str,
        name: str,
        function: Callable[[DataFrame], DataFrame],
        descriptor: StateDescriptor | None = None,
    ) -> Self:
        """Replace a state with the result of a function.

        Args:
            uid: The operator.
            name: Name of the state.
            function: Called once, immediately, with the state as a DataFrame, as returned by
                `Savepoint.state` but without ``key_group``; returns one with the same columns.
            descriptor: The new descriptor of the state, if its type changes.
        """
        from turnback.spark.state_frames import CopiedState, check_columns

        schema, content = self._draft.find(uid, name)
        if isinstance(content, CopiedState):
            content = content.frame(self._session())
        result = function(content)
        check_frame(f"the function given to transform_state({uid!r}, {name!r})", result)
        if descriptor is not None:
            if descriptor.name != name:
                raise StateError(
                    f"transform_state of state {name!r} was given a descriptor of "
                    f"{descriptor.name!r}; call rename_state afterwards instead"
                )
            schema = StateSchema.of(uid, descriptor, schema.key)
        self._draft.put(schema, check_columns(result, schema))
        return self

    def remove_state(self, uid: str, name: str) -> Self:
        """Remove a state."""
        self._draft.remove_state(uid, name)
        return self

    def remove_operator(self, uid: str) -> Self:
        """Remove an operator with all its states."""
        self._draft.remove_operator(uid)
        return self

    def rename_state(self, uid: str, old: str, new: str) -> Self:
        """Give a state another name."""
        self._draft.rename_state(uid, old, new)
        return self

    def change_uid(self, old: str, new: str) -> Self:
        """Give an operator or a source another uid."""
        self._draft.change_uid(old, new)
        return self

    def with_max_parallelism(self, max_parallelism: int) -> Self:
        """Write for another number of key groups; every state is rewritten for it."""
        self._max_parallelism = key_groups("max_parallelism", max_parallelism)
        return self

    # -- sources

    def with_sources(self, positions: Savepoint | Mapping[str, Any]) -> Self:
        """Set the positions of sources; those that are not listed keep theirs.

        Args:
            positions: A savepoint or checkpoint, for all its sources. Or by uid the offset in the
                form Spark gives it for the source, as JSON, for example for Kafka
                ``{"events": {"topic": {"0": 17}}}``; None for the very beginning. Sources of files
                keep a list of files besides, so theirs can come from a savepoint only.
        """
        from turnback.spark.state_frames import SavepointPosition

        if isinstance(positions, Savepoint):
            other = positions._snapshot
            self._draft.add_sources(
                {leaf: SavepointPosition(p, other.storage) for leaf, p in other.sources.items()},
                other.operators,
            )
        else:
            self._draft.add_sources(
                {uid: SavepointPosition(source_position(uid, p)) for uid, p in positions.items()}
            )
        return self

    def with_kafka_offsets(
        self,
        uid: str,
        offsets: Mapping[tuple[str, int], int] | None = None,
        *,
        without_topics: Sequence[str] = (),
    ) -> Self:
        """Set the offsets of a Kafka source; partitions that are not listed keep theirs.

        A topic that is not in the savepoint yet is added. Its partitions that are not listed are
        read from their first record, like partitions that are added later.

        Args:
            uid: The source.
            offsets: The next offset to read, by `KafkaTopicPartition` or pairs of topic and number.
            without_topics: Topics to remove, which the job no longer reads.

        Raises:
            ConfigurationError: A partition or offset is invalid, a topic to remove does not exist,
                nothing would be left, or the source is not a Kafka source.
        """
        from turnback.spark.state_frames import SavepointPosition

        known = self._draft.sources.get(check_uid(uid))
        if known is None and uid in self._draft.source_uids():
            raise ConfigurationError(
                f"with_kafka_offsets: source {uid!r} reads several streams; use with_sources"
            )
        before = known.position.offset if known is not None else None
        position = SourcePosition(kafka_position(uid, before, offsets, without_topics))
        self._draft.add_sources({uid: SavepointPosition(position)})
        return self

    def without_sources(self, *uids: str) -> Self:
        """Remove the positions of all or some sources, which then start at the beginning."""
        self._draft.drop_sources(uids or self._draft.source_uids())
        return self

    # -- writing

    def write(
        self,
        directory: str | PathLike[str],
        *,
        label: str | None = None,
        note: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Savepoint:
        """Write the savepoint; it exists when this returns, and not before.

        Args:
            directory: An empty or new directory.
            label: A short name for it.
            note: Why it was made.
            storage_options: Credentials and endpoints of object stores; by default those of the
                savepoint it is made from.

        Raises:
            ConfigurationError: The directory is not empty or cannot be used.
            StateError: A key is null or has two rows, or a value cannot be stored.
        """
        from turnback.spark.state_frames import SavepointFiles

        options = dict(storage_options or (self._base.storage.options if self._base else {}))
        target = StorageRef(location(path_text("directory", directory)), options)
        storage = storage_of(target)
        if storage.uri.startswith("memory:"):
            raise ConfigurationError(
                f"cannot write a savepoint to {storage.uri}: Spark's tasks have no access to the "
                "driver's memory. Use a directory that all tasks can access"
            )
        check_label(label)
        savepoint = SavepointDirectory(storage)
        id = uuid.uuid4().hex
        epoch = self._base.epoch if self._base else 0
        savepoint.begin(id)
        files = SavepointFiles(
            self._session(), target, self._max_parallelism, epoch, savepoint.writer
        )
        try:
            savepoint.complete(self._metadata(id, files, label, note))
        except Exception:
            savepoint.abandon()
            raise
        return Savepoint.load(storage.uri, self._spark, storage_options=options)

    def _metadata(
        self, id: str, files: SavepointFiles, label: str | None, note: str | None
    ) -> SavepointMetadata:
        """Write everything, and return the metadata that completes it."""
        base = self._base
        draft = self._draft
        return SavepointMetadata(
            id=id,
            turnback_version=version("turnback"),
            type=SavepointFormat.CANONICAL,
            job=self._job,
            job_id=base.job_id if base else id,
            attempt=0,
            checkpoint=(base.origin.checkpoint or 0) if base else 0,
            epoch=files.epoch,
            created_ms=SystemClock().now_ms(),
            trigger="writer",
            label=label,
            note=note,
            max_parallelism=files.max_parallelism,
            sources={leaf: files.copy_source(p) for leaf, p in draft.sources.items()},
            operators=tuple(draft.operators.values()),
            states=tuple(files.write_state(*state) for state in draft.states.values()),
            watermarks=draft.watermarks,
            origin=base.origin if base else None,
            redriven=base.document.redriven if base else RedriveProgress(),
            started=base.metadata.started if base and base.metadata else None,
        )

    def _session(self) -> SparkSession:
        if self._spark is None:
            from turnback.spark.session import spark_session

            self._spark = spark_session()
        return self._spark
