"""How far a job is with restoring its state, for those who wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnback.cli.context import Cli
from turnback.core.units import format_age
from turnback.errors import StorageError

if TYPE_CHECKING:
    from turnback.cli.output import Output
    from turnback.job.run import RunDirectory
    from turnback.job.status import RestoreProgress

_LOOK_S = 1.0


def restore_text(restore: RestoreProgress | None, out: Output) -> str | None:
    """How far it is, and when it will be done."""
    if restore is None:
        return None
    text = f"{restore.what}: {int(100 * restore.done)} % of about {out.number(restore.entries)}"
    return f"{text} entries{_left(restore)}"


def _left(restore: RestoreProgress) -> str:
    if restore.left_s is None:
        return ""
    return f", done in about {format_age(round(restore.left_s * 1000))}"


@contextmanager
def restore_bar(cli: Cli, directory: RunDirectory) -> Iterator[Callable[[], None]]:
    """Show a bar while a launched job restores, if stderr is a terminal.

    The function it gives moves the bar, and is to be called again and again.
    """
    console = cli.out.stderr()
    if not console.is_terminal or cli.json:
        yield lambda: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, TextColumn("{task.fields[left]}"), transient=True, console=console
    ) as bar:
        task = bar.add_task("", total=1.0, left="", visible=False)
        looked_s = time.monotonic()

        def show() -> None:
            nonlocal looked_s
            if time.monotonic() - looked_s < _LOOK_S:
                return
            looked_s = time.monotonic()
            restore = _restore(directory)
            if restore is None:
                bar.update(task, visible=False)
            else:
                left = _left(restore).removeprefix(", ")
                what = restore.what
                bar.update(task, description=what, completed=restore.done, left=left, visible=True)

        yield show


def _restore(directory: RunDirectory) -> RestoreProgress | None:
    from turnback.launch.runs import job_directory

    job = directory.job()
    try:
        status = None if job is None else job_directory(job).status()
    except StorageError:
        return None  # whether the job starts is what counts
    return None if status is None else status.restore
