"""Runs jobs on the oldest and the newest Spark, each in an environment of its own.

Use: python tests/compat/run.py [4.1] [4.3]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "compat"
VERSIONS = ("4.1", "4.3")
JOBS = "tests/compat/test_job.py"
SETTINGS = "tests/integration/test_spark_settings.py"
PATHS = ("-o", "pythonpath=tests tests/integration")
RUNS = (
    ("as installed", {}, (JOBS, SETTINGS), VERSIONS),
    ("pipelined Python functions", {"COMPAT_PIPELINED": "true"}, (JOBS,), ("4.3",)),
)


def environment(version: str) -> Path:
    """The interpreter of an environment with a version of Spark."""
    directory = CACHE / f"spark-{version}"
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    others = [line for line in locked if not line.startswith(("pyspark", "py4j"))]
    constraints = directory / "constraints.txt"
    constraints.write_text("\n".join(others))
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    tools = ["pytest", "pytest-timeout", "hypothesis"]
    packages = ["--editable", ROOT, f"pyspark=={version}.*", *tools]
    subprocess.run([*install, "--constraint", constraints, *packages], check=True)
    return python


def main(versions: list[str]) -> int:
    results: list[str] = []
    failed = False
    for version in versions or VERSIONS:
        python = environment(version)
        show = [python, "-c", "import pyspark; print(pyspark.__version__)"]
        exact = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
        for name, variables, tests, where in RUNS:
            if version not in where:
                continue
            print(f"== Spark {exact}, {name}", flush=True)
            started = time.monotonic()
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *PATHS, *tests]
            done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, check=False)
            failed = failed or done.returncode != 0
            outcome = "passed" if done.returncode == 0 else "FAILED"
            results.append(f"{exact:8} {name:28} {outcome} {time.monotonic() - started:5.0f} s")
    print("\n".join(results))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
