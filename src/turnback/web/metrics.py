"""Metrics for Prometheus, under the names that Flink's own reporter gives them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from turnback.core.clock import Clock
from turnback.core.errors import TurnbackError
from turnback.inspect import model
from turnback.inspect.job import Job
from turnback.inspect.jobs import Jobs
from turnback.inspect.summary import UNREADABLE
from turnback.job.liveness import ACTIVE, LOST, STALLED
from turnback.job.status import JobState, Metrics
from turnback.program.graph import NodeKind

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

    detail: model.JobDetail
    checkpoints: list[model.CheckpointRow]
    counts: Metrics
    restored_ms: int | None
    failed_ms: int | None
    savepoints: int
    now_ms: int

    @property
    def in_progress(self) -> int:
        states = [row.status for row in self.checkpoints]
        return states.count(model.CheckpointStatus.IN_PROGRESS)

    @property
    def running_ms(self) -> float:
        started = self.detail.summary.started_ms
        return float(max(0, self.now_ms - started)) if started is not None else 0.0


def _of_newest(value: Callable[[model.CheckpointRow], int | None]) -> Callable[[JobSample], float]:
    def newest(sample: JobSample) -> float:
        # Of the very newest the numbers may not be recorded yet.
        done = (r for r in sample.checkpoints if r.status is model.CheckpointStatus.COMPLETED)
        return float(next((n for row in done if (n := value(row)) is not None), _UNKNOWN))

    return newest


def _uptime(sample: JobSample) -> float:
    state = sample.detail.summary.state
    if state in _ENDED:
        return _UNKNOWN
    return sample.running_ms if state in ACTIVE else 0.0


def _downtime(sample: JobSample) -> float:
    state = sample.detail.summary.state
    if state in _ENDED:
        return _UNKNOWN
    if state in ACTIVE or sample.failed_ms is None:
        return 0.0
    return float(max(0, sample.now_ms - sample.failed_ms))


JOB_METRICS: dict[str, tuple[str, Callable[[JobSample], float]]] = {
    f"{_JOB}totalNumberOfCheckpoints": (
        "Checkpoints that this driver has begun.",
        lambda s: s.counts.completed + s.counts.failed + s.in_progress,
    ),
    f"{_JOB}numberOfCompletedCheckpoints": (
        "Checkpoints that this driver has completed.",
        lambda s: s.counts.completed,
    ),
    f"{_JOB}numberOfFailedCheckpoints": (
        "Checkpoints of this driver that failed.",
        lambda s: s.counts.failed,
    ),
    f"{_JOB}numberOfInProgressCheckpoints": (
        "Checkpoints that are under way.",
        lambda s: s.in_progress,
    ),
    f"{_JOB}lastCheckpointDuration": (
        "Milliseconds that the newest complete checkpoint took.",
        _of_newest(lambda row: row.duration_ms),
    ),
    f"{_JOB}lastCheckpointSize": (
        "Bytes of new files in the newest complete checkpoint.",
        _of_newest(lambda row: row.delta_bytes),
    ),
    f"{_JOB}lastCheckpointFullSize": (
        "Bytes of all files that the newest complete checkpoint needs.",
        _of_newest(lambda row: row.full_bytes),
    ),
    f"{_JOB}lastCompletedCheckpointId": (
        "Number of the newest complete checkpoint.",
        _of_newest(lambda row: row.number),
    ),
    f"{_JOB}lastCheckpointRestoreTimestamp": (
        "When the newest attempt started from a snapshot, in milliseconds since 1970.",
        lambda s: float(s.restored_ms) if s.restored_ms is not None else _UNKNOWN,
    ),
    f"{_JOB}numRestarts": (
        "Restarts since it was started.",
        lambda s: s.detail.summary.restarts,
    ),
    "turnback_job_recent_restarts": (
        "Restarts in the last ten minutes.",
        lambda s: s.detail.summary.recent_restarts,
    ),
    f"{_JOB}fullRestarts": ("The same, by an older name.", lambda s: s.detail.summary.restarts),
    f"{_JOB}uptime": ("Milliseconds since it runs without interruption.", _uptime),
    f"{_JOB}downtime": ("Milliseconds since it does not run.", _downtime),
    f"{_JOB}runningTime": (
        "Milliseconds since it is RUNNING or STALLED.",
        lambda s: s.running_ms if s.detail.summary.state in ACTIVE else 0.0,
    ),
    "turnback_savepoints": ("Savepoints the job has taken.", lambda s: s.savepoints),
    "turnback_job_busy_ratio": (
        "Share of the last minute in which epochs ran.",
        lambda s: s.detail.busy if s.detail.busy is not None else _UNKNOWN,
    ),
    "turnback_job_records_in": (
        "Elements that the sources read since the attempt began.",
        lambda s: s.detail.summary.records_in,
    ),
}

OPERATOR_METRICS: dict[str, tuple[str, Callable[[model.OperatorNode], float | None]]] = {
    f"{_OPERATOR}numRecordsIn": ("Elements read.", lambda node: node.records_in),
    f"{_OPERATOR}numRecordsOut": ("Elements written.", lambda node: node.records_out),
    f"{_OPERATOR}currentInputWatermark": (
        "How far event time has come, in milliseconds since 1970.",
        lambda node: node.watermark_ms,
    ),
    f"{_OPERATOR}pendingRecords": (
        "Records that the source has not processed yet, while that is known.",
        lambda node: node.lag.records if node.lag else None,
    ),
    "turnback_source_lag_seconds": (
        "Age of the oldest record that the source has not processed yet.",
        lambda node: node.lag.seconds if node.lag else None,
    ),
    "turnback_source_catch_up_seconds": (
        "After how long the source will have caught up, if it does.",
        lambda node: node.lag.catch_up_s if node.lag else None,
    ),
    "turnback_operator_busy_ratio": (
        "Share of the last minute in which a task of the operator worked, on average.",
        lambda node: node.load.busy if node.load else None,
    ),
    "turnback_operator_busiest_task_ratio": (
        "The same of its busiest task.",
        lambda node: node.load.busiest if node.load else None,
    ),
    "turnback_operator_skew": (
        "How many times the mean the task with the most elements has read.",
        lambda node: node.load.skew if node.load else None,
    ),
    "turnback_operator_left_out": (
        "Elements at which the function failed, and which were left out.",
        lambda node: node.left_out,
    ),
    "turnback_source_malformed_records": (
        "Records that did not fit the schema of the source and were left out, in all attempts.",
        lambda node: node.malformed if node.kind == NodeKind.SOURCE.value else None,
    ),
    "turnback_operator_state_bytes": (
        "About how much the operator's state takes up in files.",
        lambda node: node.state_bytes,
    ),
}


def exposition(jobs: Jobs, clock: Clock) -> bytes:
    """Return the metrics of all jobs in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Jobs(jobs, clock))
    return generate_latest(registry)


class _Jobs(Collector):
    def __init__(self, jobs: Jobs, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return ()  # registering must not read every job

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = [(job, job.summary()) for job in self._jobs.all()]
        summaries = [summary for _, summary in jobs]
        running = GaugeMetricFamily(
            "flink_jobmanager_numRunningJobs", "Jobs that are running, stalled ones among them."
        )
        running.add_metric((), sum(s.state in ACTIVE for s in summaries))
        yield running
        states = _gauge("turnback_job_state", "1 for the state the job is in.", "state")
        for summary in summaries:
            for state in _STATES:
                labels = (summary.job_id or "", summary.name, state)
                states.add_metric(labels, float(state == summary.state))
        yield states
        readable = _gauge("turnback_job_readable", "0 if the job's directory cannot be read.")
        samples: list[JobSample] = []
        for job, summary in jobs:
            sample = self._read(job, summary)
            readable.add_metric((summary.job_id or "", summary.name), float(sample is not None))
            samples += [sample] if sample is not None else []
        yield readable
        for name, (doc, value) in JOB_METRICS.items():
            family = _gauge(name, doc)
            for sample in samples:
                summary = sample.detail.summary
                family.add_metric((summary.job_id or "", summary.name), value(sample))
            yield family
        yield from _operator_metrics(samples)

    def _read(self, job: Job, summary: model.JobSummary) -> JobSample | None:
        """Return one job's sample, `None` if it cannot be read: the others still count."""
        if summary.state == UNREADABLE:
            return None
        try:
            status = job.directory.status()
            info = job.directory.attempt(summary.attempt) if summary.attempt is not None else None
            restored = info and (info.checkpoint is not None or info.snapshot is not None)
            failures = job.failures() if summary.state not in ACTIVE else []
            return JobSample(
                job.detail(),
                job.newest_checkpoints(),
                # The history forgets, a driver's own counts only grow.
                status.metrics if status is not None else Metrics(),
                info.started_ms if info and restored else None,
                failures[0].at_ms if failures else None,
                len(job.savepoints()),
                self._clock.now_ms(),
            )
        except TurnbackError as error:
            _LOG.warning("job %r is left out of the metrics: %s", summary.name, error)
            return None


def _operator_metrics(samples: list[JobSample]) -> Iterator[GaugeMetricFamily]:
    for name, (doc, value) in OPERATOR_METRICS.items():
        family = _gauge(name, doc, "operator_id", "operator_name")
        for sample in samples:
            summary = sample.detail.summary
            for node in sample.detail.operators:
                number = value(node)
                if number is not None:
                    labels = (summary.job_id or "", summary.name, node.uid, node.name)
                    family.add_metric(labels, number)
        yield family


def _gauge(name: str, doc: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, doc, labels=("job_id", "job_name", *labels))
