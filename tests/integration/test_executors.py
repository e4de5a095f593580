"""Executors that cannot run a job: no shared storage, another Python, a missing module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from services.spark import SparkCluster, spark_cluster
from tiers import with_examples
from turnback.checkpoint.log import CheckpointLog
from turnback.job.directory import JobDirectory
from turnback.job.status import JobState

JOB = Path(__file__).with_name("executors_job.py")


@dataclass
class Machines:
    """A cluster of two workers; on each of them and here, `private` is another directory."""

    cluster: SparkCluster
    private: Path
    java: str


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, java: str) -> Iterator[Machines]:
    base = tmp_path_factory.mktemp("machines")
    private = base / "private"
    (base / "cluster").mkdir()
    private.mkdir()
    environment = {"JDK_JAVA_OPTIONS": java}
    with spark_cluster(
        base / "cluster", environment=environment, private={0: [private], 1: [private]}
    ) as cluster:
        yield Machines(cluster, private, java)


class Run:
    """A run of the job on the cluster."""

    def __init__(
        self,
        machines: Machines,
        root: Path,
        out: Path,
        *,
        variables: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        input: Path | None = None,
    ) -> None:
        done = launch(machines, root, out, variables, settings, input)
        self.out = out
        self.code = done.returncode
        self.errors = done.stderr
        directory = JobDirectory.locate(root.as_uri(), "letters")
        status = directory.status()
        assert status is not None, done.stderr
        self.state = status.state
        self.restarts = status.restarts
        self.checkpoint = CheckpointLog(directory.storage).latest()

    @property
    def letters(self) -> Counter[str]:
        rows = (json.loads(line) for p in self.out.glob("*.json") for line in p.open())
        return Counter(row["letter"] for row in rows)


def launch(
    machines: Machines,
    root: Path,
    out: Path,
    variables: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    input: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    given = {**machines.cluster.settings, **(settings or {})}
    arguments = [JOB, machines.cluster.master, root, out, json.dumps(given)]
    arguments += [] if input is None else [input]
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"JDK_JAVA_OPTIONS": machines.java} | (variables or {}),
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.exhaustive
def test_machines_that_share_everything_run_the_job(machines: Machines, tmp_path: Path) -> None:
    run = Run(machines, tmp_path / "jobs", tmp_path / "out")
    assert run.code == 0, run.errors
    assert run.letters == dict.fromkeys("abcdefgh", 3)


def test_a_root_that_is_not_shared_is_refused(machines: Machines, tmp_path: Path) -> None:
    run = Run(machines, machines.private / "jobs", tmp_path / "out")
    assert run.code != 0
    assert "does not share the storage of the job with the driver" in run.errors
    assert (run.state, run.restarts, run.checkpoint) == (JobState.FAILED, 0, None)
    assert run.letters == {}


@pytest.mark.exhaustive
def test_a_target_that_is_not_shared_is_refused(machines: Machines, tmp_path: Path) -> None:
    out = machines.private / "out"
    run = Run(machines, tmp_path / "jobs", out, settings={"restart-strategy.type": "none"})
    assert run.code != 0
    assert f"does not share {out} with the driver" in run.errors
    assert (run.state, run.checkpoint) == (JobState.FAILED, None)
    assert run.letters == {}


def test_input_that_is_not_shared_is_told(machines: Machines, tmp_path: Path) -> None:
    letters = machines.private / "in"
    letters.mkdir()
    (letters / "letters.txt").write_text("a\nb\n")
    none = {"restart-strategy.type": "none"}
    run = Run(machines, tmp_path / "jobs", tmp_path / "out", settings=none, input=letters)
    assert run.code != 0
    told = f"source 'letters': an executor does not have the file {letters}/letters.txt"
    assert told in run.errors
    assert (run.state, run.checkpoint) == (JobState.FAILED, None)


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter without any package."""
    venv.create(tmp_path / "bare", with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


@pytest.mark.parametrize("how", with_examples(["variable", "setting"], ["setting"]))
def test_a_python_without_packages_is_refused_in_one_attempt(
    machines: Machines, tmp_path: Path, bare_python: str, how: str
) -> None:
    variables = {"PYSPARK_PYTHON": bare_python} if how == "variable" else {}
    settings = {"spark.pyspark.python": bare_python} if how == "setting" else {}
    run = Run(machines, tmp_path / "jobs", tmp_path / "out", variables=variables, settings=settings)
    assert run.code != 0
    assert "has no module" in run.errors
    assert f"Executors run {bare_python}" in run.errors
    assert (run.state, run.restarts, run.checkpoint) == (JobState.FAILED, 0, None)


@pytest.fixture
def small_environment(tmp_path: Path) -> Path:
    """A virtual environment with Turnback and what it needs, and nothing else."""
    prefix = tmp_path / "small"
    venv.create(prefix, symlinks=True)
    packages = next(prefix.glob("lib/python3.*/site-packages"))
    everything = Path(sysconfig.get_path("purelib"))
    files = (file for name in _needed("turnback") for file in metadata.files(name) or ())
    for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
        (packages / top).symlink_to(everything / top)
    return prefix


def _needed(name: str) -> set[str]:
    """Return the names of a distribution and of all that it needs."""
    found = {name}
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found |= _needed(requirement.name)
    return found


@pytest.mark.exhaustive
def test_executors_run_a_packed_environment(
    machines: Machines, tmp_path: Path, small_environment: Path
) -> None:
    command = [small_environment / "bin" / "python", "-m", "turnback.cli.main", "pack"]
    packed = subprocess.run(
        [*command, "--json", "-o", tmp_path / "job-env.tar.gz", JOB],
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        check=True,
    )
    settings = json.loads(packed.stdout)["settings"]
    run = Run(machines, tmp_path / "jobs", tmp_path / "out", settings=settings)
    assert run.code == 0, run.errors
    assert run.letters == dict.fromkeys("abcdefgh", 3)


_SECRET = "only-this-cluster-knows"
_ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}


@pytest.mark.exhaustive
def test_a_cluster_that_authenticates_and_encrypts_runs_the_job(tmp_path: Path, java: str) -> None:
    settings = {**_ENCRYPTED, "spark.authenticate.secret": _SECRET}
    options = " ".join(f"-D{key}={value}" for key, value in settings.items())
    environment = {"JDK_JAVA_OPTIONS": java, "SPARK_DAEMON_JAVA_OPTS": options}
    (tmp_path / "cluster").mkdir()
    with spark_cluster(tmp_path / "cluster", environment=environment) as cluster:
        machines = Machines(cluster, tmp_path / "private", java)
        run = Run(machines, tmp_path / "jobs", tmp_path / "out", settings=settings)
        assert run.code == 0, run.errors
        assert run.letters == dict.fromkeys("abcdefgh", 3)
        stored = (p for p in (tmp_path / "jobs").rglob("*") if p.is_file())
        assert not [path for path in stored if _SECRET.encode() in path.read_bytes()]
        wrong = settings | {"spark.authenticate.secret": "a guess"}
        other = launch(machines, tmp_path / "other", tmp_path / "none", settings=wrong)
        assert other.returncode != 0
        assert not (tmp_path / "none").exists()
        assert _SECRET not in run.errors + other.stderr
