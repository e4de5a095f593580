"""What the list and the page of a job say of it."""

from __future__ import annotations

from collections.abc import Mapping

from turnback.coordinator.jobdir import JobDirectory, JobInfo
from turnback.coordinator.program import JobProgram
from turnback.coordinator.status import Metrics, Status
from turnback.core.errors import CheckpointError, StorageError
from turnback.ops.liveness import UNREADABLE, Liveness, judge
from turnback.ops.model import JobSummary, OperatorNode
from turnback.ops.place import shown


def unreadable(name: str, location: str, problem: str, job_id: str | None = None) -> JobSummary:
    """Return the summary of a job of which nothing else can be said."""
    return JobSummary(
        name=name, job_id=job_id, directory=shown(location), state=UNREADABLE, problem=problem
    )


def summarise(directory: JobDirectory, info: JobInfo, now_ms: int) -> JobSummary:
    """Return the summary of a job.

    Raises:
        StorageError: Its status cannot be read.
    """
    status = directory.status()
    alive = judge(status, now_ms)
    if status is None:
        return _summary(directory, info, alive)
    return _summary(
        directory,
        info,
        alive,
        updated_ms=status.updated_ms,
        started_ms=_started(directory, status),
        attempt=status.attempt,
        epoch=status.epoch,
        checkpoint=status.checkpoint,
        restarts=status.restarts,
        cause=status.cause,
        log=status.log,
        records_in=status.metrics.read,
        records_per_s=status.metrics.per_s if alive.is_driven else None,
    )


def operators(
    program: JobProgram, metrics: Metrics, states: Mapping[str, tuple[str, ...]]
) -> tuple[OperatorNode, ...]:
    """Return the graph of a program, with the numbers and states of its operators."""
    nodes = []
    for op in program.operators:
        read, written = metrics.records.get(op.uid, (0, 0))
        nodes.append(
            OperatorNode(
                uid=op.uid,
                name=op.name,
                kind=op.kind,
                parallelism=op.parallelism,
                level=op.level,
                key=op.key,
                inputs=op.inputs,
                states=states.get(op.uid, ()),
                records_in=read,
                records_out=written,
                state_bytes=metrics.state_bytes.get(op.uid),
                watermark_ms=metrics.watermarks.get(op.uid),
            )
        )
    return tuple(nodes)


def state_names(directory: JobDirectory, checkpoint: int | None) -> dict[str, tuple[str, ...]]:
    """Return the names of the states in a checkpoint, by operator; none if it cannot be read."""
    from turnback.coordinator.log import CheckpointLog
    from turnback.coordinator.manifest import Manifest

    if checkpoint is None:
        return {}
    try:
        slot = CheckpointLog(directory.storage).get(checkpoint)
    except (StorageError, CheckpointError):
        return {}  # the checkpoint may be gone by now; the graph is worth showing without
    names: dict[str, tuple[str, ...]] = {}
    for schema in slot.schemas if isinstance(slot, Manifest) else ():
        names[schema.uid] = (*names.get(schema.uid, ()), schema.name)
    return names


def _summary(
    directory: JobDirectory, info: JobInfo, alive: Liveness, **fields: object
) -> JobSummary:
    return JobSummary(
        name=info.job,
        job_id=info.job_id,
        directory=shown(directory.storage.uri),
        state=alive.state,
        created_ms=info.created_ms,
        driver=alive.driver,
        supervisor=alive.supervisor,
        problem=alive.problem,
        **fields,  # type: ignore[arg-type]
    )


def _started(directory: JobDirectory, status: Status) -> int | None:
    if status.metrics.started_ms is not None or status.attempt is None:
        return status.metrics.started_ms
    try:
        attempt = directory.attempt(status.attempt)
    except StorageError:
        return None  # not worth hiding the job for
    return attempt.started_ms if attempt is not None else None
