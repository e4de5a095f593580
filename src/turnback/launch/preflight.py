"""What would become of a snapshot in a program, found out without running the program's job."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from turnback.core.errors import JobFailedError, TurnbackError
from turnback.job.run import LAUNCH, LAUNCH_VARIABLE, Launch, LaunchMode, RunDirectory

if TYPE_CHECKING:
    from turnback.snapshot.preflight import CheckReport


T = TypeVar("T")
TASK, RESULT = "task.json", "result.json"
_TAIL = 30


class ProgramTask(msgspec.Struct, frozen=True):
    """What to do with a program once it is found: "check", or "commit" or "abort" its sinks' work.

    Attributes:
        kind: What to do.
        force: Do it although the job might run.
    """

    kind: str
    force: bool = False


def preflight(
    script: str,
    args: Sequence[str],
    start_from: str,
    *,
    allow: bool | Sequence[str] = False,
    renames: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    name: str | None = None,
) -> CheckReport:
    """Tell what would happen if a job were started from a snapshot.

    Args:
        script: The program, which is run until it calls `execute`.
        args: Its arguments.
        start_from: The snapshot, as `turnback run -s` takes it.
        allow: State that may be dropped: all of it, or what is named.
        renames: Names in the snapshot to names in the program.
        settings: Configuration keys and values.
        name: Name of the job, instead of the one in the code.

    Raises:
        TurnbackError: The program is wrong, or the snapshot cannot be read.
    """
    from turnback.snapshot.preflight import CheckReport

    launch = Launch(
        script=script,
        arguments=tuple(args),
        directory=str(Path.cwd()),
        mode=LaunchMode.PLAN,
        name=name,
        start_from=start_from,
        allow_non_restored_state=allow if isinstance(allow, bool) else tuple(allow),
        renames=dict(renames or {}),
        settings=dict(settings or {}),
    )
    return with_program(launch, ProgramTask("check"), CheckReport)


def with_program(launch: Launch, task: ProgramTask, result: type[T]) -> T:
    """Run a program in a process of its own until it calls `execute`, and do something with it.

    Raises:
        TurnbackError: What the program or the task raised.
    """
    directory = Path(tempfile.mkdtemp(prefix="turnback-plan-"))
    try:
        run = RunDirectory(directory)
        run.write(LAUNCH, launch)
        run.write(TASK, task)
        done = subprocess.run(
            [sys.executable, "-P", "-m", "turnback.launch.planned", str(directory)],
            cwd=launch.directory,
            env=_environment(directory),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        found = run.read(RESULT, result)
        if found is None:
            raise _failure(run, launch, done.stdout.decode(errors="replace"))
        return found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _environment(directory: Path) -> dict[str, str]:
    return os.environ | {LAUNCH_VARIABLE: str(directory / LAUNCH)}


def _failure(run: RunDirectory, launch: Launch, printed: str) -> TurnbackError:
    told = run.error()
    if told is None:
        return JobFailedError(
            f"{launch.script} ended before it called execute():\n{_tail(printed)}".rstrip()
        )
    return told.rebuilt() or JobFailedError(
        f"{launch.script} failed: {told.kind}: {told.message}\n{_tail(printed)}"
    )


def _tail(printed: str) -> str:
    return "\n".join(f"  {line}" for line in printed.splitlines()[-_TAIL:])
