"""A driver: the real runner, starter, log, coordinator and commits, without its side threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from local_engine import environment, source
from simulation import databases, kafka, redis, tables
from simulation.engine import COUNT, SOURCE, Input, SimEngine
from simulation.files import SimulatedFiles
from simulation.history import kind_of
from simulation.targets import KINDS
from simulation.world import Killed, Process, World
from turnback import KeyedProcessFunction, Types, ValueStateDescriptor
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import CheckpointSettings
from turnback.config.restart import RestartStrategies
from turnback.driver import runner as driver_runner
from turnback.driver.context import JobContext
from turnback.driver.job import JobSpec
from turnback.errors import FINAL, REPLACED
from turnback.job.run import StartOptions
from turnback.job.status import JobState
from turnback.plan.plan import Plan
from turnback.sinks.base import Sink

_MOST_ATTEMPTS = 4
FORK = "fork-"
"""Begins the names of the targets of a fork."""
RECORD = Types.ROW_NAMED(["key", "place"], [Types.STRING(), Types.LONG()])
RESULT = Types.ROW_NAMED(["key", "n"], [Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    """Stands for the count that simulated tasks do."""

    n = ValueStateDescriptor("n", Types.LONG())

    def process_element(self, value: Any, ctx: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Program:
    """What an operator starts: which sinks, how many tasks, and what is said about the sinks.

    Attributes:
        sinks: Their uids, which name their kind as well, see `kind_of`.
        renames: What they were called before, old to new, as far as the operator says so.
        allow: Whether promised output of others may be left out.
    """

    sinks: tuple[str, ...]
    parallelism: int = 2
    renames: tuple[tuple[str, str], ...] = ()
    allow: bool = False

    @property
    def kinds(self) -> list[str]:
        return [kind_of(uid) for uid in self.sinks]

    @lru_cache(maxsize=64)  # noqa: B019 - there are few
    def plan(self) -> Plan:
        env = environment(self.parallelism).set_max_parallelism(16)
        records = source(env, SOURCE, RECORD)
        counts = records.key_by("key").process(Count(), output_type=RESULT).uid(COUNT)
        for uid in self.sinks:
            counts.sink_to(make_sink(kind_of(uid))).uid(uid)
        return env.plan()


def make_sink(kind: str) -> Sink:
    if kind == "files":
        return SimulatedFiles(kind)
    if kind in kafka.KINDS:
        return kafka.SimulatedKafka(kind)
    if kind in tables.KINDS:
        return tables.sink(kind)
    if kind in redis.KINDS:
        return redis.sink(kind)
    model = KINDS.get(kind.removeprefix(FORK))
    return model(kind) if model is not None else databases.sink(kind)


def groups_of(keys: list[str]) -> dict[str, int]:
    """The key group of each key, as the program has them."""
    plan = Program(("two-phase",)).plan()
    (channel,) = [channel for channel in plan.channels if channel.key is not None]
    assert channel.key is not None
    group = channel.key.codec().group
    return {key: group(key, plan.max_parallelism) for key in keys}


@dataclass
class Driver:
    """A driver process, from its start to its end.

    Attributes:
        outcome: How it has ended; None while it runs, or if it was killed.
        failure: Why its last attempt failed.
        on_attempt: Called with the number of each attempt that has recorded its start.
        serves: Whether it serves requests, such as for savepoints.
        attempts: How many have recorded their start.
        older: The checkpoints that a fresh start leaves behind.
    """

    world: World
    process: Process
    program: Program
    spec: JobSpec
    input: Input
    on_attempt: Callable[[Driver, int], None]
    serves: bool = False
    attempts: int = field(default=0, init=False)
    older: Sequence[int] = field(default=(), init=False)
    outcome: BaseException | str | None = field(default=None, init=False)
    failure: BaseException | None = field(default=None, init=False)

    def start(self) -> None:
        self.world.tell(
            f"== {self.process.name} starts: {self.program.parallelism} tasks, "
            f"from {self._from}, "
            f"into {', '.join(self.program.sinks)}"
            f"{f', renamed {self.program.renames}' if self.program.renames else ''}"
            f"{', without the rest' if self.program.allow else ''}"
        )
        self.world.spawn(self.process.name, self.process, self._main)

    @property
    def _from(self) -> str:
        start = self.spec.start
        return "nothing" if start.fresh else str(start.start_from or "the newest")

    def _main(self) -> None:
        try:
            self.outcome = self._run()
        except Killed:
            raise
        except Exception as error:  # noqa: BLE001 - the end of the process
            self.outcome = error
        self.world.tell(f"== {self.process.name} ends: {self.outcome!r}")

    def _run(self) -> BaseException | str:
        """What `JobRunner.run` does, without a heartbeat and a monitor."""
        plan = self.program.plan()
        engine: Any = SimEngine(self.world, self.process, self.input, plan)
        runner: Any = driver_runner.JobRunner(engine, plan, self.spec)
        record_start = runner._record_start

        def recorded(log: CheckpointLog, matched: object, *, told: bool) -> None:
            record_start(log, matched, told=told)
            self.attempts += 1
            self.on_attempt(self, log.own_fence.attempt)

        runner._record_start = recorded
        runner._planner.check()
        directory = runner._directory
        runner._info = directory.renew() if self.spec.start.fresh else directory.open()
        runner.report.job_id = runner._info.job_id
        runner._throughput.begin(runner._info.job_id)
        if not self.serves:
            return self._run_attempts(runner)
        with runner._serving_requests():
            outcome = self._run_attempts(runner)
            if outcome == "finished":
                runner._write_status(JobState.FINISHED, runner._last_update)
            elif not isinstance(outcome, REPLACED):
                runner._write_status(JobState.FAILED, runner._last_update)
            return outcome

    def _run_attempts(self, runner: Any) -> BaseException | str:
        for _ in range(_MOST_ATTEMPTS):
            cause = runner._run_attempt()
            self.process.require_alive()
            if cause is None:
                return "finished"
            self.failure = cause
            self.world.tell(f"{self.process.name}: the attempt failed: {cause!r}")
            if isinstance(cause, (*FINAL, *REPLACED)):
                return cause
        return "gave up"


def job_spec(root: str, settings: CheckpointSettings, **more: Any) -> JobSpec:
    restart = RestartStrategies.no_restart()
    start = {name: more.pop(name) for name in StartOptions.__struct_fields__ if name in more}
    spec = JobSpec("job", root, settings, restart, "hashmap", bounded=True)
    return replace(spec, start=StartOptions(**start), **more)


def context_with(clock: Any) -> Any:
    """`JobContext` for runners, with the clock of a world."""

    def make(engine: Any, plan: Plan, spec: JobSpec, directory: Any) -> JobContext:
        directory._clock = clock
        return JobContext(engine, plan, spec, directory, clock)

    return make
