"""The API as one table, and the OpenAPI document made from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

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
from turnback.job.request import RequestKind
from turnback.web import views
from turnback.web.api import PREFIX, Call, Endpoint, Parameter
from turnback.web.model import (
    About,
    CancelBody,
    ErrorAnswer,
    LogTail,
    SavepointBody,
    SnapshotRow,
    StopBody,
)

_JOB = "/jobs/{job}"
_FROM = Parameter("from", "the earlier snapshot: chk-N, latest or a savepoint's id", required=True)
_TO = Parameter("to", "the later snapshot, likewise", required=True)
_UID = Parameter("uid", "the operator's uid", required=True)
_STATE = Parameter("state", "the state's name", required=True)
_AFTER = Parameter("after", "`next` of the page before")
_LIMIT = Parameter("limit", "rows at most", int, least=1, most=1_000, default=50)
_REF = "#/components/schemas/{name}"
_JSON = "application/json"


def _take_savepoint(call: Call) -> RequestRow:
    body = call.body
    return call.job.submit(
        RequestKind.SAVEPOINT, label=body.label, note=body.note, format=body.format
    )


def _stop(call: Call) -> RequestRow:
    return call.job.submit(RequestKind.STOP, savepoint=call.body.savepoint, drain=call.body.drain)


def _cancel(call: Call) -> RequestRow:
    return call.job.submit(RequestKind.CANCEL, savepoint=call.body.savepoint)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/about", "This dashboard.", About, views.about),
    Endpoint("GET", "/jobs", "All jobs.", list[JobSummary], lambda call: call.site.jobs.list()),
    Endpoint("GET", _JOB, "A job and its graph.", JobDetail, lambda call: call.job.detail()),
    Endpoint(
        "GET",
        f"{_JOB}/checkpoints",
        "The checkpoints of a job, with a summary.",
        CheckpointHistory,
        lambda call: call.job.checkpoints(),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/savepoints",
        "The savepoints of a job, newest first.",
        list[SavepointRow],
        lambda call: call.job.savepoints(),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/configuration",
        "What a job runs with, and where each value comes from.",
        list[ConfigRow],
        views.configuration,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/exceptions",
        "What went wrong with a job, newest first.",
        list[FailureRow],
        lambda call: call.job.failures(),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/timeline",
        "The attempts and savepoints of a job, its ancestors and its forks.",
        Timeline,
        lambda call: call.site.jobs.timeline(call.job),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/requests",
        "What was asked of a job, newest first.",
        list[RequestRow],
        lambda call: call.job.requests(),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/requests/{{request}}",
        "One thing that was asked of a job: how far it has got, how it ended.",
        RequestRow,
        lambda call: call.job.request(call.path["request"]),
    ),
    Endpoint(
        "POST",
        f"{_JOB}/savepoint",
        "Ask for a savepoint in the configured directory.",
        RequestRow,
        _take_savepoint,
        body=SavepointBody,
        status=202,
    ),
    Endpoint(
        "POST",
        f"{_JOB}/stop",
        "Ask a job to stop; with a savepoint as configured, unless it says otherwise.",
        RequestRow,
        _stop,
        body=StopBody,
        status=202,
    ),
    Endpoint(
        "POST",
        f"{_JOB}/cancel",
        "Ask a job to cancel.",
        RequestRow,
        _cancel,
        body=CancelBody,
        status=202,
    ),
    Endpoint(
        "GET",
        "/savepoints",
        "The savepoints of all jobs, newest first.",
        list[SavepointRow],
        lambda call: call.site.jobs.savepoints(),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/snapshots",
        "The snapshots of a job that can be looked into, newest first.",
        list[SnapshotRow],
        views.snapshots,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/snapshots/{{snapshot}}",
        "What is in a snapshot: chk-N, latest or a savepoint's id.",
        SnapshotView,
        views.snapshot,
    ),
    Endpoint(
        "GET",
        f"{_JOB}/state",
        "Some rows of a state in a snapshot.",
        StatePage,
        views.state,
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
        views.diff,
        query=(_FROM, _TO),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/diff/state",
        "Some differences of a state between two snapshots of a job.",
        DiffPage,
        views.diff_state,
        query=(_FROM, _TO, _UID, _STATE, _AFTER, _LIMIT),
    ),
    Endpoint(
        "GET",
        f"{_JOB}/log",
        "The end of the driver's log, if that is on this machine.",
        LogTail,
        views.log,
        query=(Parameter("lines", "lines at most", int, least=1, most=5_000, default=200),),
    ),
)


def openapi(endpoints: Sequence[Endpoint], root_path: str = "") -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the API."""
    types = [e.answer for e in endpoints] + [e.body for e in endpoints if e.body] + [ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    answers = schemas[: len(endpoints)]
    bodies = dict(zip((e for e in endpoints if e.body), schemas[len(endpoints) :], strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint, answer in zip(endpoints, answers, strict=True):
        operation = _operation(endpoint, answer, bodies.get(endpoint))
        paths.setdefault(PREFIX + endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Turnback",
            "version": views.version(),
            "description": (
                "What the dashboard shows and does. Times are milliseconds since 1970, sizes are "
                "bytes. Whatever changes something needs the token."
            ),
        },
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    endpoint: Endpoint, answer: dict[str, Any], body: dict[str, Any] | None
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "summary": endpoint.doc,
        "parameters": [_in_path(name) for name in endpoint.names]
        + [_in_query(parameter) for parameter in endpoint.query],
        "responses": {
            str(endpoint.status): {"description": "Done.", "content": {_JSON: {"schema": answer}}},
            "default": {
                "description": "What went wrong.",
                "content": {_JSON: {"schema": {"$ref": _REF.format(name="ErrorAnswer")}}},
            },
        },
        # Reads need it only where other machines get in.
        "security": [{"token": []}] if endpoint.method == "POST" else [{}, {"token": []}],
    }
    if body is not None:
        operation["requestBody"] = {"required": False, "content": {_JSON: {"schema": body}}}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = [part.strip("{}") for part in endpoint.path.split("/") if part]
    return "-".join([endpoint.method.lower(), *words])


def _in_path(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "percent-encoded, slashes too",
        "schema": {"type": "string"},
    }


def _in_query(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if parameter.type is int:
        schema = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
        if parameter.default is not None:
            schema["default"] = parameter.default
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "description": parameter.doc,
        "schema": schema,
    }
