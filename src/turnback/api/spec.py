"""From what the program, the configuration and the command line say to how a job is run."""

from __future__ import annotations

from turnback.api.launched import Launched, Start
from turnback.config.configuration import Configuration
from turnback.config.extract import job_root, state_backend, storage_options
from turnback.coordinator import (
    CheckpointSettings,
    CheckpointStorage,
    ProgramSetting,
    SavepointSettings,
    choose_restart,
)
from turnback.runtime.job import JobSpec


def job_spec(
    start: Start,
    configuration: Configuration,
    launched: Launched | None,
    *,
    bounded: bool,
    epoch_interval_ms: int,
) -> JobSpec:
    """Put together how a job is run.

    Args:
        start: What the program says; the command line wins.
        configuration: All layers of it.
        launched: How the process was launched, if with `turnback run`.
        bounded: Whether to end when everything that is there now has been processed.
        epoch_interval_ms: Least time between the starts of two epochs.
    """
    start = launched.override(start) if launched is not None else start
    settings = CheckpointSettings.from_configuration(configuration.raw)
    backend, storage = state_backend(configuration)
    inline = storage is CheckpointStorage.JOBMANAGER
    return JobSpec(
        name=start.name,
        root="memory://jobs" if inline else job_root(configuration),
        settings=settings,
        restart=choose_restart(None, configuration.raw, settings.enabled),
        backend=backend,
        inline=inline,
        bounded=bounded,
        epoch_interval_ms=epoch_interval_ms,
        start_from=start.start_from,
        fresh=start.fresh,
        allow_non_restored_state=start.allow_non_restored_state,
        renames=start.renames,
        fork=start.fork,
        allow_pickled_state=start.allow_pickled_state,
        take_over_sinks=start.take_over_sinks,
        claim_mode=start.claim_mode,
        savepoints=SavepointSettings.from_configuration(configuration.raw),
        storage_options=storage_options(configuration),
        local_dir=configuration.value("state.backend.local-dir"),
        run=launched.run if launched is not None else None,
        resumed=launched is not None and launched.resumed,
        script=(launched.launch.script, *launched.launch.arguments) if launched else (),
        program_settings=tuple(
            ProgramSetting(key=entry.key, value=entry.value_text or "", origin=entry.origin)
            for entry in configuration.entries()
            if entry.value_text is not None
        ),
    )
