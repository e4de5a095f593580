"""What a shell offers when TAB is pressed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import typer

from turnback.cli.verb import Shared
from turnback.core.errors import TurnbackError


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of jobs."""
    return sorted(name for name in _names(ctx) if name.startswith(incomplete))


def complete_snapshot(ctx: typer.Context, incomplete: str) -> list[str]:
    """``JOB@latest``, ``JOB@chk-7`` and the labels of savepoints."""
    job, at, _ = incomplete.partition("@")
    if not at:
        return [f"{name}@latest" for name in complete_job(ctx, incomplete)]
    offered: list[str] = []
    # A shell has no place for an error; offering nothing is all that can be done.
    with suppress(TurnbackError):
        found = _cli(ctx).jobs.get(job)
        offered = ["latest"]
        offered += [f"chk-{row.number}" for row in found.checkpoints().rows if row.path]
        offered += [row.label or row.id for row in found.savepoints()]
    return [text for text in (f"{job}@{name}" for name in offered) if text.startswith(incomplete)]


def _names(ctx: typer.Context) -> Iterator[str]:
    with suppress(TurnbackError):
        yield from _cli(ctx).jobs.names()


def _cli(ctx: typer.Context) -> Any:
    """The context of the command, from as much of it as has been typed."""
    parent = ctx.parent
    before = parent.obj if parent is not None and isinstance(parent.obj, Shared) else None
    said = dict(parent.params) if parent is not None and before is None else {}
    shared = before or Shared(root=said.get("root"), settings=tuple(said.get("settings") or ()))
    params = ctx.params
    return shared.make(params.get("root"), params.get("settings"), False, False, False)
