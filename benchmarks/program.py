"""Runs one module of this package in a process of its own and takes its last line of output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


class ProgramFailedError(Exception):
    """The program gave no result: it failed, was wrong, ran out of time or is not installed."""


def python_of(environment: str | None) -> Path:
    """The interpreter of `.venv-<environment>`; None for the one that runs this."""
    if environment is None:
        return Path(sys.executable)
    python = REPOSITORY / f".venv-{environment}" / "bin" / "python"
    if not python.exists():
        raise ProgramFailedError(f"not installed: run sh benchmarks/setup_{environment}.sh")
    return python


def run(
    module: str,
    arguments: Sequence[str],
    scratch: Path,
    timeout: float,
    python: Path = Path(sys.executable),
) -> str:
    """Run `python -m module` with temporary files in `scratch`; nothing of it stays behind."""
    log = scratch / "stderr.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            cwd=REPOSITORY,
            env=_environment(python, scratch),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise ProgramFailedError(f"no result within {timeout:.0f} s") from None
        finally:
            _end_group(process)
    if process.returncode != 0 or not out.strip():
        raise ProgramFailedError(reason(log.read_text(errors="replace")))
    return out.strip().splitlines()[-1]


def _environment(python: Path, scratch: Path) -> dict[str, str]:
    """Ours, with this package importable in every worker and temporary files in `scratch`."""
    path = [str(REPOSITORY)]
    # Packages found for this interpreter would only break another one's.
    if python == Path(sys.executable) and "PYTHONPATH" in os.environ:
        path.append(os.environ["PYTHONPATH"])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(scratch)}


def _end_group(process: subprocess.Popen[str]) -> None:
    """End what the program left behind: its JVM is in the session we gave it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def reason(log: str) -> str:
    """The line of a traceback that says what went wrong, or the last line there is."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (errors or lines or ["no output"])[-1][:300]
