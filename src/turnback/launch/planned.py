"""A program that runs another until that calls `execute`; see `preflight`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turnback.api.launched import ProgramFound
from turnback.inspect.jobs import Jobs
from turnback.inspect.transactions import Action, settle
from turnback.job.directory import JobDirectory
from turnback.job.run import LAUNCH, Launch, RunDirectory, RunError
from turnback.launch.preflight import RESULT, TASK, ProgramTask
from turnback.program.graph import NodeKind
from turnback.snapshot.find import locate
from turnback.snapshot.preflight import check
from turnback.spark.sources import stream_counts
from turnback.state.files import StorageRef


def _check(found: ProgramFound, task: ProgramTask) -> Any:
    spec = found.spec
    directory = JobDirectory.locate(spec.root, spec.name, spec.storage_options)
    job = StorageRef(directory.storage.uri, spec.storage_options, spec.inline)
    snapshot = locate("latest" if spec.start_from is None else spec.start_from, job)
    allow, streams = spec.allow_non_restored_state, stream_counts(found.plan)
    return check(found.plan, snapshot, spec.renames, allow, streams)


def _settle(found: ProgramFound, task: ProgramTask) -> Any:
    spec, operators = found.spec, found.plan.operators()
    job = Jobs(spec.root, spec.storage_options).get(spec.name)
    sinks = {op.uid: op.function for op in operators if op.kind is NodeKind.SINK}
    return settle(job, Action(task.kind), sinks, force=task.force)


_TASKS: dict[str, Callable[[ProgramFound, ProgramTask], Any]] = {
    "check": _check,
    "commit": _settle,
    "abort": _settle,
}


def main(path: str) -> int:
    """Do the task in a directory with the program it names."""
    run = RunDirectory(path)
    launch, task = run.read(LAUNCH, Launch), run.read(TASK, ProgramTask)
    assert launch is not None and task is not None
    sys.argv = [launch.script, *launch.arguments]
    sys.path.insert(0, str(Path(launch.script).parent))
    try:
        runpy.run_path(launch.script, run_name="__main__")
    except ProgramFound as found:
        return _do(run, found, task)
    except Exception as error:
        run.set_error(RunError(type(error).__name__, str(error)))
        raise
    return 1


def _do(run: RunDirectory, found: ProgramFound, task: ProgramTask) -> int:
    try:
        run.write(RESULT, _TASKS[task.kind](found, task))
    except Exception as error:
        run.set_error(RunError(type(error).__name__, str(error)))
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
