"""A job as its driver sees it: how it is run, what it has done, and which errors end it."""

from __future__ import annotations

import logging
import os
import platform
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from msgspec import structs

from turnback.config.checkpointing import CheckpointSettings, SavepointSettings
from turnback.config.restart import RestartStrategyConfiguration
from turnback.config.watchdog import AlertSettings, WatchdogSettings
from turnback.core.masking import mask_arguments, mask_text
from turnback.errors import (
    FINAL,
    JobFailedError,
    SparkUnavailableError,
    TurnbackError,
    UserFunctionError,
)
from turnback.functions.partitioning import KeySpec
from turnback.job.directory import JobDirectory
from turnback.job.run import RunDirectory, StartedProgram, StartOptions
from turnback.job.status import JobProgram, ProgramOperator, ProgramSetting
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Operator, Plan
from turnback.sinks.base import Sink

RebuildSink = Callable[[Mapping[str, str]], Sink | None]
"""Makes a sink from its description; None if only the program can."""


@dataclass(frozen=True)
class JobSpec:
    """How a program is to be run; see `StreamExecutionEnvironment.execute_async`."""

    name: str
    root: str
    """Where job directories are."""
    settings: CheckpointSettings
    restart: RestartStrategyConfiguration
    backend: str
    """The local store of state: "hashmap" or "rocksdb"."""
    same_error_limit: int | None = None
    """How often in a row the same error of a function may come; None for any number."""
    inline: bool = False
    """Whether state lives in the driver's memory (jobmanager storage)."""
    bounded: bool = False
    end_event_time: bool = True
    """Whether event time runs to its end when the input ends."""
    epoch_interval_ms: int = 0
    start: StartOptions = StartOptions()  # noqa: RUF009 - it is frozen
    start_id: str | None = None
    """Identifies the start, for drivers that something else than our supervisor starts again."""
    savepoints: SavepointSettings = field(default_factory=SavepointSettings)
    watchdog: WatchdogSettings = field(default_factory=WatchdogSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    storage_options: dict[str, str] = field(default_factory=dict)
    local_dir: str | None = None
    """Where local stores live; None for the machine's default."""
    run: RunDirectory | None = None
    """What the driver shares with its supervisor, if it has one."""
    standby: bool = False
    """Whether to wait while another driver runs the job, and then to take over."""
    standby_timeout_s: float = 15.0
    """How long the other driver may be silent before that."""
    resumed: bool = False
    """Whether the supervisor has started the driver again after one that died."""
    collects: bool = False
    """Whether it only hands out its elements: those of an earlier process are gone with it."""
    script: tuple[str, ...] = ()
    """The program and its arguments, if they are known."""
    started: StartedProgram | None = None
    """How this process was started, to be kept with snapshots."""
    rebuild_sink: RebuildSink | None = None
    """Makes sinks that the program has no more, to roll back what they have left."""
    program_settings: tuple[ProgramSetting, ...] = ()
    """The whole configuration, as the dashboard shows it."""


_LOG = logging.getLogger(__name__)
_START_ID = "TURNBACK_START_ID"
_YARN_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")


def start_id() -> str | None:
    """The id of this start that the environment gives; the same when a driver is started again.

    `TURNBACK_START_ID`, which a deployment sets, or the application that a driver on YARN runs in.
    """
    given = os.environ.get(_START_ID)
    if given:
        return given
    container = _YARN_CONTAINER.fullmatch(os.environ.get("CONTAINER_ID", ""))
    return f"application_{container[1]}" if container else None


def without_counted_start(spec: JobSpec) -> JobSpec:
    """The job, to be resumed from its newest checkpoint if its start has already happened.

    YARN and Kubernetes repeat the whole command when a driver is lost, together with the savepoint
    in it. Starting from that again would throw away what the job has done since.
    """
    start = spec.start
    if spec.start_id is None or not (start.fresh or start.start_from is not None):
        return spec
    directory = JobDirectory.locate(spec.root, spec.name, dict(spec.storage_options))
    if not directory.has_started(spec.start_id):
        return spec
    _LOG.info(
        "job %r: start %s has already happened; it is resumed from its newest checkpoint",
        spec.name,
        spec.start_id,
    )
    resumed = structs.replace(
        start, start_from=None, fresh=False, claim_mode=None, take_over_sinks=False
    )
    return replace(spec, start=resumed, resumed=True)


@dataclass(frozen=True)
class EpochStats:
    """An epoch that is done.

    Attributes:
        number: The epoch.
        records: Elements the sources gave.
        written: Elements the sinks were given.
        seconds: How long it took, without waiting for the next input.
        openings: How many tasks found their local store at home, caught up, or rebuilt it.
    """

    number: int
    records: int
    written: int
    seconds: float
    openings: dict[str, int]


@dataclass
class JobReport:
    """What a job has done in this process.

    Attributes:
        job_name: Its name.
        job_id: Its unique id.
        job_dir: Its directory.
        attempts: How many attempts it had in this process.
        restored_from: Name of the snapshot the first of them started from, if any.
        epochs: The newest epochs.
        checkpoints: Number of complete checkpoints taken by this process.
        last_checkpoint: Number of the newest one.
        openings: How often tasks found their local store at home, caught up, or rebuilt it.
        warnings: The planner's warnings.
    """

    job_name: str
    job_id: str = ""
    job_dir: str = ""
    attempts: int = 0
    restored_from: str | None = None
    epochs: deque[EpochStats] = field(default_factory=lambda: deque(maxlen=10_000))
    checkpoints: int = 0
    last_checkpoint: int | None = None
    openings: Counter[str] = field(default_factory=Counter)
    warnings: tuple[str, ...] = ()


def describe(plan: Plan, spec: JobSpec, attempt: int) -> JobProgram:
    """Describe what an attempt runs, for the command line and the dashboard."""
    uids = {source.id: source.uid for source in plan.sources}
    uids |= {op.id: op.uid for op in plan.operators()}
    producers: defaultdict[int, list[int]] = defaultdict(list)
    for op in plan.operators():
        for consumer in op.consumers:
            producers[consumer.operator].append(op.id)
    for channel in plan.channels:
        for consumer in channel.consumers:
            producers[consumer.operator].append(channel.producer)
    sources = tuple(
        ProgramOperator(
            uid=source.uid,
            name=source.name,
            kind=NodeKind.SOURCE.value,
            parallelism=None,
            level=-1 if plan.native else 0,
        )
        for source in plan.sources
    )
    others = tuple(
        ProgramOperator(
            uid=op.uid,
            name=op.name,
            kind=op.kind.value,
            parallelism=op.parallelism,
            level=level.index,
            key=_keys_text(op),
            inputs=tuple(dict.fromkeys(uids[producer] for producer in producers[op.id])),
        )
        for level in plan.levels
        for op in level.operators
        if op.kind is not NodeKind.SOURCE
    )
    return JobProgram(
        attempt=attempt,
        operators=sources + others,
        settings=spec.program_settings,
        max_parallelism=plan.max_parallelism,
        warnings=plan.warnings,
        versions={
            "turnback": version("turnback"),
            "spark": version("pyspark"),
            "python": platform.python_version(),
        },
        script=mask_arguments(spec.script),
    )


def _keys_text(operator: Operator) -> str | None:
    """What an operator is keyed by; both, if its inputs differ in that."""
    texts = [_key_text(each.key) for each in operator.inputs if each.key is not None]
    return " = ".join(dict.fromkeys(texts)) or None


def _key_text(key: KeySpec) -> str:
    if key.columns:
        return ", ".join(key.columns)
    return getattr(key.function, "__name__", None) or "a function"


# -- how a job fails


def describe_error(error: BaseException) -> str:
    """An error in a few lines, without Spark's stack traces."""
    text = mask_text(str(error))
    if isinstance(error, TurnbackError):
        return text
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("at ")]
    return f"{type(error).__name__}: " + "\n".join(lines[:20])


def final_error(job: str, restarts: int, cause: BaseException) -> BaseException:
    """The error to raise when no restart is left."""
    if isinstance(cause, FINAL):
        return cause
    times = f" after {restarts} restarts" if restarts else ""
    error = JobFailedError(f"job {job!r} failed{times}: {describe_error(cause)}")
    error.__cause__ = cause if not isinstance(cause, TurnbackError) else None
    return error


class SameErrors:
    """Counts how often in a row one error of the user's code came, without an epoch in between.

    Such a job would fail for ever: its input is replayed, and what fails is in it.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last: tuple[str, int] | None = None
        self._times = 0

    def stop(self, cause: BaseException, epochs: Sequence[EpochStats]) -> BaseException | None:
        """Note an error after these epochs; returns the one to end the job with, if it is to."""
        if not isinstance(cause, UserFunctionError):
            self._last = None
            return None
        now = (str(cause), epochs[-1].number if epochs else 0)
        self._times = self._times + 1 if now == self._last else 1
        self._last = now
        if self._limit is None or self._times < self._limit:
            return None
        return UserFunctionError(
            f"the same error occurred {self._times} times in a row, so another restart would not "
            "help: either the function cannot process an element, or something that it needs is "
            "permanently missing. Fix that, and start the job again: it continues with the same "
            f"element. (execution.same-error-limit sets the number of attempts.) {cause}"
        )


def lost_error(job: str, fate: str, cause: BaseException, *, supervised: bool) -> BaseException:
    """The error to raise when Spark's JVM is gone; `lost_jvm` tells its fate."""
    next_step = (
        "Its supervisor restarts it according to the restart strategy."
        if supervised
        else "Start the program again, and the job resumes from its latest checkpoint; `turnback "
        "run` does this automatically."
    )
    return SparkUnavailableError(
        f"job {job!r} has lost Spark, and its driver must be restarted: {fate}. {next_step} (The "
        f"attempt failed with {describe_error(cause)})"
    )
