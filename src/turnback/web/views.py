"""What endpoints answer, where that takes more than one call of a job."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec

from turnback.config.options import OPTIONS
from turnback.core.ids import is_id
from turnback.operations.deletion import Deleted, dispose
from turnback.views import model
from turnback.views.throughput import ThroughputHistory
from turnback.views.timeline import Timeline
from turnback.web.api import Call, RequestError

if TYPE_CHECKING:  # needs Arrow, which is loaded when the first state is read
    from turnback.snapshot.snapshot import Snapshot

_CHECKPOINT = re.compile(r"chk-[0-9]{1,18}")


class About(model.View, frozen=True):
    """The dashboard itself.

    Attributes:
        read_only: Whether nobody may change anything here.
        authorized: Whether this request carried the token or its cookie.
        needs_token: Whether reading needs the token too, not only changing.
        savepoints_dir: Where savepoints go by default, if that is configured.
        now_ms: The server's clock.
    """

    version: str
    read_only: bool
    authorized: bool
    needs_token: bool
    root: str
    savepoints_dir: str | None
    now_ms: int


class SnapshotRow(model.View, frozen=True):
    """A snapshot that can be read.

    Attributes:
        id: "chk-7", or the savepoint's id.
        kind: "checkpoint" or "savepoint".
        checkpoint: Number of the checkpoint; of a savepoint, the one it was written from.
    """

    id: str
    kind: str
    created_ms: int
    label: str | None
    checkpoint: int
    epoch: int


class DeletedSavepoint(model.View, frozen=True, kw_only=True):
    """A savepoint that is gone."""

    job: str
    id: str
    path: str


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
        needs_token=not site.is_local,
        root=site.jobs.root,
        savepoints_dir=site.savepoints_dir,
        now_ms=site.clock.now_ms(),
    )


def configuration(call: Call) -> list[model.ConfigRow]:
    """Return the configuration of a job, with what each key does."""
    docs = {option.key: option.doc for option in OPTIONS}
    rows = call.job.configuration()
    return [msgspec.structs.replace(row, doc=docs.get(row.key, "")) for row in rows]


def timeline(call: Call) -> Timeline:
    """Return the lives of a job, its ancestors and its forks."""
    return call.site.jobs.timeline(call.job)


def request(call: Call) -> model.RequestRow:
    """Return one request to a job."""
    return call.job.request(call.path["request"])


def snapshots(call: Call) -> list[SnapshotRow]:
    """Return the snapshots of a job that can be read, newest first."""
    rows = [
        SnapshotRow(m.name, "checkpoint", m.created_ms, None, m.number, m.epoch)
        for m in call.job.retained()
    ]
    rows += [
        SnapshotRow(row.id, "savepoint", row.created_ms, row.label, row.checkpoint, row.epoch)
        for row in call.job.savepoints()
        if row.exists is not False
    ]
    # By number, not by the clock; a savepoint comes after the checkpoint it was written from.
    return sorted(rows, key=lambda row: (row.checkpoint, row.kind, row.created_ms), reverse=True)


def snapshot(call: Call) -> model.SnapshotView:
    """Return what is in a snapshot."""
    from turnback.views.snapshots import describe

    return describe(_snapshot(call, call.path["snapshot"]))


def state(call: Call) -> model.StatePage:
    """Return some rows of a state."""
    from turnback.views.browse import page

    query = call.query
    return page(
        _snapshot(call, query["snapshot"]),
        query["uid"],
        query["state"],
        key=query["key"],
        after=query["after"],
        limit=query["limit"],
    )


def key(call: Call) -> model.KeyView:
    """Return what a state holds for a key, at the newest checkpoint of a job."""
    from turnback.views.lookup import look_up

    query = call.query
    return look_up(
        call.job,
        query["uid"],
        query["state"],
        query["key"],
        after=query["after"],
        limit=query["limit"],
    )


def diff(call: Call) -> list[model.StateDiffRow]:
    """Return which states two snapshots of a job have."""
    from turnback.views.compare import states

    return states(_snapshot(call, call.query["from"]), _snapshot(call, call.query["to"]))


def diff_state(call: Call) -> model.DiffPage:
    """Return some differences of a state between two snapshots of a job."""
    from turnback.views.compare import page

    query = call.query
    return page(
        _snapshot(call, query["from"]),
        _snapshot(call, query["to"]),
        query["uid"],
        query["state"],
        after_cursor=query["after"],
        limit=query["limit"],
    )


def checkpoints(call: Call) -> model.CheckpointHistory:
    """Return the checkpoints of a job, the newest of them if so many are not wanted."""
    history = call.job.checkpoints()
    return msgspec.structs.replace(history, rows=history.rows[: call.query["limit"]])


def throughput(call: Call) -> ThroughputHistory:
    """Return how fast a job was in the last minutes."""
    return call.job.throughput(call.query["minutes"])


def delete_job(call: Call, *, savepoints: bool, job_id: str | None) -> Deleted:
    """Delete a job that does not run; one with another id than that is left alone."""
    from turnback.operations import deletion

    if job_id is not None and call.job.info().job_id != job_id:
        raise RequestError(
            409, f"job {call.job.name!r} was started afresh meanwhile: look at it again", "Conflict"
        )
    return deletion.delete_job(call.job, call.site.jobs, savepoints=savepoints)


def delete_savepoint(call: Call) -> DeletedSavepoint:
    """Delete a savepoint of a job, by its whole id only: a request never names a path."""
    from turnback.snapshot.find import load_savepoint

    wanted = call.path["savepoint"]
    row = next((row for row in call.job.savepoints() if row.id == wanted), None)
    if row is None:
        raise RequestError(404, f"job {call.job.name!r} has no savepoint {wanted[:80]!r}")
    dispose(load_savepoint(row.path, call.job.options), call.site.jobs)
    return DeletedSavepoint(job=call.job.name, id=row.id, path=row.path)


def _snapshot(call: Call, text: str) -> Snapshot:
    """Return a snapshot of the job, by number or id only: a request never names a path."""
    known = text == "latest" or _CHECKPOINT.fullmatch(text) is not None
    if not known and is_id(text):
        known = any(row.id == text for row in call.job.savepoints())
    if not known:
        raise RequestError(
            404,
            f"job {call.job.name!r} has no snapshot {text[:80]!r}: give chk-N, latest or the id of "
            "a savepoint",
        )
    return call.job.snapshot(text)
