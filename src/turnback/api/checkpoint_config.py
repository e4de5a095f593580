from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from os import PathLike
from typing import Self

from turnback.api.arguments import path_text
from turnback.config.checkpointing import (
    CheckpointingMode,
    CheckpointSettings,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
)
from turnback.config.configuration import ConfigurationEditor
from turnback.core.errors import ConfigurationError
from turnback.core.units import parse_duration

Duration = int | str | timedelta

_OPTIONS = {option.field: option for option in CheckpointSettings.options()}


class CheckpointConfig:
    """When and how checkpoints are taken; Flink's options with Flink's defaults.

    Durations are milliseconds, or text such as "10 s". What is set here wins over the
    configuration file; the command line wins over both.
    """

    def __init__(self, editor: ConfigurationEditor) -> None:
        self._editor = editor

    @property
    def settings(self) -> CheckpointSettings:
        """What counts, all layers of the configuration considered."""
        return CheckpointSettings.from_configuration(self._editor.current.raw)

    def is_checkpointing_enabled(self) -> bool:
        """Whether checkpoints are taken at all."""
        return self.settings.enabled

    def set_checkpoint_interval(self, interval: Duration) -> Self:
        """Set the time between the starts of two checkpoints."""
        return self._set(interval_ms=parse_duration(interval, "checkpoint interval"))

    def get_checkpoint_interval(self) -> int | None:
        """The interval in milliseconds; None when checkpoints are off."""
        return self.settings.interval_ms

    def set_checkpointing_mode(self, mode: CheckpointingMode) -> Self:
        """Set exactly-once or at-least-once."""
        if not isinstance(mode, CheckpointingMode):
            raise ConfigurationError(f"mode must be a CheckpointingMode, got {mode!r}")
        return self._set(mode=mode)

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """The mode."""
        return self.settings.mode

    def set_checkpoint_timeout(self, timeout: Duration) -> Self:
        """Set after which time a checkpoint is discarded."""
        return self._set(timeout_ms=parse_duration(timeout, "checkpoint timeout"))

    def set_min_pause_between_checkpoints(self, pause: Duration) -> Self:
        """Set the least time between the end of one and the start of the next."""
        return self._set(min_pause_ms=parse_duration(pause, "minimum pause"))

    def set_max_concurrent_checkpoints(self, number: int) -> Self:
        """Set how many may be under way at once."""
        return self._set(max_concurrent=number)

    def set_tolerable_checkpoint_failure_number(self, number: int) -> Self:
        """Set how many may fail in a row before the job fails."""
        return self._set(tolerable_failures=number)

    def set_num_retained_checkpoints(self, number: int) -> Self:
        """Set how many complete checkpoints are kept."""
        return self._set(num_retained=number)

    def set_externalized_checkpoint_retention(
        self, retention: ExternalizedCheckpointRetention
    ) -> Self:
        """Set what becomes of the checkpoints when the job is cancelled."""
        if not isinstance(retention, ExternalizedCheckpointRetention):
            raise ConfigurationError(
                f"retention must be an ExternalizedCheckpointRetention, got {retention!r}"
            )
        return self._set(retention=retention)

    def enable_incremental_checkpoints(self, enabled: bool = True) -> Self:
        """Accepted for PyFlink's sake: checkpoints always are incremental."""
        if not isinstance(enabled, bool):
            raise ConfigurationError(f"enabled is True or False, not {enabled!r}")
        return self._set(incremental=enabled)

    def set_checkpoint_storage(self, storage: CheckpointStorage | str | PathLike[str]) -> Self:
        """Set where checkpoints go: "jobmanager", "filesystem", or the directory to use."""
        if isinstance(storage, CheckpointStorage):
            return self._set(storage=storage)
        text = path_text("checkpoint storage", storage)
        if text in {s.value for s in CheckpointStorage}:
            return self._set(storage=CheckpointStorage(text))
        return self._set(storage=CheckpointStorage.FILESYSTEM, directory=text)

    def set_checkpoint_storage_dir(self, directory: str | PathLike[str]) -> Self:
        """Set the directory below which the job's directory is."""
        return self.set_checkpoint_storage(directory)

    def _set(self, **changes: object) -> Self:
        replace(self.settings, **changes)  # type: ignore[arg-type]  # raises for bad values
        options = [_OPTIONS[field] for field in changes]
        self._editor.set({option.key: option.write(changes[option.field]) for option in options})
        return self
