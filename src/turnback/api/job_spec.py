"""What the configuration says about how a job is run."""

from __future__ import annotations

import logging
from datetime import datetime
from os import PathLike
from typing import TypedDict

from turnback.api.checkpoint_config import Duration
from turnback.config.checkpointing import CheckpointSettings, CheckpointStorage
from turnback.config.configuration import Configuration, job_root, state_backend, storage_options
from turnback.config.restart import choose_restart
from turnback.config.savepoints import SavepointSettings
from turnback.config.watchdog import AlertSettings, WatchdogSettings
from turnback.connectors.registry import sink_from_description
from turnback.core.errors import ConfigurationError
from turnback.driver.job import ClaimMode, JobSpec
from turnback.job.hooks import check_command
from turnback.job.started import StartedProgram
from turnback.job.status import ProgramSetting
from turnback.plan.graph import NodeKind
from turnback.plan.plan import Plan
from turnback.snapshot.matching import Allowed, Renames

_LOG = logging.getLogger(__name__)
_AT_MOST_ONCE = (
    "no checkpoints are taken, so it is at-most-once: what is in flight when the job dies is gone. "
    "Call enable_checkpointing(...) for more"
)


class ExecuteOptions(TypedDict, total=False):
    """The options of `StreamExecutionEnvironment.execute`, which are those of `execute_async`."""

    bounded: bool | None
    end_event_time: bool
    start_from: str | int | PathLike[str] | datetime | None
    fresh: bool
    allow_non_restored_state: Allowed
    renames: Renames | None
    fork: bool
    allow_pickled_state: bool
    take_over_sinks: bool
    claim_mode: ClaimMode
    epoch_interval: Duration


def job_spec(name: str, configuration: Configuration) -> JobSpec:
    """How a job is run by the configuration alone."""
    settings = CheckpointSettings.from_configuration(configuration.raw)
    backend, storage = state_backend(configuration)
    inline = storage is CheckpointStorage.JOBMANAGER
    root = job_root(configuration)
    return JobSpec(
        name=name,
        root=_in_memory(root) if inline else root,
        started=StartedProgram.of_process(root),
        settings=settings,
        restart=choose_restart(configuration.raw, settings.enabled),
        same_error_limit=configuration.value("execution.same-error-limit"),
        backend=backend,
        inline=inline,
        savepoints=SavepointSettings.from_configuration(configuration.raw),
        watchdog=WatchdogSettings.from_configuration(configuration.raw),
        alerts=AlertSettings.from_configuration(configuration.raw),
        storage_options=storage_options(configuration),
        rebuild_sink=sink_from_description,
        local_dir=configuration.value("state.backend.local-dir"),
        program_settings=tuple(
            ProgramSetting(key=entry.key, value=entry.value_text or "", origin=entry.origin)
            for entry in configuration.entries()
            if entry.value_text is not None
        ),
    )


def _in_memory(root: str) -> str:
    """Where the jobs of a directory are in this process's memory: two directories, two places."""
    return f"memory://jobs/{root.replace('://', '/').strip('/')}"


def check_job(program: Plan, spec: JobSpec) -> None:
    """Refuse what can be seen not to work before anything runs."""
    _check_guarantees(program, spec)
    try:
        check_command(spec.alerts)
    except ConfigurationError as error:
        if not spec.resumed:
            raise
        _LOG.warning("job %r: %s", spec.name, error)  # it ran before, and is to go on


def _check_guarantees(program: Plan, spec: JobSpec) -> None:
    """Refuse a sink that promises what the job's checkpoints cannot give."""
    if not spec.settings.commits_every_epoch:
        return
    for operator in program.operators():
        if operator.kind is NodeKind.SINK and operator.function.needs_checkpoints:
            raise ConfigurationError(
                f"job {spec.name!r}: sink {operator.uid!r} is exactly-once, and the job is not: "
                'call enable_checkpointing("10 s") with the mode EXACTLY_ONCE, which is the '
                "default, or choose another delivery guarantee"
            )


def warn(program: Plan, spec: JobSpec) -> None:
    """Log what is allowed but may surprise."""
    for warning in (*program.warnings, *(() if spec.settings.enabled else (_AT_MOST_ONCE,))):
        _LOG.warning("job %r: %s", spec.name, warning)
