"""Endpoints that show jobs and their history."""

from __future__ import annotations

from functools import cache
from importlib import metadata

import msgspec

from turnback.inspect.model import (
    CheckpointHistory,
    ConfigRow,
    FailureRow,
    JobDetail,
    JobSummary,
    RequestRow,
    SavepointRow,
)
from turnback.inspect.timeline import Timeline
from turnback.web.endpoint import Call
from turnback.web.model import About, SnapshotRow


@cache
def version() -> str:
    """Return the version of Turnback that is installed."""
    return metadata.version("turnback")


def about(call: Call) -> About:
    """Return what this dashboard is."""
    site = call.site
    return About(
        version=version(),
        read_only=site.read_only,
        authorized=call.authorized,
        needs_token=not site.loopback,
        root=site.jobs.root,
        savepoints_dir=site.savepoints_dir,
        now_ms=site.clock.now_ms(),
    )


def jobs(call: Call) -> list[JobSummary]:
    """Return all jobs."""
    return call.site.jobs.list()


def job(call: Call) -> JobDetail:
    """Return one job with its graph."""
    return call.job.detail()


def checkpoints(call: Call) -> CheckpointHistory:
    """Return the checkpoints of a job."""
    return call.job.checkpoints()


def savepoints(call: Call) -> list[SavepointRow]:
    """Return the savepoints of a job."""
    return call.job.savepoints()


def all_savepoints(call: Call) -> list[SavepointRow]:
    """Return the savepoints of all jobs."""
    return call.site.jobs.savepoints()


def configuration(call: Call) -> list[ConfigRow]:
    """Return what a job runs with, and what each key does."""
    docs = call.site.docs
    return [
        row if row.doc else msgspec.structs.replace(row, doc=docs.get(row.key, ""))
        for row in call.job.configuration()
    ]


def exceptions(call: Call) -> list[FailureRow]:
    """Return what went wrong with a job."""
    return call.job.failures()


def timeline(call: Call) -> Timeline:
    """Return the lives of a job and of its relatives."""
    return call.site.jobs.timeline(call.job)


def requests(call: Call) -> list[RequestRow]:
    """Return what was asked of a job."""
    return call.job.requests()


def request(call: Call) -> RequestRow:
    """Return one thing that was asked of a job."""
    return call.job.request(call.path["request"])


def snapshots(call: Call) -> list[SnapshotRow]:
    """Return the snapshots of a job that can be looked into, newest first."""
    rows = [
        SnapshotRow(
            id=manifest.name,
            kind="checkpoint",
            created_ms=manifest.created_ms,
            label=None,
            checkpoint=manifest.number,
            epoch=manifest.epoch,
        )
        for manifest in call.job.retained()
    ]
    rows += [
        SnapshotRow(
            id=row.id,
            kind="savepoint",
            created_ms=row.created_ms,
            label=row.label,
            checkpoint=row.checkpoint,
            epoch=row.epoch,
        )
        for row in call.job.savepoints()
        if row.exists is not False
    ]
    # By number, not by the clock; a savepoint comes after the checkpoint it was written from.
    return sorted(rows, key=lambda row: (row.checkpoint, row.kind, row.created_ms), reverse=True)
