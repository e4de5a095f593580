"""Runs the script of a launch with arguments that are not on the command line of its process.

`python -m turnback.launch.program DIRECTORY` takes the place of `python SCRIPT ARGUMENTS...` where
an argument is a secret: all users of a machine can read the command lines of all processes.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from turnback.core.masking import mask_arguments
from turnback.job.run import Launch, RunDirectory

# -P: the working directory may hold a file of the same name.
_HIDING = (sys.executable, "-P", "-m", "turnback.launch.program")


def driver_command(launch: Launch, run: RunDirectory) -> list[str]:
    """The command that runs the script of a launch."""
    if mask_arguments(launch.arguments) != launch.arguments:
        return [*_HIDING, str(run.path)]
    return [sys.executable, launch.script, *launch.arguments]


def run_script(launch: Launch) -> None:
    """Run the script as the main program of this process."""
    sys.argv = [launch.script, *launch.arguments]
    sys.path.insert(0, str(Path(launch.script).parent))
    runpy.run_path(launch.script, run_name="__main__")


if __name__ == "__main__":
    run_script(RunDirectory(sys.argv[1]).launch())
