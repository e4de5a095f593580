"""The API as one table: routes and documentation are made from it."""

from __future__ import annotations

from turnback.inspect.model import (
    CheckpointHistory,
    ConfigRow,
    DiffPage,
    FailureRow,
    JobDetail,
    JobSummary,
    RequestRow,
    SavepointRow,
    SnapshotView,
    StateDiffRow,
    StatePage,
)
from turnback.inspect.timeline import Timeline
from turnback.web import actions, logtail, reads, states
from turnback.web.endpoint import Endpoint, Parameter
from turnback.web.model import About, CancelBody, LogTail, SavepointBody, SnapshotRow, StopBody

_JOB = "/jobs/{job}"
_FROM = Parameter("from", "the earlier snapshot: chk-N, latest or a savepoint's id", required=True)
_TO = Parameter("to", "the later snapshot, likewise", required=True)
_UID = Parameter("uid", "the operator's uid", required=True)
_STATE = Parameter("state", "the state's name", required=True)
_AFTER = Parameter("after", "`next` of the page before")
_LIMIT = Parameter("limit", "rows at most", int, least=1, most=1_000, default=50)

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/about", "This dashboard.", About, reads.about),
    Endpoint("GET", "/jobs", "All jobs.", list[JobSummary], reads.jobs),
    Endpoint("GET", _JOB, "A job and its graph.", JobDetail, reads.job),
    Endpoint(
        "GET",
        f"{_JOB}/checkpoints",
        "The checkpoints of a job, with a summary.",
        CheckpointHistory,
        reads.checkpoints,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/savepoints",
        "The savepoints of a job, newest first.",
        list[SavepointRow],
        reads.savepoints,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/configuration",
        "What a job runs with, and where each value comes from.",
        list[ConfigRow],
        reads.configuration,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/exceptions",
        "What went wrong with a job, newest first.",
        list[FailureRow],
        reads.exceptions,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/timeline",
        "The attempts and savepoints of a job, its ancestors and its forks.",
        Timeline,
        reads.timeline,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/requests",
        "What was asked of a job, newest first.",
        list[RequestRow],
        reads.requests,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/requests/{{request}}",
        "One thing that was asked of a job: how far it has got, how it ended.",
        RequestRow,
        reads.request,
    ),
    Endpoint(
        "POST",
        f"{_JOB}/savepoint",
        "Ask for a savepoint in the configured directory.",
        RequestRow,
        actions.savepoint,
        body=SavepointBody,
        status=202,
    ),
    Endpoint(
        "POST",
        f"{_JOB}/stop",
        "Ask a job to stop; with a savepoint as configured, unless it says otherwise.",
        RequestRow,
        actions.stop,
        body=StopBody,
        status=202,
    ),
    Endpoint(
        "POST",
        f"{_JOB}/cancel",
        "Ask a job to cancel.",
        RequestRow,
        actions.cancel,
        body=CancelBody,
        status=202,
    ),
    Endpoint(
        "GET",
        "/savepoints",
        "The savepoints of all jobs, newest first.",
        list[SavepointRow],
        reads.all_savepoints,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/snapshots",
        "The snapshots of a job that can be looked into, newest first.",
        list[SnapshotRow],
        reads.snapshots,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/snapshots/{{snapshot}}",
        "What is in a snapshot: chk-N, latest or a savepoint's id.",
        SnapshotView,
        states.snapshot,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/state",
        "Some rows of a state in a snapshot.",
        StatePage,
        states.state,
        query=(
            Parameter("snapshot", "chk-N, latest or a savepoint's id", required=True),
            _UID,
            _STATE,
            Parameter("key", "only rows of this key, written in the key's type"),
            _AFTER,
            _LIMIT,
        ),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/diff",
        "Which states two snapshots of a job have.",
        list[StateDiffRow],
        states.diff,
        query=(_FROM, _TO),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/diff/state",
        "Some differences of a state between two snapshots of a job.",
        DiffPage,
        states.diff_state,
        query=(_FROM, _TO, _UID, _STATE, _AFTER, _LIMIT),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/log",
        "The end of the driver's log, if that is on this machine.",
        LogTail,
        logtail.log,
        query=(Parameter("lines", "lines at most", int, least=1, most=5_000, default=200),),
    ),
)
