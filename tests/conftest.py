"""What holds for all tests: files, Ctrl-C, Java's options, one browser and one of each server."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from services.side_by_side import Servers
from tiers import EXAMPLES, TIER

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from services.hdfs import HdfsCluster
    from services.kafka import KafkaBroker
    from services.kinesis import KinesisServer
    from services.mariadb import MariaDbServer
    from services.postgres import PostgresServer
    from services.rabbitmq import RabbitMQServer
    from services.redis import RedisServer
    from services.yarn import YarnCluster

# Tests write thousands of files, each synced to disk. No test switches the machine off, so memory
# will do where there is enough of it.
_MEMORY = "/dev/shm"
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = f"{_MEMORY}/turnback-tests-{os.getuid()}"
    Path(os.environ["TMPDIR"]).mkdir(exist_ok=True)
    Path(os.environ["TMPDIR"]).chmod(0o711)  # some tests become another user on the way
    tempfile.tempdir = None

# `nohup make test &` and many CI runners start the tests with Ctrl-C ignored. Child processes
# inherit that, and those that a test presses Ctrl-C for would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Java's default, but said by the user: the archive of classes on this machine is left alone. Tests
# have one of their own, for Java with other options; see `java`.
os.environ["SPARK_SUBMIT_OPTS"] = "-Xshare:auto"

# A busy machine is not a failure. `make check` tries few random examples, `make test` some.
for name, count in EXAMPLES.items():
    settings.register_profile(name, deadline=None, max_examples=count)
settings.load_profile(TIER)


_LONG = (
    "soak/",
    "simulation/",
    "systems/test_three_targets.py",
    "systems/test_streams_killed.py",
    "systems/kafka/",
    "systems/sql/",
    "stories/test_lost_jvm.py",
    "stories/test_killed.py",
    "integration/test_savepoint_tables.py",
    "integration/test_one_of_each.py",
    "crash/test_executor_killed.py",
    "crash/test_on_spark.py",
    "integration/test_on_spark.py",
    "stories/",
    "crash/",
    "engine/test_growth.py",
    "integration/",
    "docs/",
    "systems/",
    "browser/",
)
"""Files that take long come first, so that none is left over when all others are done.

What is not named here are many small files, which keep all processes busy to the end.
"""


_SLOWEST_FILES = 40
_SHARED = {
    "crash/test_executor_killed.py": "targets",
    "systems/test_three_targets.py": "targets",
    "systems/kafka/": "kafka",
    "systems/sql/": "databases",
    "systems/redis/": "databases",
    "systems/kinesis/": "streams",
    "systems/rabbitmq/": "streams",
    "systems/test_streams_killed.py": "streams",
    "systems/hdfs/": "hdfs",
    "systems/yarn/": "hdfs",
}
"""Files whose tests share servers: one process runs all of a group, so that each starts once."""


def _sharing(nodeid: str) -> str | None:
    """Who shares servers with a test; None if nobody does."""
    name = nodeid.removeprefix("tests/")
    return next((who for start, who in _SHARED.items() if name.startswith(start)), None)


class OneProcessForServers(LoadFileScheduling):
    """Gives whole files to processes, and all files that share servers to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        return _sharing(nodeid) or super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return OneProcessForServers(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        name = item.path.relative_to(here).as_posix() if item.path.is_relative_to(here) else ""
        return next((i for i, start in enumerate(_LONG) if name.startswith(start)), len(_LONG))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules live to the end: nobody need look for garbage there."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # modules in C complain of what is left when Python ends


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """With `--durations`, also list the files whose tests take longest."""
    if terminalreporter.config.getoption("durations") is None:
        return
    seconds: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("slowest files")
    for name, total in seconds.most_common(_SLOWEST_FILES):
        terminalreporter.line(f"{total:7.1f}s {name}")


@pytest.fixture(scope="session")
def java() -> str:
    """Options for Java with which Spark starts faster."""
    from services.java import java_options

    return java_options()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A browser that all tests share."""
    from services.chromium import chromium_browser

    with chromium_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """The servers that tests need which share them with the first one; they start side by side."""
    who = _sharing(request._pyfuncitem.nodeid)
    items = [item for item in request.session.items if _sharing(item.nodeid) == who]
    wanted = {name for item in items for name in getattr(item, "fixturenames", ())}
    with closing(Servers(tmp_path_factory.mktemp("servers"))) as started:
        started.start(wanted)
        yield started


@pytest.fixture(scope="session")
def kafka(servers: Servers) -> KafkaBroker:
    """A broker that all tests share; each has topics of its own."""
    return servers.get("kafka")


@pytest.fixture(scope="session")
def postgres(servers: Servers) -> PostgresServer:
    """A server that all tests share; each makes its tables anew."""
    return servers.get("postgres")


@pytest.fixture(scope="session")
def mariadb(servers: Servers) -> MariaDbServer:
    """A server that all tests share; each makes its tables anew."""
    return servers.get("mariadb")


@pytest.fixture(scope="session")
def kinesis(servers: Servers) -> KinesisServer:
    """A server that all tests share; each has streams of its own."""
    return servers.get("kinesis")


@pytest.fixture(scope="session")
def rabbitmq(servers: Servers) -> RabbitMQServer:
    """A server that all tests share; each has streams of its own."""
    return servers.get("rabbitmq")


@pytest.fixture(scope="session")
def redis(servers: Servers) -> RedisServer:
    """A server that all tests share."""
    return servers.get("redis")


@pytest.fixture(scope="session")
def hdfs(servers: Servers) -> HdfsCluster:
    """A cluster that all tests share; each has directories of its own."""
    return servers.get("hdfs")


@pytest.fixture(scope="session")
def yarn(servers: Servers) -> YarnCluster:
    """A cluster that all tests share; each ends its applications."""
    return servers.get("yarn")
