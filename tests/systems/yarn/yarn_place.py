"""One job on YARN: its input and output, how it is started, and what its processes are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pyspark

from services.hdfs import HdfsCluster
from services.yarn import Container, YarnCluster
from soak.feeder import Feeder
from soak.replay import Fed
from soak.verify import read_rows, verify_rows
from turnback.job.directory import JobDirectory
from turnback.job.run import RunDirectory
from turnback.storage.base import Storage

JOB = "totals"
PATIENCE_S = float(os.environ.get("TURNBACK_TEST_PATIENCE", "300"))
_PROGRAM = Path(__file__).with_name("yarn_job.py")
_TESTS = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_APPLICATION = re.compile(r"application_\d+_\d+")
T = TypeVar("T")


class YarnPlace:
    """Everything of one test; the job's directory is on HDFS, other files are here."""

    def __init__(self, base: Path, yarn: YarnCluster, hdfs: HdfsCluster, java: str) -> None:
        self._yarn, self._base = yarn, base
        self.root = hdfs.root()
        self.events, self.out, self.hold = base / "events", base / "out", base / "hold"
        for directory in (self.events, base / "tmp"):
            directory.mkdir()
        self._fed = base / "fed.jsonl"
        self._feeder = Feeder(self.events, self._fed, seed=1)
        self.program: dict[str, Any] = {
            "input": str(self.events),
            "out": str(self.out),
            "hold": str(self.hold),
        }
        self.variables = {
            "PYTHONPATH": os.pathsep.join((str(_TESTS), str(_TESTS.parent / "src"))),
            "JDK_JAVA_OPTIONS": java,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TURNBACK_CONF_STATE_CHECKPOINTS_DIR": self.root,
            "TURNBACK_CONF_STATE_SAVEPOINTS_DIR": f"{self.root}-savepoints",
            "TURNBACK_CONF_PARALLELISM_DEFAULT": "2",
        }
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TURNBACK_")},
            **self.variables,
            "TURNBACK_CONF_RUN_DIR": str(base / "runs"),
            "HADOOP_CONF_DIR": str(yarn.configuration(base / "hadoop", hdfs.url)),
            "HOME": str(base),
            # spark-submit looks for Spark beside the first Python of PATH.
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "TMPDIR": str(base / "tmp"),
        }
        self.settings = {
            "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
            "spark.executor.instances": "2",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.pyspark.python": sys.executable,
            # By default YARN gives an application up when a few of its executors have died.
            "spark.executor.maxNumFailures": "1000",
            "spark.yarn.maxAppAttempts": "50",
            "spark.ui.enabled": "false",
        }

    # -- starting the job

    def run(self, **start: Any) -> dict[str, Any]:
        """In client mode, by `turnback run`."""
        settings = {
            **self.settings,
            **self._variables("spark.executorEnv"),
            "spark.master": "yarn",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        options = [word for k, v in settings.items() for word in ("-D", f"{k}={v}")]
        script = self._script(start)
        job: dict[str, Any] = self.ask("run", "-d", *options, *script)
        return job

    def submit(self, **start: Any) -> str:
        """In cluster mode, by spark-submit; returns the application."""
        settings = {
            **self.settings,
            **self._variables("spark.executorEnv"),
            **self._variables("spark.yarn.appMasterEnv"),
            "spark.yarn.submit.waitAppCompletion": "false",
        }
        options = [word for k, v in settings.items() for word in ("--conf", f"{k}={v}")]
        script = self._script(start)
        command = ["spark-submit", "--master", "yarn", "--deploy-mode", "cluster"]
        told = self._call(*command, *options, *script)
        (application,) = set(_APPLICATION.findall(told))
        return application

    def _script(self, start: dict[str, Any]) -> tuple[str, str]:
        """The script and its argument: a file, because YARN takes }} for its own in arguments."""
        settings = self._base / "settings.json"
        settings.write_text(json.dumps(self.program | {"start": start}))
        return str(_PROGRAM), str(settings)

    def _variables(self, prefix: str) -> dict[str, str]:
        return {f"{prefix}.{name}": value for name, value in self.variables.items()}

    # -- the installed program

    def turnback(self, *arguments: object, code: int = 0) -> str:
        return self._call("turnback", *map(str, arguments), code=code)

    def ask(self, *arguments: object) -> Any:
        return json.loads(self.turnback("--json", *arguments))

    def _call(self, program: str, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [_BIN / program, *arguments],
            env=self._environment,
            cwd=self._base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        told = f"{program} {arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == code, f"{told}\n{self.logs()}"
        return done.stdout + (done.stderr if code or program != "turnback" else "")

    # -- input and output

    def feed(self, files: int = 8) -> None:
        for _ in range(files):
            self._feeder.feed()

    def await_complete(self) -> None:
        """Wait until all that was fed is in the output, and see that it is exactly that."""
        fed = Fed.read(self.events, self._fed)

        def is_complete() -> bool:
            return min(len(self.accounts()), len(self.regions())) >= fed.total

        self.until(is_complete, "write all that was fed")
        assert verify_rows(fed, self.accounts(), self.regions()) == []

    def accounts(self) -> list[dict[str, Any]]:
        """What a reader sees of the rows of accounts."""
        return read_rows(self.out / "accounts")

    def regions(self) -> list[dict[str, Any]]:
        return read_rows(self.out / "regions")

    # -- processes

    def until(self, what: Callable[[], T], told: str) -> T:
        """Wait for something to be true."""
        end = time.monotonic() + PATIENCE_S
        while not (found := what()):
            if time.monotonic() > end:
                raise AssertionError(f"the job did not {told} in {PATIENCE_S:g} s\n{self.logs()}")
            time.sleep(0.1)
        return found

    def in_mid_epoch(self, then: Callable[[], None]) -> None:
        """Feed, and do something while tasks are in the middle of it."""
        mark = self.hold.with_suffix(".held")
        mark.unlink(missing_ok=True)
        self.hold.touch()
        self.feed()
        self.until(mark.exists, "begin another epoch")
        then()
        self.hold.unlink()

    def driver(self) -> RunDirectory:
        """The newest launch of `turnback run`."""
        return RunDirectory(sorted((self._base / "runs").iterdir())[-1])

    def an_executor(self) -> Container:
        return self.until(self._yarn.executors, "start an executor")[0]

    def a_master(self, application: str) -> Container:
        """The process of the newest application master."""
        found = self.until(lambda: self._yarn.masters(application), "start a master")
        return max(found, key=lambda each: each.attempt)

    @property
    def storage(self) -> Storage:
        """The job's directory."""
        return JobDirectory.locate(self.root, JOB, {}).storage

    def attempts(self) -> list[Any]:
        """What each attempt has recorded about its start."""
        directory = JobDirectory.locate(self.root, JOB, {})
        return [directory.attempt(number) for number in directory.attempts()]

    def logs(self) -> str:
        """The end of what drivers and containers have printed."""
        found = sorted(self._base.glob("runs/*/driver.log"))
        drivers = [f"--- {path}\n{path.read_text()[-4000:]}" for path in found]
        return "\n".join([*drivers, self._yarn.logs()])

    def close(self) -> None:
        """End the job, supervisors first."""
        for path in sorted(self._base.glob("runs/*")):
            run = RunDirectory(path)
            for process in (run.supervisor(), run.driver(), run.supervisor()):
                if process is not None and process.is_alive():
                    os.kill(process.pid, 9)
        for application in self._yarn.applications():
            self._yarn.kill(application)
