"""One run of one engine in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.dataset import Dataset
from benchmarks.engine import REPOSITORY, Engine
from benchmarks.result import Result


class TrialFailedError(Exception):
    """The engine gave no result: it failed, was wrong, ran out of time or is not installed."""


def run(engine: Engine, dataset: Dataset, timeout: float) -> Result:
    """Run `engine` over `dataset` in an empty directory that is thrown away afterwards."""
    if not engine.python.exists():
        raise TrialFailedError("not installed: run sh benchmarks/setup_flink.sh")
    with tempfile.TemporaryDirectory(prefix="turnback-bench-") as scratch:
        return _run(engine, dataset, Path(scratch), timeout)


def _run(engine: Engine, dataset: Dataset, scratch: Path, timeout: float) -> Result:
    command = [str(engine.python), "-m", f"benchmarks.engines.{engine.module}"]
    command += ["--variant", engine.name, "--dataset", str(dataset.root.resolve())]
    command += ["--scratch", str(scratch)]
    log = scratch / "stderr.log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=_environment(engine, scratch),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TrialFailedError(f"no result within {timeout:.0f} s") from None
        finally:
            _end_group(process)
    if process.returncode != 0 or not out.strip():
        raise TrialFailedError(_reason(log.read_text(errors="replace")))
    return Result.parse(out.strip().splitlines()[-1])


def _environment(engine: Engine, scratch: Path) -> dict[str, str]:
    """Ours, with this package importable in every worker and temporary files in `scratch`."""
    path = [str(REPOSITORY)]
    # Packages found for this interpreter would only break another one's.
    if engine.python == Path(sys.executable) and "PYTHONPATH" in os.environ:
        path.append(os.environ["PYTHONPATH"])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "TMPDIR": str(scratch)}


def _end_group(process: subprocess.Popen[str]) -> None:
    """End what the engine left behind: JVMs and Python workers share the session we gave it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _reason(log: str) -> str:
    """The line of a traceback that says what went wrong, or the last line there is."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (errors or lines or ["no output"])[-1][:300]
