"""Endpoints that look into snapshots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from turnback.inspect.model import DiffPage, SnapshotView, StateDiffRow, StatePage
from turnback.storage.envelope import is_id
from turnback.web.endpoint import Call
from turnback.web.errors import Refusal

if TYPE_CHECKING:  # needs Arrow, which is loaded when the first state is looked at
    from turnback.snapshot.snapshot import Snapshot

_CHECKPOINT = re.compile(r"chk-[0-9]{1,18}")


def snapshot(call: Call) -> SnapshotView:
    """Return what is in a snapshot."""
    from turnback.inspect.snapshots import view

    return view(_snapshot(call, call.path["snapshot"]))


def state(call: Call) -> StatePage:
    """Return some rows of a state."""
    from turnback.inspect.browse import page

    query = call.query
    return page(
        _snapshot(call, query["snapshot"]),
        query["uid"],
        query["state"],
        key=query["key"],
        after=query["after"],
        limit=query["limit"],
    )


def diff(call: Call) -> list[StateDiffRow]:
    """Return which states two snapshots of a job have."""
    from turnback.inspect.compare import states

    return states(_snapshot(call, call.query["from"]), _snapshot(call, call.query["to"]))


def diff_state(call: Call) -> DiffPage:
    """Return some differences of a state between two snapshots of a job."""
    from turnback.inspect.compare import page

    query = call.query
    return page(
        _snapshot(call, query["from"]),
        _snapshot(call, query["to"]),
        query["uid"],
        query["state"],
        after_cursor=query["after"],
        limit=query["limit"],
    )


def _snapshot(call: Call, text: str) -> Snapshot:
    """Return a snapshot of the job, by number or id only: a request never names a path."""
    known = text == "latest" or _CHECKPOINT.fullmatch(text) is not None
    if not known and is_id(text):
        known = any(row.id == text for row in call.job.savepoints())
    if not known:
        raise Refusal(
            404,
            f"job {call.job.name!r} has no snapshot {text[:80]!r}: give chk-N, latest or the id of "
            "a savepoint",
        )
    return call.job.snapshot(text)
