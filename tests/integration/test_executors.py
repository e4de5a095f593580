"""Executors that cannot run a job: no shared storage, another Python, a missing module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from services.spark import spark_cluster
from turnback.checkpoint.log import CheckpointLog
from turnback.job.directory import JobDirectory
from turnback.job.status import JobState

JOB = Path(__file__).with_name("executors_job.py")


class Run:
    """A run of the job on a cluster."""

    def __init__(
        self,
        base: Path,
        java: str,
        *,
        private: Sequence[Path] = (),
        variables: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.base = base
        (base / "cluster").mkdir()
        for path in private:
            path.mkdir(parents=True)
        environment = {"JDK_JAVA_OPTIONS": java}
        with spark_cluster(
            base / "cluster", environment=environment, private={1: private}
        ) as cluster:
            given = {**cluster.settings, **(settings or {})}
            done = subprocess.run(
                [sys.executable, JOB, cluster.master, base, json.dumps(given)],
                env=os.environ | environment | (variables or {}),
                capture_output=True,
                text=True,
                timeout=300,
            )
        self.code = done.returncode
        self.errors = done.stderr
        directory = JobDirectory.locate((base / "jobs").as_uri(), "letters")
        self.state = directory.status().state
        self.attempts = directory.status().attempt
        self.checkpoints = CheckpointLog(directory.storage).latest()

    @property
    def letters(self) -> Counter[str]:
        rows = (json.loads(line) for p in (self.base / "out").glob("*.json") for line in p.open())
        return Counter(row["letter"] for row in rows)


def test_machines_that_share_everything_run_the_job(tmp_path: Path, java: str) -> None:
    run = Run(tmp_path, java)
    assert run.code == 0, run.errors
    assert run.letters == dict.fromkeys("abcdefgh", 3)


def test_a_root_that_is_not_shared_is_refused(tmp_path: Path, java: str) -> None:
    run = Run(tmp_path, java, private=[tmp_path / "jobs"])
    assert run.code != 0
    assert "does not share the storage of the job with the driver" in run.errors
    assert (run.state, run.attempts, run.checkpoints) == (JobState.FAILED, 1, None)
    assert run.letters == {}


def test_a_target_that_is_not_shared_is_refused(tmp_path: Path, java: str) -> None:
    settings = {"restart-strategy.type": "none"}
    run = Run(tmp_path, java, private=[tmp_path / "out"], settings=settings)
    assert run.code != 0
    assert f"does not share {tmp_path / 'out'} with the driver" in run.errors
    assert (run.state, run.checkpoints) == (JobState.FAILED, None)
    assert run.letters == {}


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter without any package."""
    venv.create(tmp_path / "bare", with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.mark.parametrize("how", ["variable", "setting"])
def test_a_python_without_packages_is_refused_in_one_attempt(
    tmp_path: Path, java: str, bare_python: str, how: str
) -> None:
    variables = {"PYSPARK_PYTHON": bare_python} if how == "variable" else {}
    settings = {"spark.pyspark.python": bare_python} if how == "setting" else {}
    run = Run(tmp_path, java, variables=variables, settings=settings)
    assert run.code != 0
    assert "has no module" in run.errors
    assert f"Executors run {bare_python}" in run.errors
    assert (run.state, run.attempts, run.checkpoints) == (JobState.FAILED, 1, None)
