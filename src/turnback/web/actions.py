"""Endpoints that ask something of a job. They write a request; the driver does the work."""

from __future__ import annotations

from turnback.inspect.model import RequestRow
from turnback.job.request import RequestKind
from turnback.web.endpoint import Call


def savepoint(call: Call) -> RequestRow:
    """Ask for a savepoint in the configured directory."""
    body = call.body
    return call.job.ask(RequestKind.SAVEPOINT, label=body.label, note=body.note, format=body.format)


def stop(call: Call) -> RequestRow:
    """Ask the job to stop."""
    return call.job.ask(RequestKind.STOP, savepoint=call.body.savepoint, drain=call.body.drain)


def cancel(call: Call) -> RequestRow:
    """Ask the job to cancel."""
    return call.job.ask(RequestKind.CANCEL, savepoint=call.body.savepoint)
