"""How far sources are behind, and how busy operators are, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnback.cli.output import Output
from turnback.core.units import format_age

if TYPE_CHECKING:
    from turnback.job.status import Lag, OperatorLoad
    from turnback.views import model


def short_lag(lag: Lag | None, out: Output) -> str | None:
    """How far behind, as a table has room for it: `1,200 (40 s)`."""
    if lag is None or (lag.records is None and lag.seconds is None):
        return None
    age = None if lag.seconds is None else format_age(round(lag.seconds * 1000))
    if lag.records is None:
        return age
    return f"{out.number(lag.records)} ({age})" if lag.records and age else out.number(lag.records)


def lag_text(lag: Lag | None, out: Output) -> str | None:
    """How far behind, and when that will be over."""
    if lag is None:
        return None
    if lag.records == 0:
        return "none"
    parts = [] if lag.records is None else [f"{out.number(lag.records)} records"]
    if lag.seconds is not None:
        parts.append(f"the oldest is {format_age(round(lag.seconds * 1000))} old")
    if lag.catch_up_s is not None:
        parts.append(f"gone in about {format_age(round(lag.catch_up_s * 1000))} at this rate")
    elif lag.change_per_s is not None:
        parts.append("not getting smaller")
    return ", ".join(parts) or "unknown"


def percent(share: float | None) -> str | None:
    """A share from 0 to 1 as `62%`."""
    return None if share is None else f"{share:.0%}"


def skew_text(load: OperatorLoad | None) -> str | None:
    """How unevenly work is divided: `4.1 (task 3)`."""
    if load is None or load.skew is None:
        return None
    return f"{load.skew:.1f} (task {load.skewed})"


def busy_text(detail: model.JobDetail) -> str | None:
    """For how much of the time the job works, and where."""
    if detail.busy is None:
        return None
    text = f"{detail.busy:.0%} of the last minute"
    loads = {node.uid: node.load for node in detail.operators}
    load = loads.get(detail.bottleneck or "")
    return text if load is None else f"{text}, most in {detail.bottleneck} ({load.busiest:.0%})"
