"""What people and programs see of jobs and snapshots: the JSON of the web API and of --json."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from turnback.job.catalog import SavepointEntry, SavepointReplay
from turnback.job.liveness import Process
from turnback.job.run import StartedProgram
from turnback.job.status import Lag, OperatorLoad, ProgramOperator, RestoreProgress
from turnback.snapshot.snapshot import StateRow


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything here."""


class CheckpointStatus(StrEnum):
    """How a checkpoint is doing."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    IN_PROGRESS = "IN_PROGRESS"


class CheckpointRow(View, frozen=True, kw_only=True):
    """A checkpoint in the history of a job; what was not measured is None.

    Attributes:
        number: None if it failed before it got one.
        trigger: Why it was taken: periodic, manual, savepoint, final.
        duration_ms: How long it took: sync, waiting for the checkpoint before it, async.
        sync_ms: Within the epoch, how long the slowest task took to snapshot its state.
        async_ms: How long it took beside the stream: manifest and commits.
        delta_bytes: Bytes of new files.
        full_bytes: Bytes of all files it needs.
        path: Its file, while it is retained.
    """

    number: int | None
    status: CheckpointStatus
    attempt: int
    epoch: int
    trigger: str
    triggered_ms: int
    duration_ms: int | None = None
    sync_ms: int | None = None
    async_ms: int | None = None
    delta_bytes: int | None = None
    full_bytes: int | None = None
    files: int | None = None
    acknowledged: int | None = None
    tasks: int | None = None
    path: str | None = None
    reason: str | None = None


class Distribution(View, frozen=True, kw_only=True):
    """Numbers, summed up."""

    min: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    mean: float


class CheckpointHistory(View, frozen=True, kw_only=True):
    """The checkpoints of a job, newest first.

    Attributes:
        completed: All that were completed, also those that are not listed any more.
        failed: Likewise.
        restored: How often an attempt started from a snapshot, as far as the history reaches.
        forgotten: How many are counted only: too old to be listed.
        rows: Those the history remembers, of which the distributions are.
    """

    completed: int
    failed: int
    in_progress: int
    restored: int
    forgotten: int = 0
    duration_ms: Distribution | None = None
    sync_ms: Distribution | None = None
    async_ms: Distribution | None = None
    delta_bytes: Distribution | None = None
    full_bytes: Distribution | None = None
    rows: tuple[CheckpointRow, ...] = ()


class FailureRow(View, frozen=True, kw_only=True):
    """Something that went wrong with an attempt of a job.

    Attributes:
        kind: "restarting" (the attempt failed, the next one followed), "failed" (the job ended),
            or "driver died" (the next attempt was another process's); or "files changed": those of
            a source, after they were read.
        delay_ms: After how long the next attempt was to follow.
        count: How often it has happened: attempt and time are those of the last time.
        first_ms: When it happened first.
    """

    attempt: int
    at_ms: int
    kind: str
    cause: str
    delay_ms: int | None = None
    count: int = 1
    first_ms: int | None = None


class JobSummary(View, frozen=True, kw_only=True):
    """A job in a list of jobs.

    Attributes:
        job_id: Its identity; changes when it is started afresh.
        state: Flink's word for where it is in its life (RUNNING, RESTARTING, FAILED, ...); or LOST
            if its driver died and nobody starts it again; STALLED if it should get on and does
            not; or UNREADABLE.
        created_ms: When it was first started.
        updated_ms: When its driver last wrote its status.
        started_ms: When its newest attempt began.
        checkpoint: Its newest complete checkpoint.
        restarts: How often it was started again since it was started, by whomever.
        recent_restarts: The same, in the last ten minutes.
        cause: Why it failed or is restarting.
        log: The log file of the driver, on the driver's machine.
        spark_ui: Where Spark's own web pages are while it runs, if Spark has them.
        application: The application that its newest attempt ran in, such as that of YARN; None if
            it did not run on a cluster.
        records_in: Elements that the sources gave since the attempt began.
        records_per_s: The same, in the last seconds.
        lag: Of all its sources together, while it runs.
        restore: How far it is with restoring state, while it does.
        problem: Why it is UNREADABLE or STALLED, or what else people should know.
    """

    name: str
    job_id: str | None
    directory: str
    state: str
    created_ms: int | None = None
    updated_ms: int | None = None
    started_ms: int | None = None
    attempt: int | None = None
    epoch: int | None = None
    checkpoint: int | None = None
    restarts: int = 0
    recent_restarts: int = 0
    cause: str | None = None
    driver: Process | None = None
    supervisor: Process | None = None
    log: str | None = None
    spark_ui: str | None = None
    application: str | None = None
    records_in: int = 0
    records_per_s: float | None = None
    lag: Lag | None = None
    restore: RestoreProgress | None = None
    problem: str | None = None


class OperatorNode(ProgramOperator, View, frozen=True, kw_only=True):
    """An operator in the graph of a job, or of the program that took a snapshot.

    Elements are counted since the attempt began, those that were `left_out` because the function
    failed as well; `state_bytes` is about what its files take up, `lag` how far a source is behind
    while the job runs, `load` how busy it is then, `bottleneck` the busiest of the operators that
    read from a source. Records that were `malformed` are those of all attempts that count.
    """

    states: tuple[str, ...] = ()
    records_in: int = 0
    records_out: int = 0
    left_out: int = 0
    malformed: int = 0
    state_bytes: int | None = None
    watermark_ms: int | None = None
    lag: Lag | None = None
    load: OperatorLoad | None = None
    bottleneck: str | None = None


class JobDetail(View, frozen=True, kw_only=True):
    """A job on a page of its own.

    Attributes:
        operators: Its graph, in the order data flows; empty if it never got as far as that.
        warnings: Of the planner.
        versions: Of Turnback, Spark and Python.
        script: The program and its arguments, if it was started with `turnback run`.
        requests: Those that have not ended yet.
        busy: The share of the last minute in which epochs ran, while the job runs.
        bottleneck: Uid of the busiest operator; None if none works for long.
    """

    summary: JobSummary
    operators: tuple[OperatorNode, ...] = ()
    max_parallelism: int | None = None
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    script: tuple[str, ...] = ()
    requests: tuple[RequestRow, ...] = ()
    busy: float | None = None
    bottleneck: str | None = None


class RequestRow(View, frozen=True, kw_only=True):
    """A request to a job: a savepoint, stop or cancel.

    Attributes:
        state: WAITING, RUNNING, COMPLETED or FAILED.
        savepoint: Whether it takes a savepoint.
        done: Parts of the savepoint that are written.
        total: All parts; 0 while that is not known.
        path: Where the savepoint is.
    """

    id: str
    kind: str
    state: str
    created_ms: int
    savepoint: bool = False
    done: int = 0
    total: int = 0
    bytes: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    path: str | None = None
    error: str | None = None


class SavepointRow(SavepointEntry, View, frozen=True, kw_only=True):
    """A savepoint that a job has taken.

    Attributes:
        exists: Whether it is there; None if its storage does not answer.
        restore: The command that starts the job from it, as it was started when it was taken.
        replay: For how long what comes after it can be read; None if no source could be asked.
        script_changed: Whether the script is another one now; None if that is not known.
    """

    job: str
    exists: bool | None
    restore: str
    replay: SavepointReplay | None = None
    script_changed: bool | None = None


class ConfigRow(View, frozen=True, kw_only=True):
    """A configuration value as people write it, with stars for a secret.

    `origin` is where it comes from: "default", the file's name, the environment variable, "code" or
    "-D".
    """

    key: str
    value: str | None
    origin: str
    doc: str = ""


class SnapshotView(View, frozen=True, kw_only=True):
    """A checkpoint or a savepoint.

    Attributes:
        id: "chk-7", or the savepoint's id.
        kind: "checkpoint" or "savepoint".
        format: canonical or native, of a savepoint.
        drained: Whether event time has come to its end in it.
        sources: Spark's offset of each source, as JSON.
        transactions: Prepared sink transactions in it, by sink uid.
        targets: The version of each table that matches it, as far as known, by sink uid.
        started_from: Where the job itself came from.
        started: The program that took it, and how it was started; None if that is not known.
        script_changed: Whether its script is another one now; None if that is not known.
    """

    id: str
    kind: str
    location: str
    job: str
    job_id: str
    attempt: int
    checkpoint: int
    epoch: int
    created_ms: int
    trigger: str
    format: str | None
    label: str | None
    note: str | None
    drained: bool
    max_parallelism: int
    bytes: int
    files: int
    sources: dict[str, str | None]
    operators: tuple[OperatorNode, ...]
    states: tuple[StateRow, ...]
    transactions: dict[str, int]
    targets: dict[str, str]
    started_from: str | None
    started: StartedProgram | None = None
    script_changed: bool | None = None


class KeyView(View, frozen=True, kw_only=True):
    """What a state holds for one key, at the newest checkpoint of its job.

    Attributes:
        found: Whether there is anything.
        columns: Names of the columns: position or map_key if there is one, then value.
        rows: The value, or a page of list elements or map entries.
        next: What to pass as `after` to see more; None at the end.
        snapshot: Where it was read: chk-7, or the directory of the savepoint the job began with.
        epoch: The last epoch in it; later ones are not confirmed yet.
        created_ms: When it was taken.
    """

    uid: str
    name: str
    kind: str
    key: str
    found: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    next: str | None
    snapshot: str
    epoch: int
    created_ms: int


class StatePage(View, frozen=True, kw_only=True):
    """Some rows of a state.

    Attributes:
        columns: Names of the columns: key, then position or map_key if there is one, then value.
        next: What to pass as `after` to see more; None at the end.
        scanned: Rows that were read to find these.
    """

    uid: str
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    next: str | None
    scanned: int


class DiffRow(View, frozen=True, kw_only=True):
    """A difference between two snapshots: `change` is added, removed or changed."""

    change: str
    key: Any
    sub: Any = None
    before: Any = None
    after: Any = None


class StateDiffRow(View, frozen=True, kw_only=True):
    """How one state differs between two snapshots: in both, or only in one of them.

    `note` says what became of its time to live, None if that is the same.
    """

    uid: str
    name: str
    presence: str
    note: str | None = None


class DiffPage(View, frozen=True, kw_only=True):
    """Some differences of a state between two snapshots; the counts are those of this page.

    `next` is what to pass as `after` to see more, None at the end.
    """

    uid: str
    name: str
    added: int
    removed: int
    changed: int
    same: int
    rows: tuple[DiffRow, ...]
    next: str | None
