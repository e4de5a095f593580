"""Metrics for Prometheus, under the names that Flink's own reporter gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from turnback.core.clock import Clock
from turnback.errors import TurnbackError
from turnback.job.catalog import SavepointCatalog
from turnback.job.history import CheckpointStats, newest_checkpoint
from turnback.job.liveness import ACTIVE, LOST, STALLED
from turnback.job.status import JobState, Metrics
from turnback.plan.graph import NodeKind
from turnback.views import model
from turnback.views.job import Job
from turnback.views.jobs import Jobs
from turnback.views.summary import UNREADABLE, Observation, operators

_LOG = logging.getLogger(__name__)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JOB = "flink_jobmanager_job_"
_OPERATOR = "flink_taskmanager_job_task_operator_"
_ENDED = tuple(state.value for state in JobState if state.is_terminal)
_STATES = (*(state.value for state in JobState), LOST, STALLED, UNREADABLE)
_UNKNOWN = -1.0
"""What Flink reports where there is no value yet."""


@dataclass(frozen=True)
class JobSample:
    """What was read of one job for one scrape."""

    summary: model.JobSummary
    operators: tuple[model.OperatorNode, ...]
    newest: CheckpointStats | None
    in_progress: int
    metrics: Metrics
    restored_ms: int | None
    failed_ms: int | None
    savepoints: int
    now_ms: int

    @property
    def running_ms(self) -> float:
        started = self.summary.started_ms
        return float(max(0, self.now_ms - started)) if started is not None else 0.0


def _of_newest(value: Callable[[CheckpointStats], int]) -> Callable[[JobSample], float]:
    def newest(sample: JobSample) -> float:
        return float(value(sample.newest)) if sample.newest is not None else _UNKNOWN

    return newest


def _uptime(sample: JobSample) -> float:
    state = sample.summary.state
    if state in _ENDED:
        return _UNKNOWN
    return sample.running_ms if state in ACTIVE else 0.0


def _downtime(sample: JobSample) -> float:
    state = sample.summary.state
    if state in _ENDED:
        return _UNKNOWN
    if state in ACTIVE or sample.failed_ms is None:
        return 0.0
    return float(max(0, sample.now_ms - sample.failed_ms))


JOB_METRICS: dict[str, tuple[str, Callable[[JobSample], float]]] = {
    f"{_JOB}totalNumberOfCheckpoints": (
        "Checkpoints started by this driver.",
        lambda s: s.metrics.completed + s.metrics.failed + s.in_progress,
    ),
    f"{_JOB}numberOfCompletedCheckpoints": (
        "Checkpoints completed by this driver.",
        lambda s: s.metrics.completed,
    ),
    f"{_JOB}numberOfFailedCheckpoints": (
        "Checkpoints of this driver that failed.",
        lambda s: s.metrics.failed,
    ),
    f"{_JOB}numberOfInProgressCheckpoints": (
        "Checkpoints in progress.",
        lambda s: s.in_progress,
    ),
    f"{_JOB}lastCheckpointDuration": (
        "Duration of the newest complete checkpoint in milliseconds.",
        _of_newest(lambda stats: stats.duration_ms),
    ),
    f"{_JOB}lastCheckpointSize": (
        "Bytes of new files in the newest complete checkpoint.",
        _of_newest(lambda stats: stats.delta_bytes),
    ),
    f"{_JOB}lastCheckpointFullSize": (
        "Bytes of all files that the newest complete checkpoint needs.",
        _of_newest(lambda stats: stats.full_bytes),
    ),
    f"{_JOB}lastCompletedCheckpointId": (
        "Number of the newest complete checkpoint.",
        lambda s: s.summary.checkpoint if s.summary.checkpoint is not None else _UNKNOWN,
    ),
    f"{_JOB}lastCheckpointRestoreTimestamp": (
        "Time when the newest attempt started from a snapshot, in milliseconds since 1970.",
        lambda s: float(s.restored_ms) if s.restored_ms is not None else _UNKNOWN,
    ),
    f"{_JOB}numRestarts": (
        "Restarts since the job was started.",
        lambda s: s.summary.restarts,
    ),
    "turnback_job_recent_restarts": (
        "Restarts in the last ten minutes.",
        lambda s: s.summary.recent_restarts,
    ),
    f"{_JOB}fullRestarts": ("Older name of the same metric.", lambda s: s.summary.restarts),
    f"{_JOB}uptime": ("Milliseconds that the job has been running without interruption.", _uptime),
    f"{_JOB}downtime": ("Milliseconds since the job stopped running.", _downtime),
    f"{_JOB}runningTime": (
        "Milliseconds that the job has been RUNNING or STALLED.",
        lambda s: s.running_ms if s.summary.state in ACTIVE else 0.0,
    ),
    "turnback_savepoints": ("Savepoints taken of the job.", lambda s: s.savepoints),
    "turnback_job_busy_ratio": (
        "Share of the last minute in which epochs ran.",
        lambda s: s.metrics.busy if s.metrics.busy is not None else _UNKNOWN,
    ),
    "turnback_job_records_in": (
        "Elements read by the sources since the attempt began.",
        lambda s: s.summary.records_in,
    ),
}

OPERATOR_METRICS: dict[str, tuple[str, Callable[[model.OperatorNode], float | None]]] = {
    f"{_OPERATOR}numRecordsIn": ("Elements read.", lambda node: node.records_in),
    f"{_OPERATOR}numRecordsOut": ("Elements written.", lambda node: node.records_out),
    f"{_OPERATOR}currentInputWatermark": (
        "Watermark, in milliseconds since 1970.",
        lambda node: node.watermark_ms,
    ),
    f"{_OPERATOR}pendingRecords": (
        "Records that the source has not processed yet, if known.",
        lambda node: node.lag.records if node.lag else None,
    ),
    "turnback_source_lag_seconds": (
        "Age of the oldest record that the source has not processed yet.",
        lambda node: node.lag.seconds if node.lag else None,
    ),
    "turnback_source_catch_up_seconds": (
        "Estimated time until the source has caught up, if it is catching up.",
        lambda node: node.lag.catch_up_s if node.lag else None,
    ),
    "turnback_operator_busy_ratio": (
        "Share of the last minute in which the operator's tasks were busy, on average.",
        lambda node: node.load.busy if node.load else None,
    ),
    "turnback_operator_busiest_task_ratio": (
        "Share of the last minute in which the operator's busiest task was busy.",
        lambda node: node.load.busiest if node.load else None,
    ),
    "turnback_operator_skew": (
        "Elements read by the task with the most, as a multiple of the mean.",
        lambda node: node.load.skew if node.load else None,
    ),
    "turnback_operator_left_out": (
        "Elements skipped or dead-lettered because the function failed on them.",
        lambda node: node.left_out,
    ),
    "turnback_source_malformed_records": (
        "Records skipped or dead-lettered because they did not match the schema of the "
        "source, in all attempts.",
        lambda node: node.malformed if node.kind == NodeKind.SOURCE.value else None,
    ),
    "turnback_operator_state_bytes": (
        "Approximate size of the operator's state files.",
        lambda node: node.state_bytes,
    ),
}


def exposition(jobs: Jobs, clock: Clock) -> bytes:
    """Return the metrics of all jobs in Prometheus's text format.

    It is written here: with prometheus_client the text alone took longer than reading the jobs.
    """
    return "".join(_lines(jobs, clock)).encode()


def _lines(jobs: Jobs, clock: Clock) -> Iterator[str]:
    seen = [(job, job.observe()) for job in jobs.all()]
    yield from _states([each.summary for _, each in seen])
    samples = [_read(job, each, clock.now_ms()) for job, each in seen]
    doc = "0 if the job's directory cannot be read."
    readable = (sample is not None for sample in samples)
    labels = (_of_job(each.summary) for _, each in seen)
    yield from _family("turnback_job_readable", doc, zip(labels, readable, strict=True))
    yield from _numbers([sample for sample in samples if sample is not None])


def _states(summaries: Sequence[model.JobSummary]) -> Iterator[str]:
    doc = "Running jobs, including stalled ones."
    running = sum(summary.state in ACTIVE for summary in summaries)
    yield from _family("flink_jobmanager_numRunningJobs", doc, [("", running)])
    states = (
        (f'{of_job},state="{state}"', state == summary.state)
        for summary in summaries
        for of_job in [_of_job(summary)]
        for state in _STATES
    )
    yield from _family("turnback_job_state", "1 for the current state of the job.", states)


def _numbers(samples: Sequence[JobSample]) -> Iterator[str]:
    jobs = [(_of_job(sample.summary), sample) for sample in samples]
    for name, (doc, of_job) in JOB_METRICS.items():
        yield from _family(name, doc, ((labels, of_job(sample)) for labels, sample in jobs))
    nodes = [
        (f"{labels},{_of_node(node)}", node) for labels, sample in jobs for node in sample.operators
    ]
    for name, (doc, of_node) in OPERATOR_METRICS.items():
        values = ((labels, of_node(node)) for labels, node in nodes)
        yield from _family(name, doc, ((at, value) for at, value in values if value is not None))


def _read(job: Job, seen: Observation, now_ms: int) -> JobSample | None:
    """Return one job's sample, `None` if it cannot be read: the others still count."""
    summary = seen.summary
    storage = job.directory.storage
    if summary.state == UNREADABLE:
        return None
    try:
        info = job.directory.attempt(summary.attempt) if summary.attempt is not None else None
        restored = info and (info.checkpoint is not None or info.snapshot is not None)
        failures = job.failures() if summary.state not in ACTIVE else []
        metrics = seen.metrics
        program = job.program()
        return JobSample(
            summary,
            operators(program, metrics, {}) if program is not None else (),
            newest_checkpoint(storage),
            len(metrics.under_way) if seen.alive.has_live_driver else 0,
            # The history forgets, a driver's own counts only grow.
            metrics,
            info.started_ms if info and restored else None,
            failures[0].at_ms if failures else None,
            SavepointCatalog(storage).count(),
            now_ms,
        )
    except TurnbackError as error:
        _LOG.warning("job %r is missing from the metrics: %s", summary.name, error)
        return None


# -- Prometheus's text format


def _family(name: str, doc: str, values: Iterable[tuple[str, float]]) -> Iterator[str]:
    """The lines of one metric: its value for each set of labels."""
    yield f"# HELP {name} {doc}\n# TYPE {name} gauge\n"
    for labels, value in values:
        yield f"{name}{{{labels}}} {float(value)!r}\n" if labels else f"{name} {float(value)!r}\n"


def _of_job(summary: model.JobSummary) -> str:
    return f'job_id="{_escaped(summary.job_id or "")}",job_name="{_escaped(summary.name)}"'


def _of_node(node: model.OperatorNode) -> str:
    return f'operator_id="{_escaped(node.uid)}",operator_name="{_escaped(node.name)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
