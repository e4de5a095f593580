"""Runs a program until it calls `execute`, to check or settle something with what it has built.

The program runs in a process of its own, whose main module is this one. Its job is not started.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from turnback.core.errors import JobFailedError, TurnbackError
from turnback.job.run import LAUNCH, LAUNCH_VARIABLE, Launch, RunDirectory, RunError

if TYPE_CHECKING:
    from turnback.api.launched import ProgramFound
    from turnback.inspect.transactions import Settled
    from turnback.snapshot.preflight import CheckReport


T = TypeVar("T")
TASK, RESULT = "task.json", "result.json"
_TAIL = 30


class ProgramTask(msgspec.Struct, frozen=True):
    """What to do with a program: "check" it, or "commit" or "abort" the work of its sinks.

    `force`: also if the job might run.
    """

    kind: str
    force: bool = False


def with_program(launch: Launch, task: ProgramTask, result: type[T]) -> T:
    """Run a program until it calls `execute`, and do a task with it; raises what either raised."""
    with tempfile.TemporaryDirectory(prefix="turnback-plan-", ignore_cleanup_errors=True) as path:
        run = RunDirectory(path)
        run.write(LAUNCH, launch)
        run.write(TASK, task)
        printed = subprocess.run(
            [sys.executable, "-P", "-m", "turnback.launch.preflight", path],
            cwd=launch.directory,
            env=os.environ | {LAUNCH_VARIABLE: str(run.path / LAUNCH)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        ).stdout.decode(errors="replace")
        answer = run.read(RESULT, result)
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


def _check(program: ProgramFound) -> CheckReport:
    from turnback.job.directory import JobDirectory
    from turnback.snapshot.find import locate
    from turnback.snapshot.preflight import check
    from turnback.spark.sources import stream_counts
    from turnback.state.files import StorageRef

    spec = program.spec
    directory = JobDirectory.locate(spec.root, spec.name, spec.storage_options)
    job = StorageRef(directory.storage.uri, spec.storage_options, spec.inline)
    snapshot = locate("latest" if spec.start_from is None else spec.start_from, job)
    allow, streams = spec.allow_non_restored_state, stream_counts(program.plan)
    return check(program.plan, snapshot, spec.renames, allow, streams)


def _settle(program: ProgramFound, task: ProgramTask) -> Settled:
    from turnback.inspect.jobs import Jobs
    from turnback.inspect.transactions import Action, settle
    from turnback.program.graph import NodeKind

    spec, operators = program.spec, program.plan.operators()
    job = Jobs(spec.root, spec.storage_options).get(spec.name)
    sinks = {op.uid: op.function for op in operators if op.kind is NodeKind.SINK}
    return settle(job, Action(task.kind), sinks, force=task.force)


def main(path: str) -> int:
    """Do the task in a directory with the program it names."""
    from turnback.api.launched import ProgramFound

    run = RunDirectory(path)
    launch, task = run.launch(), run.read(TASK, ProgramTask)
    assert task is not None
    sys.argv = [launch.script, *launch.arguments]
    sys.path.insert(0, str(Path(launch.script).parent))
    try:
        try:
            runpy.run_path(launch.script, run_name="__main__")
        except ProgramFound as program:
            run.write(RESULT, _check(program) if task.kind == "check" else _settle(program, task))
            return 0
    except Exception as error:
        run.set_error(RunError(type(error).__name__, str(error)))
        raise
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
