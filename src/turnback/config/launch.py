"""What `turnback run` hands to the program it starts: everything on the command line wins."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

import msgspec

from turnback.coordinator.rundir import RunDirectory
from turnback.core.errors import ConfigurationError

LAUNCH_VARIABLE = "TURNBACK_LAUNCH"
"""Names the launch file, in the environment of the program."""
LAUNCH = "launch.json"


class LaunchMode(StrEnum):
    """What the program is started for."""

    RUN = "run"
    PLAN = "plan"
    """To learn what it is: `execute` ends the program before anything runs."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """How a program is to be run.

    Attributes:
        script: The program.
        arguments: Its arguments.
        directory: Its working directory.
        mode: What it is started for.
        name: Name of the job, instead of the one in the code.
        start_from: Which snapshot to start from, instead of the job's latest.
        fresh: Start empty although there are checkpoints.
        allow_non_restored_state: State that may be dropped: all of it, or what is named.
        renames: Names in the snapshot to names in the program.
        claim_mode: Whose the snapshot is from then on; None for what the code says.
        fork: The snapshot may be another job's.
        allow_pickled_state: Read pickled objects in the snapshot.
        take_over_sinks: Targets of sinks that belong to other jobs become this job's.
        root: Where `turnback run` looks for jobs; the program may name another place.
        settings: Configuration keys and values.
        log_bytes: How large the driver's log may grow before it is begun anew.
    """

    script: str
    arguments: tuple[str, ...] = ()
    directory: str = "."
    mode: LaunchMode = LaunchMode.RUN
    name: str | None = None
    start_from: str | None = None
    fresh: bool = False
    allow_non_restored_state: bool | tuple[str, ...] = False
    renames: dict[str, str] = {}
    claim_mode: str | None = None
    fork: bool = False
    allow_pickled_state: bool = False
    take_over_sinks: bool = False
    root: str | None = None
    settings: dict[str, str] = {}
    log_bytes: int = 64 << 20


def current_launch() -> Launch | None:
    """Return how this program was launched, `None` if it was started by other means.

    Raises:
        ConfigurationError: The launch file is gone or damaged.
    """
    run = current_run()
    if run is None:
        return None
    try:
        launch = run.read(LAUNCH, Launch)
    except msgspec.MsgspecError as error:
        raise ConfigurationError(f"{run.path / LAUNCH} is damaged: {error}") from error
    if launch is None:
        raise ConfigurationError(
            f"{LAUNCH_VARIABLE} names {run.path / LAUNCH}, which is not there: start the program "
            "with `turnback run`, or without this variable"
        )
    return launch


def current_run() -> RunDirectory | None:
    """Return the directory of the launch this program belongs to."""
    named = os.environ.get(LAUNCH_VARIABLE)
    return RunDirectory(Path(named).parent) if named else None
