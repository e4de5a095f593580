"""Runs a program until it calls `execute`, to check or settle something with what it has built.

The program runs in a process of its own, whose main module is this one. Its job is not started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from turnback.core.masking import mask_text
from turnback.errors import JobFailedError, TurnbackError
from turnback.job.run import LAUNCH, LAUNCH_VARIABLE, Launch, RunDirectory, RunError
from turnback.launch.program import run_script

if TYPE_CHECKING:
    from turnback.api.environment import ProgramPlanned
    from turnback.operations.compaction import CompactedTables
    from turnback.operations.transactions import Settled
    from turnback.sinks.base import Sink
    from turnback.snapshot.preflight import CheckReport


T = TypeVar("T")
_RESULT = "result.json"
_FORCE = "--force"
_DRY_RUN = "--dry-run"
_TAIL = 30


def with_program(
    launch: Launch, task: str, result: type[T], *, force: bool = False, words: Sequence[str] = ()
) -> T:
    """Run a program until it calls `execute`, and do a task with it; raises what either raised.

    The task is to "check" it, to "commit" or "abort" the work of its sinks (with `force`, also if
    the job might run), or to "compact" its tables: `words` may be --dry-run and the uid of a sink.
    """
    with tempfile.TemporaryDirectory(prefix="turnback-plan-", ignore_cleanup_errors=True) as path:
        run = RunDirectory(path)
        run.write(LAUNCH, launch)
        words = [path, task, *((_FORCE,) if force else ()), *words]
        printed = subprocess.run(
            [sys.executable, "-P", "-m", "turnback.launch.preflight", *words],
            cwd=launch.directory,
            env=os.environ | {LAUNCH_VARIABLE: str(run.path / LAUNCH)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        ).stdout.decode(errors="replace")
        answer = run.read(_RESULT, result)
        if answer is None:
            raise _failure(run, launch, printed)
        return answer


def _failure(run: RunDirectory, launch: Launch, printed: str) -> TurnbackError:
    tail = "\n".join(f"  {line}" for line in printed.splitlines()[-_TAIL:])
    error = run.error()
    if error is None:
        return JobFailedError(f"{launch.script} ended before it called execute():\n{tail}".rstrip())
    return error.rebuilt() or JobFailedError(
        f"{launch.script} failed: {error.kind}: {error.message}\n{tail}"
    )


# -- in the process of the program; what only it needs is imported there


def _check(program: ProgramPlanned) -> CheckReport:
    from turnback.job.directory import JobDirectory
    from turnback.snapshot.find import locate
    from turnback.snapshot.preflight import check
    from turnback.spark.sources import stream_counts
    from turnback.state.files import StorageRef

    spec = program.spec
    directory = JobDirectory.locate(spec.root, spec.name, spec.storage_options)
    job = StorageRef(directory.storage.uri, spec.storage_options, spec.inline)
    snapshot = locate("latest" if spec.start.start_from is None else spec.start.start_from, job)
    allow = spec.start.allow_non_restored_state
    streams = stream_counts(program.plan)
    return check(program.plan, snapshot, spec.start.renames, allow, streams)


def _settle(program: ProgramPlanned, action: str, force: bool) -> Settled:
    from turnback.operations.transactions import Action, settle
    from turnback.views.jobs import Jobs

    spec = program.spec
    job = Jobs(spec.root, spec.storage_options).get(spec.name)
    return settle(job, Action(action), _sinks(program), force=force)


def _do(
    program: ProgramPlanned, task: str, words: Sequence[str]
) -> CheckReport | Settled | CompactedTables:
    if task == "check":
        return _check(program)
    if task == "compact":
        return _compact(program, words)
    return _settle(program, task, _FORCE in words)


def _compact(program: ProgramPlanned, words: Sequence[str]) -> CompactedTables:
    from turnback.operations.compaction import compact
    from turnback.views.jobs import Jobs

    spec = program.spec
    job = Jobs(spec.root, spec.storage_options).get(spec.name)
    uid = next((word for word in words if word != _DRY_RUN), None)
    return compact(job, uid, _sinks(program), dry_run=_DRY_RUN in words)


def _sinks(program: ProgramPlanned) -> dict[str, Sink]:
    from turnback.plan.graph import NodeKind

    operators = program.plan.operators()
    return {op.uid: op.function for op in operators if op.kind is NodeKind.SINK}


def main(path: str, task: str, *words: str) -> int:
    """Do a task with the program that the launch in a directory names."""
    from turnback.api.environment import ProgramPlanned

    run = RunDirectory(path)
    launch = run.launch()
    try:
        try:
            run_script(launch)
        except ProgramPlanned as program:
            run.write(_RESULT, _do(program, task, words))
            return 0
    except Exception as error:
        run.set_error(RunError(type(error).__name__, mask_text(str(error))))
        raise
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
