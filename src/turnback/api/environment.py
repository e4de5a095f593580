"""The environment: sources, settings, and starting the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, Unpack

from turnback.api.arguments import epoch_limit, key_groups, path_text, snapshot_text
from turnback.api.checkpoint_config import CheckpointConfig, Duration
from turnback.api.client import JobClient
from turnback.api.job_spec import ExecuteOptions, check_job, job_spec, warn
from turnback.api.launched import (
    ProgramPlanned,
    collecting_name,
    launched,
    program_name,
    set_up_logging,
)
from turnback.api.stream import DataStream
from turnback.config.checkpointing import CheckpointingMode
from turnback.config.configuration import (
    DEFAULT,
    Configuration,
    ConfigurationEditor,
    spark_options,
)
from turnback.config.option import positive
from turnback.config.options import backend_name, from_storage_options
from turnback.config.restart import RestartStrategyConfiguration
from turnback.connectors.record_source import RecordSource, check_source
from turnback.core.errors import ConfigurationError, PlanError
from turnback.core.ids import check_job_name, check_uid
from turnback.core.units import parse_duration
from turnback.driver.job import ClaimMode, JobReport, JobSpec
from turnback.functions.event_time import WatermarkStrategy
from turnback.job.run import LaunchMode
from turnback.plan.graph import NodeKind, StreamGraph
from turnback.plan.malformed import MalformedPolicy, files_policy
from turnback.plan.plan import Plan
from turnback.plan.planner import plan
from turnback.plan.sources import unwatched_files, watched_files
from turnback.snapshot.matching import Allowed, Renames
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from turnback.driver.engine import Engine


# Spark is imported where it is first used: commands that only look at files start in a blink.


class StreamExecutionEnvironment:
    """Where a streaming job is written and run."""

    def __init__(
        self,
        spark: SparkSession | None = None,
        root: str | PathLike[str] | None = None,
        configuration: Mapping[str, Any] | None = None,
        *,
        engine: Engine | None = None,
    ) -> None:
        self._spark = spark
        self._engine = engine
        self._launched = launched()
        command_line = self._launched.launch.settings if self._launched is not None else None
        self._editor = ConfigurationEditor(Configuration.load(configuration, command_line))
        if root is not None:
            self._editor.set({"state.checkpoints.dir": path_text("root", root)})
        self._graph = StreamGraph(self)
        self._executed: str | None = None
        keys = ("log.level", "log.format")
        if self._launched is not None or {*map(self.configuration.origin, keys)} != {DEFAULT}:
            level, format = map(self.configuration.value, keys)
            set_up_logging(level.value, format.value)

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
            from turnback.spark.session import spark_session

            archive = self.configuration.value("run.class-archive")
            options = spark_options(self.configuration)
            self._spark = spark_session(class_archive=archive, **options)
        return self._spark

    @property
    def engine(self) -> Engine:
        """What jobs run on: the Spark session, unless another engine was given."""
        if self._engine is None:
            from turnback.spark.engine import SparkEngine
            from turnback.spark.worker import start_workers

            self._engine = SparkEngine(self.spark)
            if self._launched is None or self._launched.launch.mode is LaunchMode.RUN:
                start_workers(self.spark)
        return self._engine

    # -- settings

    @property
    def configuration(self) -> Configuration:
        """What is configured now: file, variables, what was set here, and the command line."""
        return self._editor.current

    def enable_checkpointing(
        self, interval: Duration, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    ) -> Self:
        """Take a checkpoint every `interval` (milliseconds, or text such as "10 s")."""
        self.get_checkpoint_config().set_checkpoint_interval(interval).set_checkpointing_mode(mode)
        return self

    def get_checkpoint_config(self) -> CheckpointConfig:
        """All other options of checkpoints."""
        return CheckpointConfig(self._editor)

    def set_state_backend(self, name: str) -> Self:
        """Choose where state is kept while the job runs.

        "hashmap" (memory) or "rocksdb" (local disk), or one of the classic pairs: "memory"
        (hashmap, checkpoints in the driver's memory) and "filesystem" (hashmap, checkpoints in
        files).
        """
        self._editor.set({"state.backend.type": backend_name("set_state_backend", name)})
        return self

    def set_restart_strategy(self, strategy: RestartStrategyConfiguration) -> Self:
        """Set what follows a failure, one of `RestartStrategies`."""
        if not isinstance(strategy, RestartStrategyConfiguration):
            raise ConfigurationError(
                f"set_restart_strategy takes one of RestartStrategies, got {strategy!r}"
            )
        self._editor.replace("restart-strategy.", strategy.to_configuration())
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of instances of every operator that has none of its own."""
        self._editor.set({"parallelism.default": positive("parallelism", parallelism)})
        return self

    def get_parallelism(self) -> int:
        """The default parallelism; Spark's own when none was set."""
        configured: int | None = self.configuration.value("parallelism.default")
        return configured or max(1, self.engine.cores)

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups, for the whole life of the job's state."""
        groups = key_groups("max parallelism", max_parallelism)
        self._editor.set({"pipeline.max-parallelism": groups})
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups."""
        return int(self.configuration.value("pipeline.max-parallelism"))

    def set_storage_options(self, **options: str) -> Self:
        """Set endpoint and credentials of an object store; see `S3Storage` for all options."""
        self._editor.replace("s3.", from_storage_options(options))
        return self

    # -- sources

    def from_dataframe(self, df: DataFrame, uid: str | None = None) -> DataStream:
        """A stream of the rows of a streaming DataFrame, from any Spark source.

        Args:
            df: Made with `spark.readStream`; may hold any stateless transformations.
            uid: Identity of the source, by which its position is found again.
        """
        from turnback.spark.sources import check_streaming

        check_streaming(df)
        return self._source(df, uid)

    def from_files(
        self,
        path: str | PathLike[str],
        format: str,
        schema: Any,
        uid: str | None = None,
        *,
        max_files_per_epoch: int | None = None,
        max_bytes_per_epoch: int | str | None = None,
        on_malformed: str | None = None,
        on_changed_files: str = "warn",
        **options: Any,
    ) -> DataStream:
        """A stream of the records of all files in a directory, and of those yet to come.

        Every file is read once, whatever its age. What is added to a file after that, or replaces
        it, is not read: write files elsewhere on the same file system, and move them in when they
        are complete.

        Args:
            path: The directory; it must exist. Or a single local file, which is read once: a job
                that reads nothing else ends by itself, and what is added to it later is not seen.
            format: "parquet", "json", "csv", "orc" or "text".
            schema: DDL string, StructType, NamedTuple or dataclass.
            uid: Identity of the source.
            max_files_per_epoch: How many new files one epoch takes at most.
            max_bytes_per_epoch: How many bytes of new files, such as "64 mb", but always a file.
            on_malformed: What becomes of a record of JSON or CSV that does not fit the schema:
                "fail", the default: the job ends, and says which one it is; "drop": it is left
                out, and counted; "side": it goes to `malformed_records`, and is counted.
            on_changed_files: What becomes of the job if a local file is changed after it was read,
                as its size and its modification time tell: "warn", the default: that is told in
                its log, its status and its history, and the job goes on; "fail": it ends, and
                names the files; "ignore": nobody looks. Elsewhere, as on S3, nobody can look:
                "warn" says so at the start, and "fail" is refused.
            **options: Further options of Spark's reader; with one that says what becomes of
                malformed records, such as `mode`, Spark alone decides, and nobody counts.
        """
        from turnback.spark.sources import check_files, single_file

        limit = epoch_limit(max_files_per_epoch, max_bytes_per_epoch)
        directory = path_text("from_files: path", path)
        row = check_files(directory, format, as_type(schema))
        policy = files_policy(format, row.names, options, on_malformed)
        frame = self.engine.file_source(directory, format, row, limit, options, policy)
        stream = self._source(frame, uid, row, policy, bounded=single_file(directory))
        stream._node.files = watched_files(directory, on_changed_files)
        stream._node.unwatched = unwatched_files(directory, on_changed_files)
        return stream

    def from_source(
        self,
        source: RecordSource,
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: Any = None,
        uid: str | None = None,
        *,
        on_malformed: str | None = None,
    ) -> DataStream:
        """A stream of records of a `KafkaSource`, `RabbitMQSource` or `KinesisSource`.

        Args:
            source: What to read.
            watermark_strategy: `WatermarkStrategy.no_watermarks()` for no event time.
            source_name: What people call it.
            type_info: The type of the elements, to make sure of it.
            uid: Identity of the source.
            on_malformed: What becomes of values that do not fit a `JsonRowDeserializationSchema`:
                as in `from_files`; "drop" is what `ignore_parse_errors` of the schema says.
        """
        type = check_source(source, watermark_strategy, source_name, type_info)
        policy = source.malformed_policy(on_malformed)
        frame = source.frame(self.spark)
        stream = self._source(frame, uid, type, policy, bounded=source.bounded).name(source_name)
        stream._node.check = source.source_check()
        stream._node.lag = source.lag_reader()
        timeless = watermark_strategy == WatermarkStrategy.no_watermarks()
        return stream if timeless else stream.assign_timestamps_and_watermarks(watermark_strategy)

    def from_collection(
        self, collection: Any, type_info: Any = None, uid: str | None = None
    ) -> DataStream:
        """A bounded stream of the elements of a list, replayable like any other source.

        A job that reads nothing else ends by itself, see `execute_async`.
        """
        if isinstance(collection, str | bytes) or not isinstance(collection, Iterable):
            raise PlanError(f"from_collection takes a list of elements, got {collection!r:.80}")
        frame, type = self.engine.collection_source(list(collection), type_info)
        return self._source(frame, uid, type, bounded=True)

    def _source(
        self,
        frame: Any,
        uid: str | None,
        type: TypeInfo | None = None,
        on_malformed: MalformedPolicy | None = None,
        *,
        bounded: bool = False,
    ) -> DataStream:
        from turnback.spark.sources import source_frame

        read = source_frame(frame)
        type = type or as_type(frame.schema)
        uid = None if uid is None else check_uid(uid)
        node = self._graph.add(NodeKind.SOURCE, uid or "source", type, function=read.frame, uid=uid)
        node.bounded = bounded
        node.on_malformed = on_malformed
        node.whole = read.whole and on_malformed is None  # else all columns are parsed anyway
        node.partitioned = read.partitioned
        node.ordered = bounded or read.ordered
        return DataStream(self._graph, node)

    # -- running

    def plan(self) -> Plan:
        """Check the program and cut it into levels, without running anything."""
        if self._executed is not None and not self._graph.nodes:
            raise PlanError(
                f"there is nothing to execute: the program so far was executed as job "
                f"{self._executed!r}, and nothing has been added since. Write the next one, or "
                "the same one again, with sources and sinks"
            )
        return plan(self._graph, self.get_parallelism(), self.get_max_parallelism())

    def execute(self, job_name: str | None = None, **options: Unpack[ExecuteOptions]) -> JobReport:
        """Run the job until its input ends, it is cancelled, or it fails for good.

        Args:
            job_name: The job's identity: a job of the same name goes on from its last checkpoint.
                By default the name of the script: that of ``python clicks.py`` is "clicks".
            **options: See `execute_async`.
        """
        return self.execute_async(job_name, **options).result()

    def execute_anew(self) -> JobClient:
        """Start a job that only hands out its elements: it starts empty, and has its own name."""
        spec = job_spec("collect", self.configuration)
        name = check_job_name(collecting_name(self._launched, spec.root))
        spec = replace(spec, name=name, bounded=self._graph.ends(), fresh=True, anew=True)
        return self._start(spec)

    def execute_async(
        self,
        job_name: str | None = None,
        *,
        bounded: bool | None = None,
        end_event_time: bool = True,
        start_from: str | int | PathLike[str] | datetime | None = None,
        fresh: bool = False,
        allow_non_restored_state: Allowed = False,
        renames: Renames | None = None,
        fork: bool = False,
        allow_pickled_state: bool = False,
        take_over_sinks: bool = False,
        claim_mode: ClaimMode = ClaimMode.NO_CLAIM,
        epoch_interval: Duration = 0,
    ) -> JobClient:
        """Start the job and return at once.

        With that the program is done: the environment is empty again, for the next one.

        Args:
            job_name: The job's identity: a job of the same name goes on from its last checkpoint.
                By default the name of the script: that of ``python clicks.py`` is "clicks".
            bounded: Process what is there now, take a last checkpoint, and end. By default a job
                ends whose sources all end by nature: lists, and single files.
            end_event_time: Whether event time runs to its end with the input: all timers and
                windows fire. If the job is to go on from there with more input, pass False: what
                is open then waits for the next run.
            start_from: Another snapshot than the job's latest: a retained checkpoint by number,
                "chk-7", path or time; or a savepoint by the path of its directory.
            fresh: Start empty although there are checkpoints.
            allow_non_restored_state: Drop what the program has no place for: all of it (True), or
                what is named. That is state that no operator claims ("uid" or "uid/state"), state
                of windows that are defined in another way now, which then start empty, the
                position of a source that reads other streams now, and output of a sink that is
                gone ("uid").
            renames: What had another name when the snapshot was taken: old "uid" to new, or old
                "uid/state" to new.
            fork: The snapshot may be another job's; this job starts a life of its own from it.
            allow_pickled_state: Read pickled objects in the snapshot, which runs code that is in
                it; say so only if you trust where it comes from.
            take_over_sinks: Where a sink writes to a target that belongs to another job, make it
                this job's, for good; the other job is refused from then on, so stop it first.
            claim_mode: Whether the savepoint it starts from becomes the job's, to be deleted.
            epoch_interval: Least time between the starts of two epochs.
        """
        name = check_job_name(program_name(self._launched) if job_name is None else job_name)
        if fresh and start_from is not None:
            raise ConfigurationError("fresh=True and start_from exclude each other")
        spec = replace(
            job_spec(name, self.configuration),
            bounded=self._graph.ends() if bounded is None else bounded,
            end_event_time=end_event_time,
            epoch_interval_ms=parse_duration(epoch_interval, "epoch interval"),
            start_from=snapshot_text(start_from),
            fresh=fresh,
            allow_non_restored_state=allow_non_restored_state,
            renames=dict(renames or {}),
            fork=fork,
            allow_pickled_state=allow_pickled_state,
            take_over_sinks=take_over_sinks,
            claim_mode=claim_mode,
        )
        return self._start(spec)

    def _start(self, spec: JobSpec) -> JobClient:
        """Start the program as a job."""
        from turnback.driver.runner import JobRunner

        program = self.plan()
        if self._launched is not None:
            spec = self._launched.override(spec)
            if self._launched.launch.mode is LaunchMode.PLAN:
                raise ProgramPlanned(program, spec)
        check_job(program, spec)
        warn(program, spec)
        client = JobClient(JobRunner(self.engine, program, spec)).start()
        self._graph.clear()
        self._executed = spec.name
        return client
