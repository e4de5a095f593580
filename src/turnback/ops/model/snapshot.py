"""What is in a snapshot."""

from __future__ import annotations

from typing import Any

from turnback.ops.model.job import OperatorNode
from turnback.ops.model.view import View


class StateRow(View, frozen=True, kw_only=True):
    """A state in a snapshot; `rows` and `bytes` where they are known."""

    uid: str
    name: str
    kind: str
    key_type: str
    map_key_type: str | None
    value_type: str
    rows: int | None
    bytes: int | None


class SnapshotView(View, frozen=True, kw_only=True):
    """A checkpoint or a savepoint.

    Attributes:
        id: "chk-7", or the savepoint's id.
        kind: "checkpoint" or "savepoint".
        location: Where it is.
        job: The job that took it.
        job_id: That job's identity.
        attempt: The attempt that took it.
        checkpoint: The number of the checkpoint.
        epoch: The last epoch in it.
        created_ms: When.
        trigger: Why it was taken.
        format: canonical or native, of a savepoint.
        label: A short name.
        note: Why it was taken.
        drained: Whether event time has come to its end in it.
        max_parallelism: Number of key groups.
        bytes: Size of all its files.
        files: Number of them.
        sources: Spark's offset of each source, as JSON.
        operators: Uid, name, kind and parallelism of the program's operators.
        states: Its states.
        transactions: Prepared sink transactions in it, by sink uid.
        started_from: Where the job itself came from.
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
    started_from: str | None


class StatePage(View, frozen=True, kw_only=True):
    """Some rows of a state.

    Attributes:
        uid: The operator.
        name: The state.
        columns: Names of the columns: key, then position or map_key if there is one, then value.
        rows: Their values, in a form that JSON can hold.
        next: What to ask for to see more; None at the end.
        scanned: Rows that were read to find these.
    """

    uid: str
    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    next: str | None
    scanned: int
