"""What a job's state holds for one key, for people and programs that speak JSON."""

from __future__ import annotations

from turnback.snapshot import lookup
from turnback.state.files import StorageRef
from turnback.state.schema import LIST_KINDS
from turnback.views.browse import StateRows
from turnback.views.job import Job
from turnback.views.model import KeyView
from turnback.views.text import parse_key


def look_up(
    job: Job,
    uid: str,
    name: str,
    key: str,
    *,
    after: str | None = None,
    limit: int | None = None,
) -> KeyView:
    """Return what a state holds for a key, which is written as `parse_key` says.

    It is as of the newest checkpoint, and the job does not notice. For `after` and `limit`, and for
    what is raised, see `snapshot.lookup.look_up`.
    """
    found = lookup.look_up(
        job.directory,
        StorageRef(job.directory.storage.uri, job.options),
        uid,
        name,
        lambda schema: parse_key(key, schema.key.type_infos()),
        job.now_ms(),
        after,
        limit,
    )
    state = StateRows(found.snapshot, uid, name)
    rows = [row[1:] for row in state.formatted(state.codec.to_typed(found.rows), full=True)]
    if state.schema.kind in LIST_KINDS:
        rows = [(position, *row[1:]) for position, row in enumerate(rows, found.first)]
    return KeyView(
        uid=uid,
        name=name,
        kind=state.schema.kind,
        key=key,
        found=bool(rows),
        columns=state.columns[1:],
        rows=tuple(rows),
        next=None if found.next is None else found.next.text(),
        snapshot=found.snapshot.name,
        epoch=found.snapshot.epoch,
        created_ms=found.snapshot.created_ms,
    )
