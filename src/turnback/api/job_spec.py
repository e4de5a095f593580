"""What the configuration says about how a job is run."""

from __future__ import annotations

from turnback.config.checkpointing import CheckpointSettings, CheckpointStorage
from turnback.config.configuration import Configuration, job_root, state_backend, storage_options
from turnback.config.restart import choose_restart
from turnback.config.savepoints import SavepointSettings
from turnback.job.status import ProgramSetting
from turnback.spark.job import JobSpec


def job_spec(name: str, configuration: Configuration) -> JobSpec:
    """How a job is run by the configuration alone."""
    settings = CheckpointSettings.from_configuration(configuration.raw)
    backend, storage = state_backend(configuration)
    inline = storage is CheckpointStorage.JOBMANAGER
    return JobSpec(
        name=name,
        root="memory://jobs" if inline else job_root(configuration),
        settings=settings,
        restart=choose_restart(configuration.raw, settings.enabled),
        backend=backend,
        inline=inline,
        savepoints=SavepointSettings.from_configuration(configuration.raw),
        storage_options=storage_options(configuration),
        local_dir=configuration.value("state.backend.local-dir"),
        program_settings=tuple(
            ProgramSetting(key=entry.key, value=entry.value_text or "", origin=entry.origin)
            for entry in configuration.entries()
            if entry.value_text is not None
        ),
    )
