"""Whether executors can run a job: they share the driver's storage, and have its versions."""

from __future__ import annotations

import platform
import re
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import metadata

import msgspec

from turnback.checkpoint.log import slot_path
from turnback.checkpoint.manifest import Fence
from turnback.driver.engine import Engine
from turnback.errors import ConfigurationError, StorageError
from turnback.state.files import StorageRef
from turnback.worker.shared_storage import require_shared_storage

_OVERLAP_S = 0.1
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PYTHON = "Python"


class ExecutorReport(msgspec.Struct, frozen=True):
    """What one executor has.

    Attributes:
        host: The name of its machine.
        versions: Of Python, and of Turnback and what it needs; None where a package is missing.
        storage_problem: Why it cannot use the storage of the job, if it cannot.
    """

    host: str
    versions: dict[str, str | None]
    storage_problem: str | None = None


@dataclass(frozen=True)
class ExecutorCheck:
    """A task that reports on its executor.

    Attributes:
        storage: The storage of the job.
        fence: The path of the fence that the driver has just written there.
        nonce: What only this fence holds.
    """

    storage: StorageRef
    fence: str
    nonce: str

    def run(self) -> ExecutorReport:
        problem = None
        try:
            require_shared_storage(self.storage, self.fence, self.nonce)
        except StorageError as error:
            problem = str(error)
        time.sleep(_OVERLAP_S)  # so that no other of these tasks runs in the same worker
        return ExecutorReport(socket.gethostname(), versions(), problem)


@cache
def versions() -> dict[str, str | None]:
    """The versions of Python, and of Turnback and what it needs, in this process."""
    found: dict[str, str | None] = {_PYTHON: platform.python_version()}
    for name in ("turnback", *_requirements()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _requirements() -> list[str]:
    """The packages that Turnback cannot do without; none if it is not installed as a package."""
    try:
        lines = metadata.requires("turnback") or []
    except metadata.PackageNotFoundError:
        return []
    names = (_NAME.match(line) for line in lines if "extra ==" not in line)
    return [name[0] for name in names if name]


def check_executors(engine: Engine, storage: StorageRef, fence: Fence) -> None:
    """Check all executors that run now, before anything is promised.

    Those that come later check the storage themselves, with their first task.

    Raises:
        ConfigurationError: An executor does not see the storage of the job, or has other versions.
    """
    if engine.is_local:
        return
    check = ExecutorCheck(storage, slot_path(fence.number), fence.nonce)
    compare(versions(), engine.run_tasks("check executors", [check] * engine.cores))


def compare(driver: dict[str, str | None], reports: Iterable[ExecutorReport]) -> None:
    """Raise `ConfigurationError` if a report does not fit the driver."""
    for report in reports:
        if report.storage_problem is not None:
            raise ConfigurationError(report.storage_problem)
        different = [
            f"{name} {theirs or 'missing'} instead of {ours or 'missing'}"
            for name, ours in driver.items()
            if _differ(name, ours, theirs := report.versions.get(name))
        ]
        if different:
            raise ConfigurationError(
                f"the executor on {report.host} does not have the versions of the driver: "
                f"{', '.join(different)}. Give both the same environment: ship it with "
                "spark.archives, or install it on every machine and name its interpreter in "
                "spark.pyspark.python"
            )


def _differ(name: str, ours: str | None, theirs: str | None) -> bool:
    if name == _PYTHON and ours and theirs:
        return ours.split(".")[:2] != theirs.split(".")[:2]
    return ours != theirs
