"""`turnback doctor`: whether this machine has everything that jobs need."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from turnback.cli.command import command
from turnback.cli.context import Cli, ExitCode
from turnback.cli.output import Column
from turnback.config.configuration import spark_options
from turnback.core.units import format_size
from turnback.errors import ConfigurationError, SparkUnavailableError, StorageError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_LITTLE_SPACE = 1 << 30
_NO_SPACE = 100 << 20
# Long enough for a slow store, short enough for a person who waits.
_QUICK = {"timeout": "10 s", "connect_timeout": "3 s", "retry_timeout": "10 s", "max_retries": "1"}
_QUICK_STORAGE = {
    "s3": _QUICK,
    "gs": {f"gcs_{name}": value for name, value in _QUICK.items()},
    "abfss": {f"azure_{name}": value for name, value in _QUICK.items()},
    "hdfs": {"hdfs_timeout": "20 s", "hdfs_retry_timeout": "10 s"},
}
_STORAGE_ADVICE = {
    "s3": "check the endpoint and credentials: turnback config s3",
    "gs": "check the bucket and credentials: turnback config gcs",
    "abfss": "check the container and credentials: turnback config azure",
    "hdfs": "check the address, HADOOP_CONF_DIR and the permissions of the user",
}


@dataclass(frozen=True)
class CheckResult:
    """Something that was checked: warn if it could be better, fail if jobs cannot run."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    found: str
    advice: str = ""


_COLUMNS: tuple[Column[CheckResult], ...] = (
    Column("verdict", lambda result, out: out.state(result.verdict)),
    Column("what", lambda result, out: result.name),
    Column("found", lambda result, out: result.found),
    Column("what to do", lambda result, out: result.advice),
)


@command("doctor", "turnback doctor", "turnback doctor --root s3://bucket/jobs --json")
def doctor(cli: Cli) -> ExitCode | None:
    """Check this machine for everything that jobs need.

    Checks Python, Java, Spark, the configuration, the checkpoint and savepoint directories, disk
    space, and the port of the dashboard. Exits with code 10 if jobs cannot run.
    """
    results = list(_results(cli))
    failed = any(result.verdict == "fail" for result in results)
    if cli.json:
        cli.out.document({"ok": not failed, "findings": results})
    else:
        cli.out.records(_COLUMNS, results)
    return ExitCode.PROBLEM if failed else None


def _results(cli: Cli) -> Iterator[CheckResult]:
    # An older Python could not read this file: pip refuses to install it there.
    yield CheckResult("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")
    yield _check_java()
    yield from _check_packages()
    try:
        configuration = cli.configuration
        options = cli.storage_options
        root = cli.root
    except ConfigurationError as error:
        yield CheckResult(
            "configuration", "fail", str(error), "fix the configuration, then run doctor again"
        )
        return
    origins = sorted({entry.origin for entry in configuration.entries() if entry.is_set})
    text = f"set in {', '.join(origins)}" if origins else "only defaults"
    yield CheckResult("configuration", "ok", text)
    yield from _check_kafka(spark_options(configuration))
    yield _check_directory("jobs", root, options)
    savepoints = configuration.value("state.savepoints.dir")
    if savepoints is not None:
        yield _check_directory("savepoints", savepoints, options)
    else:
        advice = "set it, or pass a directory each time you take a savepoint"
        yield CheckResult("savepoints", "warn", "state.savepoints.dir is not set", advice)
    yield from _check_local_space(configuration.value("state.backend.local-dir"))
    yield _check_port(configuration.value("web.address"), configuration.value("web.port"))


# -- what is installed


def _check_java() -> CheckResult:
    try:
        from turnback.spark.session import check_java

        return CheckResult("java", "ok", f"Java {check_java()}")
    except ImportError as error:
        return CheckResult("java", "fail", f"not checked: {error}", "install pyspark first")
    except (ConfigurationError, SparkUnavailableError, OSError) as error:
        return CheckResult("java", "fail", str(error), "see https://adoptium.net")


def _check_packages() -> Iterator[CheckResult]:
    """Check Spark, then everything else that is needed, then the extras."""
    needed, extras = _requirements()
    problems = {each.name: package_problem(each) for each in needed}
    spark = problems.pop("pyspark", None)
    if spark is None:
        yield CheckResult("pyspark", "ok", installed_version("pyspark") or "")
    else:
        bounds = next(each.specifier for each in needed if each.name == "pyspark")
        yield CheckResult("pyspark", "fail", spark, f"pip install 'pyspark{bounds}'")
    bad = [problem for problem in problems.values() if problem is not None]
    if bad:
        yield CheckResult("packages", "fail", "; ".join(bad), "pip install --upgrade turnback")
    else:
        yield CheckResult("packages", "ok", f"all {len(problems)} installed")
    missing = {name for name, needs in extras.items() if any(map(package_problem, needs))}
    installed = ", ".join(sorted(set(extras) - missing)) or "none"
    if missing:
        installed += f" (not installed: {', '.join(sorted(missing))})"
    yield CheckResult("extras", "ok", installed)


def _check_kafka(options: Mapping[str, str]) -> Iterator[CheckResult]:
    """Say whether Kafka can be read: its connector is no part of Spark, and a jar, no package."""
    version = installed_version("pyspark")
    if version is None:
        return
    from turnback.connectors.kafka.reader import configured_connector, connector_package

    where = configured_connector(options)
    if where is not None:
        yield CheckResult("kafka source", "ok", f"Spark's connector is set in {where}")
    else:
        advice = f"to read from Kafka: -D spark.jars.packages={connector_package(version)}"
        yield CheckResult("kafka source", "ok", "Spark has no connector for Kafka", advice)


def _requirements() -> tuple[list[Requirement], dict[str, list[Requirement]]]:
    """Return what is always needed, and what each extra needs that is not for developers."""
    from importlib.metadata import metadata, requires

    from packaging.requirements import Requirement

    extras: dict[str, list[Requirement]] = {
        name: [] for name in metadata("turnback").get_all("Provides-Extra") or () if name != "dev"
    }
    always: list[Requirement] = []
    for line in requires("turnback") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            always.append(requirement)
            continue
        for name, needs in extras.items():
            if marker.evaluate({"extra": name}):
                needs.append(requirement)
    return always, extras


def package_problem(requirement: Requirement) -> str | None:
    """Return what is wrong with the installed version of a package, `None` if it will do."""
    version = installed_version(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, but {requirement.specifier} is needed"
    return None


def installed_version(name: str) -> str | None:
    """Return the version of a package, `None` if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


# -- directories and the port


def _check_directory(name: str, uri: str, options: Mapping[str, str]) -> CheckResult:
    """Check that files can be written, read and deleted in a directory or another storage."""
    from turnback.storage.local import LocalStorage
    from turnback.storage.locations import display_path, storage_scheme
    from turnback.storage.open import open_storage

    scheme = storage_scheme(uri.partition("://")[0])
    path = f"_doctor-{uuid.uuid4().hex}"
    data = b"turnback doctor"
    local = None
    try:
        storage = open_storage(uri, {**options, **_QUICK_STORAGE.get(scheme, {})})
        if isinstance(storage, LocalStorage):
            local = Path(display_path(storage.uri))
            if not local.exists():
                return _check_missing(name, local)
        storage.put_if_absent(path, data)
        try:
            if storage.get(path) != data:
                raise StorageError(f"{path} returned different bytes than were written")
        finally:
            storage.delete(path)
    except (StorageError, ConfigurationError) as error:
        advice = _STORAGE_ADVICE.get(scheme, "check the path, the permissions and the free space")
        return CheckResult(name, "fail", f"{uri}: {error}", advice)
    if local is None:
        return CheckResult(name, "ok", f"{uri} is readable and writable")
    return _check_space(name, local, f"{local} is readable and writable")


def _check_missing(name: str, path: Path) -> CheckResult:
    """Check that a directory which does not exist yet can be made."""
    parent = _nearest_existing(path)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        advice = f"create it, or make {parent} writable"
        return CheckResult(name, "fail", f"{path} does not exist and cannot be created", advice)
    return _check_space(name, parent, f"{path} does not exist yet and can be created")


def _check_space(name: str, path: Path, text: str = "") -> CheckResult:
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return CheckResult(name, "fail", f"{path}: {error.strerror}", "create the directory")
    text = f"{text or path}, {format_size(free)} free"
    if free < _NO_SPACE:
        return CheckResult(name, "fail", text, "free some space: nothing can be written")
    if free < _LITTLE_SPACE:
        return CheckResult(name, "warn", text, "free some space for state and checkpoints")
    return CheckResult(name, "ok", text)


def _check_local_space(local_dir: str | None) -> Iterator[CheckResult]:
    """Check the places where tasks keep state while they run."""
    yield _check_space("temporary files", Path(tempfile.gettempdir()))
    if local_dir is not None:
        nearest = _nearest_existing(Path(local_dir))
        yield _check_space("state.backend.local-dir", nearest, local_dir)
    shared = Path("/dev/shm")
    if os.name == "posix" and shared.is_dir():
        yield _check_space("shared memory", shared)


def _check_port(address: str, port: int) -> CheckResult:
    """Check that the dashboard could be started."""
    where = f"{address}:{port}"
    try:
        family, _, _, _, bound = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(bound[:2], family=family).close()
    except OSError as error:
        advice = (
            "if the dashboard is not already running there, choose another port with turnback "
            "ui --port"
        )
        return CheckResult("dashboard", "warn", f"{where}: {error.strerror or error}", advice)
    return CheckResult("dashboard", "ok", f"{where} is free")


def _nearest_existing(path: Path) -> Path:
    """Return the path itself, or the nearest one above it that exists."""
    here = path.expanduser().absolute()
    return next((p for p in (here, *here.parents) if p.exists()), here)
