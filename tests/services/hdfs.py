"""A real HDFS cluster: a NameNode and a DataNode in one process; jars are kept in .cache."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.jars import fetched_jars
from services.process import Restartable, free_port, started, until_stopped

_JAVA = ["java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_SETTINGS = {
    # Whoever runs the cluster may do everything; tests become another user with HADOOP_USER_NAME.
    "dfs.permissions.enabled": "true",
    "dfs.namenode.safemode.extension": "0",
    # A DataNode that has crashed with the NameNode reports its blocks at once.
    "dfs.heartbeat.interval": "1",
}


class HdfsCluster(Restartable):
    """A cluster that can be crashed and started again: same port, same data."""

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def root(self) -> str:
        """A directory that nobody has used."""
        return f"{self.url}/{uuid.uuid4().hex}/root"

    def is_ready(self) -> bool:
        return self._details.exists() and bool(self._details.read_text())

    def start(self) -> None:
        self._details.unlink(missing_ok=True)
        super().start()
        if "-format" in self.command:
            self.command = [word for word in self.command if word != "-format"]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop answering for a while, with connections open."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            until_stopped(self.process.pid)
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    @property
    def _details(self) -> Path:
        return self.directory / "details.json"


@contextmanager
def hdfs_cluster() -> Iterator[HdfsCluster]:
    """Run a cluster; skips the test when its jars cannot be had, unless CI=true."""
    jars = cluster_jars()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="turnback-hdfs-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        command = [
            *(*_JAVA, f"-Dtest.build.data={directory / 'data'}", "-cp", f"{jars}/*"),
            *("org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-nnport", str(port)),
            *("-datanodes", "1", "-writeDetails", str(directory / "details.json")),
            *(word for key, value in _SETTINGS.items() for word in ("-D", f"{key}={value}")),
        ]
        with started(HdfsCluster(port, directory, command)) as cluster:
            yield cluster


def cluster_jars() -> Path:
    """The directory with the jars of the cluster."""
    return fetched_jars("hdfs.pom.xml", "hdfs", "HDFS's")
