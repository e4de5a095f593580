"""A real YARN: a ResourceManager and one NodeManager; their jars are kept in .cache."""

from __future__ import annotations

import getpass
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from services.hdfs import cluster_jars
from services.jars import fetched_jars
from services.process import free_port, running

_JAVA = [
    *("java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),  # of their injector, Guice
]
_RESOURCE_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE_MANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_EXECUTOR = b"org.apache.spark.executor.YarnCoarseGrainedExecutorBackend"
_MASTER = b"org.apache.spark.deploy.yarn.ApplicationMaster"


@dataclass(frozen=True)
class Container:
    """A process that runs in a container: Java, or Python that it has started.

    Attributes:
        application: Which one it belongs to.
        attempt: Which start of the application.
    """

    pid: int
    application: str
    attempt: int
    command: bytes

    @property
    def is_executor(self) -> bool:
        return self.command.partition(b"\0")[0].endswith(b"java") and _EXECUTOR in self.command

    @property
    def is_master(self) -> bool:
        """Whether it is the application master, which is also the driver in cluster mode."""
        return self.command.partition(b"\0")[0].endswith(b"java") and _MASTER in self.command

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class YarnCluster:
    """A running cluster, on loopback.

    Attributes:
        directory: Logs of the servers; those of containers below `logs`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._page = free_port()
        self._settings = _settings(directory, self._page)
        write_configuration(directory / "conf", {"yarn-site": self._settings})

    def configuration(self, directory: Path, file_system: str) -> Path:
        """Write what clients have as HADOOP_CONF_DIR; the file system is their default."""
        core = {"fs.defaultFS": file_system}
        write_configuration(directory, {"yarn-site": self._settings, "core-site": core})
        return directory

    @contextmanager
    def started(self) -> Iterator[None]:
        """Run both servers; they look for each other."""
        with ExitStack() as stack:
            stack.callback(self._end_containers)
            for name, program, ready in (
                ("resource-manager", _RESOURCE_MANAGER, lambda: True),
                ("node-manager", _NODE_MANAGER, lambda: self._nodes() == 1),
            ):
                process = stack.enter_context(self._server(name, program, ready))
                # An orderly end waits for containers; nobody needs what they do.
                stack.callback(process.kill)
            yield

    def _server(
        self, name: str, program: str, ready: Callable[[], bool]
    ) -> AbstractContextManager[subprocess.Popen[bytes]]:
        jars = [cluster_jars(), server_jars()]
        path = ":".join(map(str, [self.directory / "conf", *(f"{each}/*" for each in jars)]))
        return running(
            [*_JAVA, "-cp", path, program],
            ready=ready,
            log=self.directory / f"{name}.log",
            environment={"HADOOP_LOG_DIR": str(self.directory)},
            directory=self.directory,
            timeout=120,
        )

    # -- applications

    def applications(self) -> set[str]:
        """The applications that run now."""
        return {container.application for container in self.containers()}

    def state(self, application: str) -> str:
        """What the ResourceManager says of it, such as RUNNING."""
        return str(self._ask(f"apps/{application}/state")["state"])

    def kill(self, application: str) -> None:
        """End an application, as `yarn application -kill` does, and wait for the end."""
        where = f"apps/{application}/state?user.name={getpass.getuser()}"
        self._ask(where, b'{"state": "KILLED"}')
        end = time.monotonic() + 60
        while self.containers(application):
            if time.monotonic() > end:
                raise TimeoutError(f"containers of {application} still run 60 s after its end")
            time.sleep(0.1)

    def containers(self, application: str | None = None) -> list[Container]:
        """The processes of containers that run now, of one application or of all."""
        found = map(int, filter(str.isdigit, os.listdir("/proc")))  # noqa: PTH208
        containers = [each for pid in found if (each := self._container(pid)) is not None]
        return [each for each in containers if application in (None, each.application)]

    def executors(self) -> list[Container]:
        return [each for each in self.containers() if each.is_executor]

    def masters(self, application: str) -> list[Container]:
        return [each for each in self.containers(application) if each.is_master]

    def logs(self) -> str:
        """The end of what containers have printed."""
        found = sorted((self.directory / "logs").glob("*/*/std*"))
        return "\n".join(
            f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in found
        )

    def _container(self, pid: int) -> Container | None:
        """The container that a process belongs to, if this NodeManager has started it."""
        try:
            lines = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        variables = dict(line.split(b"=", 1) for line in lines if b"=" in line)
        place = str(self.directory / "local").encode()
        if not variables.get(b"LOCAL_DIRS", b"").startswith(place) or not command:
            return None  # another's, or it has ended
        words = variables[b"CONTAINER_ID"].decode().split("_")
        return Container(pid, f"application_{words[-4]}_{words[-3]}", int(words[-2]), command)

    def _end_containers(self) -> None:
        """End what is left: containers outlive a NodeManager."""
        while left := self.containers():
            for container in left:
                container.kill()
            time.sleep(0.05)

    # -- the ResourceManager

    def _nodes(self) -> int | None:
        """How many NodeManagers it has; None while it does not answer."""
        try:
            return int(self._ask("metrics")["activeNodes"])
        except (OSError, urllib.error.URLError, ValueError):
            return None

    def _ask(self, what: str, state: bytes | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._page}/ws/v1/cluster/{what}",
            data=state,
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            method="GET" if state is None else "PUT",
        )
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)


@contextmanager
def yarn_cluster() -> Iterator[YarnCluster]:
    """Run a cluster; skips the test when its jars cannot be had, unless CI=true."""
    with tempfile.TemporaryDirectory(prefix="turnback-yarn-", ignore_cleanup_errors=True) as name:
        cluster = YarnCluster(Path(name))
        with cluster.started():
            yield cluster


def server_jars() -> Path:
    """The directory with what YARN's servers need besides those of HDFS."""
    return fetched_jars("yarn.pom.xml", "yarn", "YARN's")


def write_configuration(directory: Path, files: dict[str, dict[str, str]]) -> None:
    """Write files as Hadoop reads them: `yarn-site` and so on, with settings."""
    directory.mkdir(parents=True)
    for name, settings in files.items():
        lines = [
            f"<property><name>{key}</name><value>{escape(value)}</value></property>"
            for key, value in settings.items()
        ]
        text = "\n".join(['<?xml version="1.0"?>', "<configuration>", *lines, "</configuration>"])
        (directory / f"{name}.xml").write_text(text)


def _settings(directory: Path, page: int) -> dict[str, str]:
    addresses = (
        *("resourcemanager.address", "resourcemanager.scheduler.address"),
        *("resourcemanager.resource-tracker.address", "resourcemanager.admin.address"),
        *("nodemanager.address", "nodemanager.localizer.address", "nodemanager.webapp.address"),
    )
    fifo = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
    return {
        "yarn.resourcemanager.webapp.address": f"127.0.0.1:{page}",
        **{f"yarn.{name}": f"127.0.0.1:{free_port()}" for name in addresses},
        "yarn.resourcemanager.hostname": "127.0.0.1",
        "yarn.resourcemanager.connect.retry-interval.ms": "500",
        "yarn.resourcemanager.scheduler.class": fifo,
        "yarn.resourcemanager.am.max-attempts": "50",
        "yarn.scheduler.minimum-allocation-mb": "256",
        "yarn.nodemanager.local-dirs": str(directory / "local"),
        "yarn.nodemanager.log-dirs": str(directory / "logs"),
        "yarn.nodemanager.resource.memory-mb": "8192",
        "yarn.nodemanager.resource.cpu-vcores": "16",
        "yarn.nodemanager.disk-health-checker.enable": "false",
        "yarn.nodemanager.pmem-check-enabled": "false",
        "yarn.nodemanager.vmem-check-enabled": "false",
        "yarn.nodemanager.sleep-delay-before-sigkill.ms": "250",
        # Nobody asks what they have used.
        "yarn.nodemanager.container-monitor.enabled": "false",
    }
