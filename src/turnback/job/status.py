"""How a job is doing and what it runs, as its driver records it."""

from __future__ import annotations

from enum import Enum

import msgspec
from msgspec import UNSET, UnsetType

from turnback.job.run import ProcessId

FORMAT = 1


class JobState(Enum):
    """Where a job is in its life, in Flink's words."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"

    @property
    def is_terminal(self) -> bool:
        """Whether no driver runs the job any more."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.CANCELED)


class CheckpointInProgress(msgspec.Struct, frozen=True):
    """A checkpoint that is being taken: its last epoch, why and since when."""

    epoch: int
    trigger: str
    triggered_ms: int


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a source is behind, or all sources together; None for what is not known.

    Attributes:
        records: How many records are not processed yet.
        seconds: Age of the oldest of them; 0 if there is none.
        change_per_s: By how many records it has grown in a second lately; negative if it shrinks.
        catch_up_s: After how long it would be gone if that went on; None if it does not shrink.
        growing_ms: For how long it has grown steadily, once that is as long as the watchdog
            allows.
        measured_ms: When, by the driver's clock.
    """

    records: int | None
    seconds: float | None
    change_per_s: float | None = None
    catch_up_s: float | None = None
    growing_ms: int | None = None
    measured_ms: int


class AttemptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a running attempt gets on, by the driver's clock.

    Attributes:
        epoch: The epoch that is being run; None between two of them.
        since_ms: Since when it is run; or else when the last one ended or the attempt began.
        asked_ms: Since when the driver waits for an answer of Spark; None if it does not.
        uncovered_ms: Since when there are epochs that no complete checkpoint covers; None if there
            are none.
    """

    epoch: int | None
    since_ms: int
    asked_ms: int | None = None
    uncovered_ms: int | None = None


class RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an attempt is with restoring state, by the driver's clock.

    Attributes:
        what: What is being done.
        done: How much of it, from 0 to 1.
        entries: Of about how many entries.
        since_ms: When it began.
        moved_ms: When it last got on.
        left_s: After about how many seconds it will be done; None while nothing is.
    """

    what: str
    done: float
    entries: int
    since_ms: int
    moved_ms: int
    left_s: float | None = None


class WatchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """After how many milliseconds without progress the job is STALLED; None for never."""

    heartbeat_ms: int | None = None
    epoch_ms: int | None = None
    checkpoint_ms: int | None = None


class TaskLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What one task of an operator does.

    Attributes:
        task: Its number, which is that of Spark's partition.
        records_in: Elements that it has read since the attempt began.
        records_out: Elements that it has written.
        per_s: Elements that it has read in a second, in the last minute.
        busy: The share of that time in which it worked, from 0 to 1.
        state_bytes: About how much its state takes up in files; None without state.
    """

    task: int
    records_in: int
    records_out: int
    per_s: float
    busy: float
    state_bytes: int | None = None


class OperatorLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How busy an operator was in the last minute, or in the newest epoch if that took longer.

    Attributes:
        tasks: How many it has.
        busy: The share of time in which a task worked, on average; from 0 to 1.
        busiest: The same of the busiest task.
        skew: How many times the mean the task with the most elements has read; None if there
            is only one, or too little was read to tell.
        skewed: That task.
        by_task: The busiest of them, by number.
    """

    tasks: int
    busy: float
    busiest: float
    skew: float | None = None
    skewed: int | None = None
    by_task: tuple[TaskLoad, ...] = ()


class Metrics(msgspec.Struct, frozen=True):
    """Numbers of the running attempt.

    Attributes:
        read: Elements that the sources gave.
        per_s: The same for each second of the last few.
        records: Elements read and written, by operator uid.
        left_out: Elements at which functions failed, and which were left out, by operator uid.
        malformed: Records that did not fit the schema of their source and were left out, by its
            uid; since the job began, whatever attempt left them out.
        state_bytes: About how much the state of an operator takes up in files, by uid.
        watermarks: How far event time has come in operators and sources, by uid.
        lag: How far sources are behind that can tell, by uid.
        busy: The share of the last minute in which epochs ran, from 0 to 1.
        load: How busy operators are that run in Python, by uid.
        completed: Checkpoints that this driver has completed.
        failed: Checkpoints that failed.
        progress: How it gets on; None while it does not run yet.
    """

    started_ms: int | None = None
    read: int = 0
    per_s: float | None = None
    records: dict[str, tuple[int, int]] = {}
    left_out: dict[str, int] = {}
    malformed: dict[str, int] = {}
    state_bytes: dict[str, int] = {}
    watermarks: dict[str, int] = {}
    lag: dict[str, Lag] = {}
    busy: float | None = None
    load: dict[str, OperatorLoad] = {}
    completed: int = 0
    failed: int = 0
    under_way: tuple[CheckpointInProgress, ...] = ()
    progress: AttemptProgress | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is doing, as its driver last wrote.

    Attributes:
        process: The driver.
        owner: Tells two drivers in one process apart.
        heartbeat: Moves as long as the driver lives.
        updated_ms: When it was written, by the driver's clock.
        epoch: The newest confirmed epoch.
        checkpoint: The newest complete checkpoint.
        restarts: How often the job was restarted since it was started, by its drivers and its
            supervisor.
        restarted_ms: When it was restarted the last few times.
        cause: Why it failed or is restarting.
        supervisor: What starts the driver again when that dies.
        log: The driver's log file, on its machine.
        limits: When it counts as stalled.
        spark_ui: Where Spark's own web pages about the driver are, if it has any.
        application: What the cluster calls the application that it runs in, if it runs on one.
        restore: What it restores just now, once that has taken some seconds.
        notices: What people should know although the job runs.
    """

    format: int = FORMAT
    job: str
    job_id: str
    state: JobState
    process: ProcessId
    owner: str
    heartbeat: int
    updated_ms: int
    attempt: int | None = None
    epoch: int | None = None
    checkpoint: int | None = None
    restarts: int = 0
    restarted_ms: tuple[int, ...] = ()
    cause: str | None = None
    metrics: Metrics = Metrics()
    supervisor: ProcessId | None = None
    log: str | None = None
    limits: WatchLimits = WatchLimits()
    spark_ui: str | None = None
    application: str | None = None
    restore: RestoreProgress | None = None
    notices: tuple[str, ...] = ()


class StatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver changes of its status: see `Status`. Fields left out stay as they are."""

    attempt: int | UnsetType | None = UNSET
    epoch: int | UnsetType | None = UNSET
    checkpoint: int | UnsetType | None = UNSET
    restarts: int | UnsetType = UNSET
    restarted_ms: tuple[int, ...] | UnsetType = UNSET
    cause: str | UnsetType | None = UNSET
    metrics: Metrics | UnsetType = UNSET
    supervisor: ProcessId | UnsetType | None = UNSET
    log: str | UnsetType | None = UNSET
    limits: WatchLimits | UnsetType = UNSET
    spark_ui: str | UnsetType | None = UNSET
    application: str | UnsetType | None = UNSET
    restore: RestoreProgress | UnsetType | None = UNSET
    notices: tuple[str, ...] | UnsetType = UNSET

    def apply(self, status: Status) -> Status:
        fields = msgspec.structs.asdict(self)
        changes = {name: value for name, value in fields.items() if value is not UNSET}
        return msgspec.structs.replace(status, **changes)


class ProgramOperator(msgspec.Struct, frozen=True, kw_only=True):
    """An operator of the program.

    Attributes:
        parallelism: Number of instances; None for a source that Spark reads as it likes.
        level: The stage it runs in; -1 for what Spark does alone.
        key: What its input is keyed by, for people.
        inputs: Uids of the operators it reads from.
    """

    uid: str
    name: str
    kind: str
    parallelism: int | None
    level: int
    key: str | None = None
    inputs: tuple[str, ...] = ()


class ProgramSetting(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration value the attempt runs with; a secret's value is never written."""

    key: str
    value: str
    origin: str


class JobProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program and how it is run.

    Attributes:
        operators: In the order data flows.
        warnings: Of the planner.
        versions: Of Turnback, Spark and Python.
        script: The program and its arguments, if it was started with `turnback run`.
    """

    attempt: int
    operators: tuple[ProgramOperator, ...]
    settings: tuple[ProgramSetting, ...] = ()
    max_parallelism: int = 128
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    script: tuple[str, ...] = ()
