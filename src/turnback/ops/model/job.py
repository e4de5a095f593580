"""Jobs, as people see them."""

from __future__ import annotations

import msgspec

from turnback.ops.model.request import RequestRow
from turnback.ops.model.view import View


class Process(View, frozen=True, kw_only=True):
    """A process of a job.

    Attributes:
        host: The machine it runs on.
        pid: Its number there.
        alive: Whether it still runs; None if that cannot be told from this machine.
    """

    host: str
    pid: int
    alive: bool | None


class JobSummary(View, frozen=True, kw_only=True):
    """A job in a list of jobs.

    Attributes:
        name: Its name.
        job_id: Its identity; changes when it is started afresh.
        directory: Its directory.
        state: Flink's word for where it is in its life (RUNNING, RESTARTING, FAILED, ...); or LOST
            if its driver died without a word and nobody starts it again; or UNREADABLE.
        created_ms: When it was first started.
        updated_ms: When its driver last wrote its status.
        started_ms: When its newest attempt began.
        attempt: That attempt.
        epoch: Its newest epoch.
        checkpoint: Its newest complete checkpoint.
        restarts: How often this driver has started it again.
        cause: Why it failed or is restarting.
        driver: Its driver.
        supervisor: What starts the driver again when that dies.
        log: The log file of the driver, on the driver's machine.
        records_in: Elements that the sources gave since the attempt began.
        records_per_s: The same, in the last seconds.
        problem: Why it is UNREADABLE.
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
    cause: str | None = None
    driver: Process | None = None
    supervisor: Process | None = None
    log: str | None = None
    records_in: int = 0
    records_per_s: float | None = None
    problem: str | None = None


class OperatorNode(View, frozen=True, kw_only=True):
    """An operator in the graph of a job.

    Attributes:
        uid: Its identity.
        name: What people call it.
        kind: What it does: source, map, keyed process, sink, ...
        parallelism: Number of its instances; None for a source, which Spark reads as it likes.
        level: The Spark stage it runs in; -1 for sources that Spark reads alone.
        key: What its input is keyed by.
        inputs: Uids of the operators it reads from.
        states: Names of its states.
        records_in: Elements read since the attempt began.
        records_out: Elements written since then.
        state_bytes: About how much its state takes up in files.
        watermark_ms: How far event time has come.
    """

    uid: str
    name: str
    kind: str
    parallelism: int | None
    level: int
    key: str | None = None
    inputs: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    records_in: int = 0
    records_out: int = 0
    state_bytes: int | None = None
    watermark_ms: int | None = None


class JobDetail(View, frozen=True, kw_only=True):
    """A job on a page of its own.

    Attributes:
        summary: What the list says of it.
        operators: Its graph, in the order data flows; empty if it never got as far as that.
        max_parallelism: Number of key groups.
        warnings: What the planner had to say.
        versions: Of Turnback, Spark and Python.
        script: The program and its arguments, if it was started with `turnback run`.
        requests: What was asked of it and has not ended yet.
    """

    summary: JobSummary
    operators: tuple[OperatorNode, ...] = ()
    max_parallelism: int | None = None
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    script: tuple[str, ...] = ()
    requests: tuple[RequestRow, ...] = ()
