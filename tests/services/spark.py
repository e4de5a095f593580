"""A real Spark standalone cluster from pip's pyspark: a master and workers, on loopback."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from services.missing import missing
from services.process import accepts, free_port, running

_HOME = Path(pyspark.__file__).parent
_SOURCES = Path(__file__).parents[2] / "src"
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster.

    Attributes:
        master: What a driver gives as its master.
        pids: The workers' processes, as if on machines of their own: each has its own address
            and its own temporary directory.
        directory: Logs and the workers' directories.
    """

    master: str
    pids: tuple[int, ...]
    directory: Path

    @property
    def settings(self) -> dict[str, str]:
        """What a driver on this machine needs besides."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
        }

    def executors(self) -> list[int]:
        """The processes of the executors that run now."""
        found = map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
        return sorted(pid for pid in found if _is_executor(pid, self.pids))


@contextmanager
def spark_cluster(
    directory: Path,
    workers: int = 2,
    cores: int = 1,
    environment: Mapping[str, str] | None = None,
    private: Mapping[int, Sequence[Path]] | None = None,
) -> Iterator[SparkCluster]:
    """Run a cluster with its logs and data below an existing directory.

    Args:
        directory: Where everything goes.
        workers: How many; each runs one executor per application.
        cores: Of each worker.
        environment: Added to the environment of master, workers and executors.
        private: By the number of a worker, directories that it does not share with the others: it
            has empty ones of its own there, as a machine without a shared file system would.
    """
    port, page = free_port(), free_port()
    master = f"spark://127.0.0.1:{port}"
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(_SOURCES),
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        **(environment or {}),
    }
    with ExitStack() as stack:
        stack.enter_context(
            running(
                [
                    *(_HOME / "bin" / "spark-class", "org.apache.spark.deploy.master.Master"),
                    *("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)),
                ],
                ready=lambda: accepts(port) and _alive(page) == 0,
                log=directory / "master.log",
                environment=ours,
                timeout=120,
            )
        )
        pids = []
        for number in range(workers):
            own = directory / f"worker-{number}"
            (own / "tmp").mkdir(parents=True)
            host = f"127.0.0.{number + 1}"  # Spark does not speculate twice on one host
            settings = {
                "SPARK_LOCAL_DIRS": str(own / "tmp"),
                "SPARK_LOCAL_IP": host,
                "TMPDIR": str(own / "tmp"),
            }
            process = stack.enter_context(
                running(
                    [
                        *_with_private((private or {}).get(number, ())),
                        *(_HOME / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker"),
                        *("--host", host, "--webui-port", "0", "--work-dir", own / "work"),
                        *("--cores", str(cores), "--memory", "1g", master),
                    ],
                    ready=lambda number=number: _alive(page) == number + 1,
                    log=directory / f"worker-{number}.log",
                    environment=ours | settings,
                    timeout=120,
                )
            )
            pids.append(process.pid)
        yield SparkCluster(master, tuple(pids), directory)


_MOUNT = 'for path in $PRIVATE; do mount -t tmpfs none "$path"; done; exec "$@"'


def _with_private(directories: Sequence[Path]) -> list[str]:
    """What to put in front of a command whose process is to have these directories for itself."""
    if not directories:
        return []
    user = [] if os.getuid() == 0 else ["--map-root-user"]
    if subprocess.run(["unshare", *user, "--mount", "true"], check=False).returncode:
        missing("this machine does not allow mounts of one's own (unshare --mount)")
    named = f"PRIVATE={' '.join(map(str, directories))}"
    return ["env", named, "unshare", *user, "--mount", "sh", "-c", _MOUNT, "sh"]


def _alive(page: int) -> int | None:
    """How many workers the master has; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=2) as reply:
            workers = json.load(reply)["workers"]
    except (OSError, urllib.error.URLError, ValueError, KeyError):
        return None
    return sum(worker["state"] == "ALIVE" for worker in workers)


def _is_executor(pid: int, parents: tuple[int, ...]) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(stat[1]) in parents and _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
