"""Runs a job in the process of a test, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from turnback.api.environment import StreamExecutionEnvironment
from turnback.config.checkpointing import SavepointFormat
from turnback.driver.job import JobReport
from turnback.errors import ConfigurationError, NotFoundError, TurnbackError
from turnback.job.directory import STATUS, JobDirectory
from turnback.testing.crash_points import POINTS
from turnback.testing.engine import LocalDriver, LocalEngine
from turnback.testing.streams import Outputs, Pushes, newest_state, unknown

ProgramBuilder = Callable[[StreamExecutionEnvironment], object]

_DEFAULTS = {
    "execution.checkpointing.interval": "1 h",  # the harness takes them itself
    "execution.checkpointing.num-retained": 5,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 3,
    "restart-strategy.fixed-delay.delay": "0 s",
}
_POLL_S = 0.005


class DriverCrash(Exception):
    """The driver of a job under test was killed where the test wanted it."""


class JobHarness:
    """A job under test: the real driver, state, checkpoints and savepoints, in one process.

        def program(env):
            events = source(env, "events", "post string, kind string")
            counts = events.key_by("post").process(Count(), "post string, n bigint").uid("count")
            counts.sink_to(FileSink("/data/counts", "json")).uid("counts")

        with JobHarness(program, tmp_path) as job:
            job.push("events", ("p1", "view"), ("p1", "click"))
            assert job.output("counts") == [("p1", 1), ("p1", 2)]
            assert job.state("count", "n") == {"p1": 2}

    Sinks are replaced: what they would write is collected, and returned by `output`. Checkpoints
    are taken by `push` and `checkpoint`, never by themselves. A task that fails is restarted as the
    configuration says: by default up to three times, at once.

    Args:
        program: Builds the job in the environment it is given; it must not call `execute`.
        directory: For the job directory, local state and savepoints; such as pytest's `tmp_path`.
        name: The job's name.
        parallelism: Number of instances of every operator that has none of its own.
        state_backend: "hashmap" or "rocksdb".
        configuration: Further settings, with Flink's keys.
        real_sinks: Uids of sinks that are not replaced. Let them write below `directory`: what a
            killed driver does to any other target is undefined.
    """

    def __init__(
        self,
        program: ProgramBuilder,
        directory: str | PathLike[str],
        *,
        name: str = "job",
        parallelism: int = 2,
        state_backend: str = "hashmap",
        configuration: Mapping[str, Any] | None = None,
        real_sinks: Collection[str] = (),
    ) -> None:
        if not callable(program):
            raise ConfigurationError(
                f"JobHarness takes a function that builds the program, got {program!r:.80}"
            )
        if not isinstance(directory, str | PathLike):
            raise ConfigurationError(f"JobHarness takes a directory, got {directory!r:.80}")
        self.directory = Path(fspath(directory))
        self._name = name
        self._program = program
        self._parallelism = parallelism
        self._backend = state_backend
        self._configuration = dict(configuration or {})
        self._pushes = Pushes()
        self._outputs = Outputs(real_sinks)
        self._uids: list[str] = []
        self._points: dict[str, int] = {}
        self._driver: LocalDriver | None = None
        self._savepoints = 0

    def __enter__(self) -> JobHarness:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- its life

    def start(
        self,
        program: ProgramBuilder | None = None,
        *,
        parallelism: int | None = None,
        state_backend: str | None = None,
        start_from: str | int | PathLike[str] | None = None,
        **how: Any,
    ) -> JobHarness:
        """Start a driver: from the newest checkpoint, or from what is given.

        What is given here also holds for later starts, except for `start_from` and `how`.

        Args:
            program: Another version of the program.
            parallelism: Another parallelism.
            state_backend: Another backend.
            start_from: A checkpoint or a savepoint, as in `execute_async`.
            **how: Anything else that `execute_async` takes, such as `fork` or `renames`.

        Raises:
            TurnbackError: The job does not start from it.
        """
        if self._driver is not None:
            raise ConfigurationError(f"job {self._name!r} is already running; stop it first")
        self._program = program or self._program
        self._parallelism = parallelism or self._parallelism
        self._backend = state_backend or self._backend
        engine = LocalEngine(self._pushes)
        env = self._environment(engine)
        self._program(env)
        self._uids = [node.uid for node in env._graph.nodes if node.uid]
        self._outputs.collect_from(env._graph)
        points = self._points
        self._points = {}
        self._driver = LocalDriver(
            engine,
            lambda: env.execute_async(
                self._name, start_from=start_from, **{"bounded": False, **how}
            ),
            points,
        )
        self._until_running()
        return self

    def stop(self) -> None:
        """End the driver as a user would: after a last checkpoint."""
        driver = self._running()
        driver.client.stop().result()
        self._end(driver)

    def restart(self, program: ProgramBuilder | None = None, **how: Any) -> JobHarness:
        """Stop and start again, with another program, parallelism or backend if one is given."""
        self.stop()
        return self.start(program, **how)

    def close(self) -> None:
        """End the driver if there is one."""
        driver = self._driver
        self._driver = None
        if driver is not None:
            driver.close()

    # -- what goes in and comes out

    def push(self, uid: str, *elements: Any, partition: int = 0, checkpoint: bool = True) -> None:
        """Give a source elements, and wait until the job has processed them, as one epoch.

        Args:
            uid: Of the source.
            *elements: Rows as tuples, dicts, `Row`, or what the source's type says.
            partition: Of the source, if it was declared with partitions.
            checkpoint: Take a checkpoint, so that output is committed and state can be seen.

        Raises:
            ConfigurationError: There is no such source, or partition.
            ElementTypeError: An element is none of the source's type.
            JobFailedError: The job has failed for good.
            DriverCrash: The driver was killed, as `crash_at` requested.
        """
        engine = self._running().engine
        # An earlier version of the program may have had sources that nobody reads any more.
        sources = {
            uid: self._pushes.sources[uid] for uid in self._pushes.sources.keys() & engine.sources
        }
        if uid not in sources:
            raise unknown("source", uid, sources)
        if elements:
            sources[uid].push(elements, partition)
            self._pushes.arrived.set()
        pushed = {uid: len(source.batches) for uid, source in sources.items()}
        self._until(lambda: all(engine.pushes_read(uid) >= n for uid, n in pushed.items()))
        if checkpoint:
            self.checkpoint()

    def output(self, uid: str) -> list[Any]:
        """All elements that a sink has been given for good so far, by any driver.

        Raises:
            ConfigurationError: There is no such sink, or it is a real one.
        """
        return self._outputs.of(uid)

    def state(self, uid: str, name: str) -> dict[Any, Any]:
        """A state in the newest checkpoint: its keys with their value, list or dict.

        Reducing state has the reduced value, aggregating state the accumulator.

        Raises:
            StateError: There is no such state, or no checkpoint yet.
        """
        return newest_state(self._job_directory(), uid, name)

    @property
    def report(self) -> JobReport:
        """What the running driver has done: attempts, epochs, what it was restored from."""
        return self._running().client.report

    # -- snapshots

    def checkpoint(self) -> str:
        """Take a checkpoint of the newest epoch; returns its name, for `start_from`."""
        driver = self._running()
        while True:
            self._until_running()
            future = driver.hold()
            if future is None:
                continue
            self._until(future.done)
            try:
                with future.result() as held:
                    return held.manifest.name
            except TurnbackError:
                if driver.is_running():
                    raise  # else the job restarts, and the next attempt can take it

    def savepoint(
        self,
        path: str | PathLike[str] | None = None,
        format_type: SavepointFormat = SavepointFormat.CANONICAL,
    ) -> Path:
        """Take a savepoint while the job runs; returns where it is.

        Args:
            path: A new directory; by default one below the harness's directory.
            format_type: Typed Parquet (canonical) or copies of state files (native).
        """
        driver = self._running()
        self._savepoints += 1
        target = Path(path or self.directory / f"savepoint-{self._savepoints}")
        future = driver.client.trigger_savepoint(target, format_type)
        self._until(future.done)
        future.result()
        return target

    # -- faults

    def crash(self) -> None:
        """Kill the driver, as SIGKILL would; `start` starts another one."""
        driver = self._running()
        driver.kill()
        self._end_killed(driver)

    def crash_at(self, point: str, count: int = 1) -> None:
        """Kill the driver when it reaches a named point for the `count`-th time.

        Whatever waits for the driver then raises `DriverCrash`. Without a driver it is about the
        next one.

        Raises:
            ConfigurationError: There is no such point.
        """
        if point not in POINTS:
            raise unknown("crash point", point, POINTS)
        if not isinstance(count, int) or count < 1:
            raise ConfigurationError(f"count must be a whole number above 0, got {count!r}")
        if self._driver is not None:
            self._driver.kill_at(point, count)
        else:
            self._points[point] = count

    def fail_task(self, uid: str, error: Exception | None = None) -> None:
        """Let the next task that runs an operator fail, as if its function had raised.

        Args:
            uid: Of the operator, or of a sink.
            error: What it raises; by default a `RuntimeError`.
        """
        if uid not in self._uids:
            raise unknown("operator", uid, self._uids)
        if error is not None and not isinstance(error, Exception):
            raise ConfigurationError(f"error must be an exception, got {error!r:.80}")
        self._running().engine.fail_next_task(uid, error or RuntimeError("failed by the test"))

    # -- inside

    def _environment(self, engine: LocalEngine) -> StreamExecutionEnvironment:
        settings = {
            **_DEFAULTS,
            "state.backend.type": self._backend,
            "state.backend.local-dir": str(self.directory / "local"),
            **self._configuration,
        }
        env = StreamExecutionEnvironment(None, self.directory / "jobs", settings, engine=engine)
        return env.set_parallelism(self._parallelism)

    def _job_directory(self) -> JobDirectory:
        return JobDirectory.locate(str(self.directory / "jobs"), self._name)

    def _running(self) -> LocalDriver:
        if self._driver is None:
            raise ConfigurationError(f"job {self._name!r} is not running; start it first")
        return self._driver

    def _until_running(self) -> None:
        self._until(self._running().is_running)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the driver does; raises if the driver ends."""
        driver = self._running()
        while not condition():
            self._check(driver)
            time.sleep(_POLL_S)

    def _check(self, driver: LocalDriver) -> None:
        """Raise if the driver has ended, with the reason."""
        if driver.killed_at is not None:
            driver.wait_for_threads()
            self._end_killed(driver)
            raise DriverCrash(
                f"the driver was killed at {driver.killed_at!r}, as crash_at requested"
            )
        if driver.client.done():
            self._end(driver)
            driver.client.result()
            raise TurnbackError(f"job {self._name!r} has ended")

    def _end_killed(self, driver: LocalDriver) -> None:
        """Let the job's status name a process that is gone, as after a real kill."""
        self._end(driver)
        storage = self._job_directory().storage
        try:
            status = json.loads(storage.get(STATUS))
        except NotFoundError:
            return  # it was killed before it wrote one
        status["process"]["started"] = "before"
        storage.put(STATUS, json.dumps(status).encode())

    def _end(self, driver: LocalDriver) -> None:
        self._driver = None
        driver.close()
