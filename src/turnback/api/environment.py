"""The environment: sources, settings, and starting the job."""

from __future__ import annotations

import builtins
import json
import logging
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count
from os import PathLike
from pathlib import Path
from sysconfig import get_path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, TypedDict, Unpack

from msgspec import structs

from turnback.api.arguments import epoch_limit, key_groups, path_text, snapshot_text
from turnback.api.client import JobClient
from turnback.api.streams import DataStream
from turnback.config.checkpointing import (
    CheckpointingMode,
    CheckpointSettings,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
    SavepointSettings,
)
from turnback.config.configuration import (
    DEFAULT,
    Configuration,
    ConfigurationEditor,
    job_root,
    spark_options,
    state_backend,
    storage_options,
)
from turnback.config.option import positive
from turnback.config.options import STORAGE_PREFIXES, backend_name, from_storage_options
from turnback.config.restart import RestartStrategyConfiguration, choose_restart
from turnback.config.watchdog import AlertSettings, WatchdogSettings
from turnback.connectors.record_source import RecordSource, check_source
from turnback.connectors.registry import sink_from_description
from turnback.core.ids import check_job_name, check_uid
from turnback.core.masking import mask_text
from turnback.core.units import parse_duration
from turnback.driver.job import JobReport, JobSpec, start_id, without_counted_start
from turnback.errors import ConfigurationError, PlanError
from turnback.functions.event_time import WatermarkStrategy
from turnback.job.alerts import check_command
from turnback.job.run import (
    ClaimMode,
    Launch,
    LaunchMode,
    ProcessId,
    RunDirectory,
    RunError,
    StartedProgram,
    StartOptions,
    current_run,
)
from turnback.job.status import ProgramSetting
from turnback.plan.bad_records import ErrorPolicy, files_policy
from turnback.plan.graph import NodeKind, StreamGraph
from turnback.plan.plan import Plan
from turnback.plan.planner import plan
from turnback.plan.sources import unwatched_files, watched_files
from turnback.snapshot.matching import Allowed, Renames
from turnback.storage.locations import is_in_memory
from turnback.values.hints import as_type
from turnback.values.typeinfo import TypeInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from turnback.driver.engine import Engine


Duration = int | str | timedelta

_OPTIONS = {option.field: option for option in CheckpointSettings.options()}


class CheckpointConfig:
    """When and how checkpoints are taken; Flink's options with Flink's defaults.

    Durations are milliseconds, or text such as "10 s". Values set here override the configuration
    file; the command line overrides both.
    """

    def __init__(self, editor: ConfigurationEditor) -> None:
        self._editor = editor

    @property
    def settings(self) -> CheckpointSettings:
        """The effective settings, from all layers of the configuration."""
        return CheckpointSettings.from_configuration(self._editor.current.raw)

    def is_checkpointing_enabled(self) -> bool:
        """Whether checkpoints are taken at all."""
        return self.settings.enabled

    def set_checkpoint_interval(self, interval: Duration) -> Self:
        """Set the time between the starts of two checkpoints."""
        return self._set(interval_ms=parse_duration(interval, "checkpoint interval"))

    def get_checkpoint_interval(self) -> int | None:
        """The interval in milliseconds; None when checkpoints are off."""
        return self.settings.interval_ms

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> Self:
        """Set exactly-once or at-least-once."""
        if not isinstance(mode, CheckpointingMode):
            raise ConfigurationError(f"mode must be a CheckpointingMode, got {mode!r}")
        return self._set(mode=mode)

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """The mode."""
        return self.settings.mode

    def set_checkpoint_timeout(self, timeout: Duration) -> Self:
        """Set the time after which a checkpoint in progress is discarded."""
        return self._set(timeout_ms=parse_duration(timeout, "checkpoint timeout"))

    def set_min_pause_between_checkpoints(self, pause: Duration) -> Self:
        """Set the minimum time between the end of one checkpoint and the start of the next."""
        return self._set(min_pause_ms=parse_duration(pause, "minimum pause"))

    def set_max_concurrent_checkpoints(self, number: int) -> Self:
        """Set how many checkpoints may be in progress at once."""
        return self._set(max_concurrent=number)

    def set_tolerable_checkpoint_failure_number(self, number: int) -> Self:
        """Set how many checkpoints may fail in a row before the job fails."""
        return self._set(tolerable_failures=number)

    def set_num_retained_checkpoints(self, number: int) -> Self:
        """Set how many complete checkpoints are kept."""
        return self._set(num_retained=number)

    def set_externalized_checkpoint_retention(
        self, retention: ExternalizedCheckpointRetention
    ) -> Self:
        """Set whether the checkpoints are kept or deleted when the job is cancelled."""
        if not isinstance(retention, ExternalizedCheckpointRetention):
            raise ConfigurationError(
                f"retention must be an ExternalizedCheckpointRetention, got {retention!r}"
            )
        return self._set(retention=retention)

    def enable_incremental_checkpoints(self, enabled: bool = True) -> Self:
        """Accepted for compatibility with PyFlink: checkpoints are always incremental."""
        if not isinstance(enabled, bool):
            raise ConfigurationError(f"enabled must be True or False, not {enabled!r}")
        return self._set(incremental=enabled)

    def set_checkpoint_storage(self, storage: CheckpointStorage | str | PathLike[str]) -> Self:
        """Set where checkpoints are stored: "jobmanager", "filesystem", or a directory."""
        if isinstance(storage, CheckpointStorage):
            return self._set(storage=storage)
        text = path_text("checkpoint storage", storage)
        if text in {s.value for s in CheckpointStorage}:
            return self._set(storage=CheckpointStorage(text))
        return self._set(storage=CheckpointStorage.FILESYSTEM, directory=text)

    def set_checkpoint_storage_dir(self, directory: str | PathLike[str]) -> Self:
        """Set the directory that contains the job's directory."""
        return self.set_checkpoint_storage(directory)

    def _set(self, **changes: object) -> Self:
        replace(self.settings, **changes)  # type: ignore[arg-type]  # raises for bad values
        options = [_OPTIONS[field] for field in changes]
        self._editor.set({option.key: option.write(changes[option.field]) for option in options})
        return self


_LOG = logging.getLogger(__name__)
_AT_MOST_ONCE = (
    "checkpoints are disabled, so delivery is at-most-once: records in flight are lost when the "
    "job dies. For a stronger guarantee, call enable_checkpointing(...)"
)


class ExecuteOptions(TypedDict, total=False):
    """The options of `StreamExecutionEnvironment.execute`, which are those of `execute_async`."""

    bounded: bool | None
    end_event_time: bool
    start_from: str | int | PathLike[str] | datetime | None
    fresh: bool
    allow_non_restored_state: Allowed
    renames: Renames | None
    fork: bool
    allow_pickled_state: bool
    take_over_sinks: bool
    claim_mode: ClaimMode
    epoch_interval: Duration


def _allowed(given: Any) -> bool | tuple[Any, ...]:
    """What of a snapshot may be dropped."""
    if isinstance(given, bool):
        return given
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Collection):
        raise ConfigurationError(
            "allow_non_restored_state must be True, False or a list of uids and 'uid/state', "
            f"got {given!r}"
        )
    return tuple(given)


def job_spec(name: str, configuration: Configuration) -> JobSpec:
    """How a job is run by the configuration alone."""
    settings = CheckpointSettings.from_configuration(configuration.raw)
    backend, storage = state_backend(configuration)
    inline = storage is CheckpointStorage.JOBMANAGER
    root = job_root(configuration)
    return JobSpec(
        name=name,
        root=_in_memory(root) if inline else root,
        started=StartedProgram.of_process(root),
        settings=settings,
        restart=choose_restart(configuration.raw, settings.enabled),
        same_error_limit=configuration.value("execution.same-error-limit"),
        backend=backend,
        inline=inline,
        savepoints=SavepointSettings.from_configuration(configuration.raw),
        watchdog=WatchdogSettings.from_configuration(configuration.raw),
        alerts=AlertSettings.from_configuration(configuration.raw),
        storage_options=storage_options(configuration),
        rebuild_sink=sink_from_description,
        local_dir=configuration.value("state.backend.local-dir"),
        standby_timeout_s=configuration.value("run.standby-timeout") / 1000,
        program_settings=tuple(
            ProgramSetting(key=entry.key, value=entry.value_text or "", origin=entry.origin)
            for entry in configuration.entries()
            if entry.value_text is not None
        ),
    )


def _in_memory(root: str) -> str:
    """Where the jobs of a directory are in this process's memory: two directories, two places."""
    return f"memory://jobs/{root.replace('://', '/').strip('/')}"


def check_job(program: Plan, spec: JobSpec) -> None:
    """Refuse what can be seen not to work before anything runs."""
    _check_guarantees(program, spec)
    try:
        check_command(spec.alerts)
    except ConfigurationError as error:
        if not spec.resumed:
            raise
        _LOG.warning("job %r: %s", spec.name, error)  # it ran before, and is to go on


def _check_guarantees(program: Plan, spec: JobSpec) -> None:
    """Refuse a sink that promises what the job's checkpoints cannot give."""
    if not spec.settings.commits_every_epoch:
        return
    for operator in program.operators():
        if operator.kind is NodeKind.SINK and operator.function.needs_checkpoints:
            raise ConfigurationError(
                f"job {spec.name!r}: sink {operator.uid!r} is exactly-once, but the job is not: "
                'call enable_checkpointing("10 s") with the mode EXACTLY_ONCE, which is the '
                "default, or choose another delivery guarantee"
            )


def warn(program: Plan, spec: JobSpec) -> None:
    """Log what is allowed but may surprise."""
    for warning in (*program.warnings, *(() if spec.settings.enabled else (_AT_MOST_ONCE,))):
        _LOG.warning("job %r: %s", spec.name, warning)


_PACKAGE = str(Path(__file__).parents[1]) + "/"
_BELOW = re.compile(re.escape(get_path("stdlib")) + r"/(?!site-packages/)|.*/(py4j|pyspark)/")
"""Files of Python's own library, and of Spark."""
_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_COLLECTING: defaultdict[tuple[str, str], count[int]] = defaultdict(lambda: count(1))
"""Numbers for jobs that only hand out their elements, by root and name."""


class TextFormatter(logging.Formatter):
    """A line of text, with stars in place of secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        return mask_text(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, thread, message, and error if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """See the base class."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "time": at.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": mask_text(record.getMessage()),
        }
        if record.exc_info:
            entry["error"] = mask_text(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(level: str, format: str, stream: TextIO | None = None) -> None:
    """Print what Turnback logs from a level on, as "text" or "json", by default to stderr.

    The program's own logging is left alone: this is about the logger "turnback" only.
    """
    logger = logging.getLogger("turnback")
    logger.setLevel(level.upper())
    for handler in logger.handlers:
        if isinstance(handler, _Handler):
            logger.removeHandler(handler)
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter(_TEXT))
    logger.addHandler(handler)
    logger.propagate = False


class _Handler(logging.StreamHandler[TextIO]):
    """Has a type of its own, so that handlers of the program's are not taken for it."""


class ProgramPlanned(BaseException):
    """Ends a program that was started to learn what it is, and how it would be run."""

    def __init__(self, plan: Plan, spec: JobSpec) -> None:
        super().__init__(f"the program of job {spec.name!r}")
        self.plan = plan
        self.spec = spec


class Launched:
    """How this process was launched: by which command line, under which supervisor."""

    def __init__(self, launch: Launch, run: RunDirectory) -> None:
        self.launch = launch
        self.run = run
        self._started: JobSpec | None = None

    def override(self, spec: JobSpec) -> JobSpec:
        """Let the command line win over the program.

        A driver that was started again after a crash resumes its job, wherever that began; one that
        only hands out its elements begins anew, as what it gave out is gone. When the program runs
        its job a second time, the program alone decides where that starts.

        Raises:
            ConfigurationError: The program runs another job: it is not clear which is meant. Or it
                is to run in the background, and only its own process would know its checkpoints.
        """
        launch = self.launch
        if launch.detached and launch.mode is LaunchMode.RUN and is_in_memory(spec.root):
            raise ConfigurationError(
                f"job {spec.name!r} keeps its checkpoints in the memory of its driver, so no other "
                "command could reach it in the background, and they would be lost with the driver. "
                "Set state.backend.type to hashmap or rocksdb, or run the job without -d"
            )
        before = self._started
        if before and before.name != spec.name and not (before.collects and spec.collects):
            raise ConfigurationError(
                f"this program runs several jobs, {before.name!r} and {spec.name!r}, but "
                "`turnback run` supports one job per program. Move each job into its own program"
            )
        self._started = spec
        resumed = self.run.running() is not None  # a driver of this launch ran the job, and died
        return replace(
            spec,
            name=spec.name if spec.collects else launch.name or spec.name,
            start=self._start_options(spec, first=before is None, resumed=resumed),
            run=self.run,
            resumed=resumed,
            standby=launch.standby,
            script=(launch.script, *launch.arguments),
            started=StartedProgram.of_launch(launch, spec.root),
        )

    def _start_options(self, spec: JobSpec, *, first: bool, resumed: bool) -> StartOptions:
        launch = self.launch
        options = launch.or_else(spec.start)
        where = spec.start if not first else options
        take_over = options.take_over_sinks and first
        if launch.mode is LaunchMode.RUN and resumed and first:
            take_over = False
            if not spec.collects:
                where = StartOptions()
        return structs.replace(
            options,
            start_from=where.start_from,
            fresh=where.fresh,
            take_over_sinks=take_over,
        )


@cache
def launched() -> Launched | None:
    """How this process was launched, `None` if it was started by other means.

    The first call makes it a driver of the launch: an error that ends it is recorded in the run
    directory.
    """
    run = current_run()
    if run is None:
        return None
    launch = run.launch()
    if launch.mode is LaunchMode.RUN:
        run.set_driver(ProcessId.current())
        _record_crash(run)
    return Launched(launch, run)


def program_name(launched: Launched | None) -> str:
    """Return the name of the script that this process runs, as the name of its job.

    Raises:
        ConfigurationError: It runs none: it is a notebook, a shell, or ``python -c``.
    """
    if launched is not None:
        return launched.launch.name or Path(launched.launch.script).stem
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    module = getattr(main, "__spec__", None)
    if script is None or hasattr(builtins, "get_ipython"):
        raise ConfigurationError(
            "the job needs a name, which identifies it when it is started again: "
            "execute('my-job'). Only a job in a script has a default name, the script's"
        )
    if module is not None:  # python -m package.module, or the package itself
        return str(module.name).removesuffix(".__main__").rpartition(".")[2]
    return Path(script).stem


def collecting_name(launched: Launched | None, root: str) -> str:
    """Return a name of its own for a job that only hands out what it collects.

    The first of a program below a root has a plain one, the others are numbered: the next run of
    the program gives each the same name again.
    """
    try:
        name = program_name(launched)
        if launched is None or not launched.launch.name:
            name = f"{name}-collect"
    except ConfigurationError:  # a notebook or a shell
        name = "collect"
    number = next(_COLLECTING[root, name])
    return name if number == 1 else f"{name}-{number}"


def error_text(error: BaseException) -> str:
    """An error with its traceback, without the frames of Turnback itself and what runs scripts."""
    summary = TracebackException.from_exception(error)
    parts: list[TracebackException | None] = [summary]
    while parts:
        part = parts.pop()
        if part is not None:
            part.stack = StackSummary.from_list(_of_users(part.stack))
            parts += [part.__cause__, part.__context__]
    return "".join(summary.format())


def _of_users(stack: Iterable[FrameSummary]) -> Iterator[FrameSummary]:
    """Leave out Turnback's own frames, and those of Spark and Python itself that it has called."""
    inside = False
    for frame in stack:
        if frame.filename.startswith((_PACKAGE, "<frozen runpy>")):
            inside = True
        elif not (inside and _BELOW.match(frame.filename)):
            inside = False
            yield frame


def _record_crash(run: RunDirectory) -> None:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        run.set_error(RunError.of(error))
        print(mask_text(error_text(error)), end="", file=sys.stderr)

    sys.excepthook = hook


# Spark is imported where it is first used: commands that only look at files start in a blink.


class StreamExecutionEnvironment:
    """Defines and runs streaming jobs."""

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
            configuration: Flink's keys, such as ``{"state.backend.type": "rocksdb"}``; overrides
                the configuration file.
            spark: The session to run on.
            root: The directory of all jobs; by default ``state.checkpoints.dir``, else
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
        """The current configuration: file, variables, values set here, and the command line."""
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
        """Set where state is kept while the job runs.

        "hashmap" (memory) or "rocksdb" (local disk), or one of the classic pairs: "memory"
        (hashmap, checkpoints in the driver's memory) and "filesystem" (hashmap, checkpoints in
        files).
        """
        self._editor.set({"state.backend.type": backend_name("set_state_backend", name)})
        return self

    def set_restart_strategy(self, strategy: RestartStrategyConfiguration) -> Self:
        """Set what happens after a failure, one of `RestartStrategies`."""
        if not isinstance(strategy, RestartStrategyConfiguration):
            raise ConfigurationError(
                f"set_restart_strategy takes one of RestartStrategies, got {strategy!r}"
            )
        self._editor.replace("restart-strategy.", strategy.to_configuration())
        return self

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the parallelism of every operator that does not set its own."""
        self._editor.set({"parallelism.default": positive("parallelism", parallelism)})
        return self

    def get_parallelism(self) -> int:
        """The default parallelism; Spark's own when none was set."""
        configured: int | None = self.configuration.value("parallelism.default")
        return configured or max(1, self.engine.cores)

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups, which is fixed for the lifetime of the job's state."""
        groups = key_groups("max parallelism", max_parallelism)
        self._editor.set({"pipeline.max-parallelism": groups})
        return self

    def get_max_parallelism(self) -> int:
        """The number of key groups."""
        return int(self.configuration.value("pipeline.max-parallelism"))

    def set_storage_options(self, **options: str) -> Self:
        """Set how storages are reached.

        `S3Storage`, `GcsStorage`, `AzureStorage` and `HdfsStorage` describe all options.
        """
        self._editor.replace(STORAGE_PREFIXES, from_storage_options(options))
        return self

    # -- sources

    def from_dataframe(self, df: DataFrame, uid: str | None = None) -> DataStream:
        """A stream of the rows of a streaming DataFrame, from any Spark source.

        Args:
            df: Created with `spark.readStream`; may contain any stateless transformations.
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
        """A stream of the records of all current and future files in a directory.

        Every file is read once, whatever its age. Content that is appended later, or that replaces
        the file, is not read: write files elsewhere on the same file system, and move them in when
        they are complete.

        Args:
            path: The directory, which must exist; or a single local file, which is read once: a job
                that reads nothing else ends when it is read, and content appended later is not
                read.
            format: "parquet", "json", "csv", "orc" or "text".
            schema: DDL string, StructType, NamedTuple or dataclass.
            uid: Identity of the source.
            max_files_per_epoch: The most new files that one epoch reads.
            max_bytes_per_epoch: The most bytes of new files, such as "64 mb", but at least one
                file.
            on_malformed: What happens to a JSON or CSV record that does not fit the schema. "fail",
                the default: the job ends with an error that names the record; "skip": it is dropped
                and counted; "dead_letter": it is sent to `dead_letters` and counted.
            on_changed_files: What happens if the size or modification time of a local file changes
                after it was read. "warn", the default: the change is reported in the log, the
                status and the history, and the job continues; "fail": the job ends with an error
                that names the files; "ignore": files are not checked. Files elsewhere, such as on
                S3, cannot be checked: "warn" logs this at the start, and "fail" is refused.
            **options: Further options of Spark's reader. With an option for malformed records, such
                as `mode`, Spark alone handles them, and they are not counted.
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
            source: The source to read.
            watermark_strategy: `WatermarkStrategy.no_watermarks()` for no event time.
            source_name: A name for display.
            type_info: The expected type of the elements, which is checked.
            uid: Identity of the source.
            on_malformed: What happens to values that do not fit a `JsonRowDeserializationSchema`,
                as in `from_files`; "skip" is the same as `ignore_parse_errors` of the schema.
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

        A job that reads nothing else ends when all elements are processed, see `execute_async`.
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
        on_malformed: ErrorPolicy | None = None,
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
        """Check the program and divide it into levels, without running anything."""
        if self._executed is not None and not self._graph.nodes:
            raise PlanError(
                "there is nothing to execute: the program was executed as job "
                f"{self._executed!r}, and nothing has been added since. Define the next job, or "
                "the same one again, with its sources and sinks"
            )
        return plan(self._graph, self.get_parallelism(), self.get_max_parallelism())

    def execute(self, job_name: str | None = None, **options: Unpack[ExecuteOptions]) -> JobReport:
        """Run the job until its input ends, it is cancelled, or it fails permanently.

        Args:
            job_name: The job's identity: a job of the same name resumes from its last checkpoint.
                By default the name of the script: that of ``python clicks.py`` is "clicks".
            **options: See `execute_async`.
        """
        return self.execute_async(job_name, **options).result()

    def _execute_collect(self) -> JobClient:
        """Start a job that only hands out its elements: it starts empty, and has its own name."""
        spec = job_spec("collect", self.configuration)
        name = check_job_name(collecting_name(self._launched, spec.root))
        spec = replace(spec, name=name, bounded=self._graph.ends(), collects=True)
        spec = replace(spec, start=StartOptions(fresh=True))
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
        """Start the job and return immediately.

        Afterwards the environment is empty again, and can be used for another program.

        Args:
            job_name: The job's identity: a job of the same name resumes from its last checkpoint.
                By default the name of the script: that of ``python clicks.py`` is "clicks".
            bounded: Process the available input, take a final checkpoint, and end. By default only
                a job whose sources are all bounded ends: lists and single files.
            end_event_time: Whether event time advances to its end when the input ends, so that all
                timers and windows fire. Pass False if a later run continues with more input: open
                timers and windows then stay open until that run.
            start_from: The snapshot to start from, instead of the job's latest checkpoint: a
                retained checkpoint by number, "chk-7", path or time; or a savepoint by the path of
                its directory.
            fresh: Start empty even if there are checkpoints.
            allow_non_restored_state: Drop whatever in the snapshot the program cannot restore: all
                of it (True), or only the names in a list. This applies to state that matches no
                operator ("uid" or "uid/state"), state of windows whose definition has changed,
                which then start empty, the position of a source that now reads other streams, and
                uncommitted output of a removed sink ("uid").
            renames: Operators and states that had another name when the snapshot was taken: old
                "uid" to new, or old "uid/state" to new.
            fork: Accept another job's snapshot; this job is independent of that job.
            allow_pickled_state: Read pickled objects in the snapshot, which runs code contained in
                it; use it only for snapshots from a source you trust.
            take_over_sinks: If a sink's target belongs to another job, transfer it to this job
                permanently; the other job is refused from then on, so stop it first.
            claim_mode: Whether the job takes ownership of the savepoint it starts from, and deletes
                it later.
            epoch_interval: Minimum time between the starts of two epochs.
        """
        name = check_job_name(program_name(self._launched) if job_name is None else job_name)
        if fresh and start_from is not None:
            raise ConfigurationError("fresh=True and start_from cannot be used together")
        spec = replace(
            job_spec(name, self.configuration),
            bounded=self._graph.ends() if bounded is None else bounded,
            end_event_time=end_event_time,
            epoch_interval_ms=parse_duration(epoch_interval, "epoch interval"),
            start=StartOptions(
                start_from=snapshot_text(start_from),
                fresh=fresh,
                allow_non_restored_state=_allowed(allow_non_restored_state),
                renames=dict(renames or {}),
                fork=fork,
                allow_pickled_state=allow_pickled_state,
                take_over_sinks=take_over_sinks,
                claim_mode=claim_mode,
            ),
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
        spec = without_counted_start(replace(spec, start_id=start_id()))
        check_job(program, spec)
        warn(program, spec)
        client = JobClient(JobRunner(self.engine, program, spec)).start()
        self._graph.clear()
        self._executed = spec.name
        return client
