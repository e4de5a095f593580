from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any

from turnback.api.arguments import job_root, path_text, positive, snapshot_text, whole_number
from turnback.api.checkpoint_config import CheckpointConfig, Duration
from turnback.api.client import JobClient
from turnback.api.configuration import Configuration, load_configuration
from turnback.api.stream import DataStream
from turnback.coordinator import (
    CheckpointingMode,
    CheckpointSettings,
    CheckpointStorage,
    RestartStrategyConfiguration,
    SavepointSettings,
    choose_restart,
)
from turnback.core import as_type, check_job_name, check_uid, parse_duration
from turnback.core.errors import ConfigurationError, PlanError
from turnback.graph import NodeKind, StreamGraph
from turnback.planner import Plan, plan
from turnback.runtime.job import ClaimMode, JobReport, JobSpec
from turnback.savepoint import Allowed, Renames

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark is imported where it is first used: commands that only look at files start in a blink.
_LOG = logging.getLogger(__name__)

_AT_MOST_ONCE = (
    "no checkpoints are taken, so it is at-most-once: what is in flight when the job dies is gone. "
    "Call enable_checkpointing(...) for more",
)
_BACKENDS = {
    "hashmap": ("hashmap", None),
    "rocksdb": ("rocksdb", None),
    "memory": ("hashmap", CheckpointStorage.JOBMANAGER),
    "jobmanager": ("hashmap", CheckpointStorage.JOBMANAGER),
    "filesystem": ("hashmap", CheckpointStorage.FILESYSTEM),
}


class StreamExecutionEnvironment:
    """Where a streaming job is written and run."""

    def __init__(
        self,
        spark: SparkSession | None = None,
        root: str | PathLike[str] | None = None,
        configuration: Mapping[str, Any] | None = None,
    ) -> None:
        self._spark = spark
        self._configuration: Configuration = load_configuration(configuration)
        settings = CheckpointSettings.from_configuration(self._configuration)
        if root is not None:
            settings = replace(settings, directory=path_text("root", root))
        self._settings = CheckpointConfig(settings)
        self._backend = "rocksdb"
        self._storage: CheckpointStorage | None = None
        self._restart: RestartStrategyConfiguration | None = None
        self._parallelism: int | None = None
        self._max_parallelism = 128
        self._storage_options: dict[str, str] = {}
        self._graph = StreamGraph()
        if "state.backend.type" in self._configuration:
            self.set_state_backend(self._configuration["state.backend.type"])
        if "parallelism.default" in self._configuration:
            self.set_parallelism(whole_number(self._configuration, "parallelism.default"))
        if "pipeline.max-parallelism" in self._configuration:
            self.set_max_parallelism(whole_number(self._configuration, "pipeline.max-parallelism"))

    @classmethod
    def get_execution_environment(
        cls,
        configuration: Mapping[str, Any] | None = None,
        *,
        spark: SparkSession | None = None,
        root: str | PathLike[str] | None = None,
    ) -> StreamExecutionEnvironment:
        """An environment on the given Spark session, the active one, or a new local one.

        Args:
            configuration: Flink's keys, such as ``{"state.backend.type": "rocksdb"}``; wins over
                the configuration file.
            spark: The session to run on.
            root: Where job directories go; by default ``state.checkpoints.dir``, else
                ``~/.turnback/jobs``.
        """
        return cls(spark, root, configuration)

    @property
    def spark(self) -> SparkSession:
        """The Spark session."""
        if self._spark is None:
            from turnback.runtime.spark import spark_session

            self._spark = spark_session()
        return self._spark

    # -- settings

    def enable_checkpointing(
        self, interval: Duration, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    ) -> StreamExecutionEnvironment:
        """Take a checkpoint every `interval` (milliseconds, or text such as "10 s")."""
        self._settings.set_checkpoint_interval(interval).set_checkpointing_mode(mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """All other options of checkpoints."""
        return self._settings

    def set_state_backend(self, name: str) -> StreamExecutionEnvironment:
        """Choose where state is kept while the job runs.

        "hashmap" (memory) or "rocksdb" (local disk), or one of the classic pairs: "memory"
        (hashmap, checkpoints in the driver's memory) and "filesystem" (hashmap, checkpoints in
        files).
        """
        if not isinstance(name, str) or name not in _BACKENDS:
            raise ConfigurationError(
                f"unknown state backend {name!r}; there are {', '.join(_BACKENDS)}"
            )
        self._backend, self._storage = _BACKENDS[name]
        return self

    def set_restart_strategy(
        self, strategy: RestartStrategyConfiguration
    ) -> StreamExecutionEnvironment:
        """Set what follows a failure, one of `RestartStrategies`."""
        if not isinstance(strategy, RestartStrategyConfiguration):
            raise ConfigurationError(
                f"set_restart_strategy takes one of RestartStrategies, got {strategy!r}"
            )
        self._restart = strategy
        return self

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of instances of every operator that has none of its own."""
        self._parallelism = positive("parallelism", parallelism)
        return self

    def get_parallelism(self) -> int:
        """The default parallelism; Spark's own when none was set."""
        return self._parallelism or max(1, self.spark.sparkContext.defaultParallelism)

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of key groups, for the whole life of the job's state."""
        if positive("max parallelism", max_parallelism) > 32768:
            raise ConfigurationError(f"max parallelism is at most 32768, got {max_parallelism}")
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups."""
        return self._max_parallelism

    def set_storage_options(self, **options: str) -> StreamExecutionEnvironment:
        """Set endpoint and credentials of an object store."""
        self._storage_options = dict(options)
        return self

    # -- sources

    def from_dataframe(self, df: DataFrame, uid: str | None = None) -> DataStream:
        """A stream of the rows of a streaming DataFrame, from any Spark source.

        Args:
            df: Made with `spark.readStream`; may hold any stateless transformations.
            uid: Identity of the source, by which its position is found again.
        """
        if not hasattr(df, "isStreaming"):
            raise PlanError(f"from_dataframe takes a DataFrame, got {type(df).__name__}")
        if not df.isStreaming:
            raise PlanError(
                "from_dataframe takes a streaming DataFrame, and this one is static; "
                "use spark.readStream instead of spark.read, or from_collection for small data"
            )
        names = [name.lower() for name in df.columns]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise PlanError(f"the DataFrame has more than one column named {', '.join(twice)}")
        uid = None if uid is None else check_uid(uid)
        name = uid or "source"
        node = self._graph.add(NodeKind.SOURCE, name, as_type(df.schema), function=df, uid=uid)
        return DataStream(self._graph, node)

    def from_files(
        self,
        path: str | PathLike[str],
        format: str,
        schema: Any,
        uid: str | None = None,
        *,
        max_files_per_epoch: int | None = None,
        **options: Any,
    ) -> DataStream:
        """A stream of the records of all files in a directory, and of those yet to come.

        Args:
            path: The directory; it must exist.
            format: "parquet", "json", "csv", "orc" or "text".
            schema: DDL string, StructType, NamedTuple or dataclass.
            uid: Identity of the source.
            max_files_per_epoch: How many new files one epoch takes at most.
            **options: Further options of Spark's reader.
        """
        from turnback.sources import file_frame

        type = as_type(schema)
        if max_files_per_epoch is not None:
            positive("max_files_per_epoch", max_files_per_epoch)
        where = path_text("from_files: path", path)
        frame = file_frame(self.spark, where, format, type, max_files_per_epoch, options)
        stream = self.from_dataframe(frame, uid)
        stream._node.type = type
        return stream

    def from_collection(
        self, collection: Any, type_info: Any = None, uid: str | None = None
    ) -> DataStream:
        """A bounded stream of the elements of a list, replayable like any other source."""
        from turnback.sources import collection_frame

        if isinstance(collection, str | bytes) or not isinstance(collection, Iterable):
            raise PlanError(f"from_collection takes a list of elements, got {collection!r:.80}")
        elements = list(collection)
        frame, type = collection_frame(self.spark, elements, type_info)
        stream = self.from_dataframe(frame, uid)
        stream._node.type = type
        return stream

    # -- running

    def plan(self) -> Plan:
        """Check the program and cut it into levels, without running anything."""
        return plan(self._graph, self.get_parallelism(), self._max_parallelism)

    def execute(self, job_name: str | None = None, **how: Any) -> JobReport:
        """Run the job until its input ends, it is cancelled, or it fails for good.

        Args:
            job_name: The job's identity: a job of the same name goes on from its last checkpoint.
            **how: See `execute_async`.
        """
        return self.execute_async(job_name, **how).result()

    def execute_async(
        self,
        job_name: str | None = None,
        *,
        bounded: bool = False,
        start_from: str | int | PathLike[str] | datetime | None = None,
        fresh: bool = False,
        allow_non_restored_state: Allowed = False,
        renames: Renames | None = None,
        fork: bool = False,
        allow_pickled_state: bool = False,
        claim_mode: ClaimMode = ClaimMode.NO_CLAIM,
        epoch_interval: Duration = 0,
    ) -> JobClient:
        """Start the job and return at once.

        Args:
            job_name: The job's identity: a job of the same name goes on from its last checkpoint.
            bounded: Process what is there now, take a last checkpoint, and end.
            start_from: Another snapshot than the job's latest: a retained checkpoint by number,
                "chk-7", path or time; or a savepoint by the path of its directory.
            fresh: Start empty although there are checkpoints.
            allow_non_restored_state: Drop state that no operator claims: all of it (True), or the
                operators and states that are named, as "uid" or "uid/state".
            renames: What had another name when the snapshot was taken: old "uid" to new, or old
                "uid/state" to new.
            fork: The snapshot may be another job's; this job starts a life of its own from it.
            allow_pickled_state: Read pickled objects in the snapshot, which runs code that is in
                it; say so only if you trust where it comes from.
            claim_mode: Whether the savepoint it starts from becomes the job's, to be deleted.
            epoch_interval: Least time between the starts of two epochs.
        """
        from turnback.runtime.spark import JobRunner

        name = check_job_name(job_name or "turnback-job")
        if fresh and start_from is not None:
            raise ConfigurationError("fresh=True and start_from exclude each other")
        program = self.plan()
        settings = self._settings.settings
        for warning in (*program.warnings, *(() if settings.enabled else _AT_MOST_ONCE)):
            _LOG.warning("job %r: %s", name, warning)
        storage = settings.storage or self._storage or CheckpointStorage.FILESYSTEM
        inline = storage is CheckpointStorage.JOBMANAGER
        spec = JobSpec(
            name=name,
            root="memory://jobs" if inline else job_root(settings.directory),
            settings=settings,
            restart=choose_restart(self._restart, self._configuration, settings.enabled).create(),
            backend=self._backend,
            inline=inline,
            bounded=bounded,
            epoch_interval_ms=parse_duration(epoch_interval, "epoch interval"),
            start_from=snapshot_text(start_from),
            fresh=fresh,
            allow_non_restored_state=allow_non_restored_state,
            renames=dict(renames or {}),
            fork=fork,
            allow_pickled_state=allow_pickled_state,
            claim_mode=claim_mode,
            savepoints=SavepointSettings.from_configuration(self._configuration),
            storage_options=self._storage_options,
            local_dir=self._configuration.get("state.backend.local-dir"),
        )
        return JobClient(JobRunner(self.spark, program, spec)).start()
