"""One run: an operator who keeps a job going through whatever a seed has in store."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from unittest import mock

from simulation.driver import Driver, Program, context_with, groups_of, job_spec
from simulation.engine import SOURCE, Input
from simulation.plants import planted
from simulation.targets import KINDS, Targets, target
from simulation.threads import simulated
from simulation.world import SimStorage, World
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import CheckpointSettings
from turnback.spark import runner as spark_runner
from turnback.state import files as state_files
from turnback.storage import open as storage_open

_KEYS = ("a", "b", "c", "d")
_GROUPS: dict[str, int] = {}


class WrongOutcomeError(AssertionError):
    """Readers see something else than without faults."""


@dataclass
class Run:
    """A world with one job in it.

    Attributes:
        plant: The defect to plant, see `plants`.
    """

    seed: int
    plant: str | None = None
    world: World = field(init=False)
    turns: list[int] = field(default_factory=list)
    """From where the job was, or may have been, turned back: offsets of the input."""

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        rng = self.world.rng
        keys = _KEYS[: rng.randint(1, 4)]
        records = [(rng.choice(keys), place) for place in range(rng.randint(4, 24))]
        if not _GROUPS:
            _GROUPS.update(groups_of(list(_KEYS)))
        self.input = Input(records, dict(_GROUPS))
        self.root = f"simulation-{self.seed}"
        sinks = tuple(kind for kind in KINDS if rng.random() < 0.5) or ("two-phase",)
        self.program = Program(sinks, rng.randint(1, 3))
        self.settings = CheckpointSettings(
            interval_ms=rng.choice((100, 200, 1000)),
            timeout_ms=rng.choice((1000, 600_000)),
            num_retained=rng.choice((1, 2, 3, 3)),
            tolerable_failures=rng.choice((0, 2)),
            max_concurrent=rng.randint(1, 2),
        )
        self.storages: dict[str, SimStorage] = {}
        self.drivers: list[Driver] = []

    def play(self) -> None:
        """Raise `WrongOutcomeError` if readers see something wrong in the end."""
        Targets.begin(self.world)
        with ExitStack() as patches:
            patches.enter_context(simulated(self.world, self._storage))
            patches.enter_context(
                mock.patch.object(spark_runner, "JobContext", context_with(self.world.clock))
            )
            patches.enter_context(planted(self.plant))
            patches.enter_context(mock.patch("importlib.metadata.version", lambda name: "1"))
            state_files._opened.cache_clear()
            try:
                self._live_through_faults()
                self._finish()
                self._check()
            finally:
                state_files._opened.cache_clear()
                storage_open._ROOTS.pop(self.root, None)

    # -- the operator

    def _live_through_faults(self) -> None:
        world = self.world
        rng = world.rng
        limit = rng.choice((500, 1500, 3000))
        while world.steps < limit and world.faults.left:
            running = [d for d in self.drivers if world.is_running(d.process)]
            awake = [d for d in running if d.process.asleep_until <= world.steps]
            if not awake or rng.random() < 0.0005:
                self._start()
            elif rng.random() < 0.001:
                world.clock.jump(rng.choice((-3_600_000, 86_400_000)))
                world.tell("the wall clock jumps")
            world.step()
            if any(driver.outcome == "finished" for driver in self.drivers):
                break

    def _start(self) -> Driver:
        world = self.world
        if self.drivers and world.rng.random() < 0.3:
            self.program = Program(self.program.sinks, world.rng.randint(1, 3))
        process = world.process(f"driver {len(self.drivers) + 1}")
        spec = job_spec(f"memory://{self.root}", self.settings, start_from=self._older())
        driver = Driver(world, process, self.program, spec, self.input)
        self.drivers.append(driver)
        driver.start()
        return driver

    def _older(self) -> int | None:
        """Now and then, an older checkpoint to turn the job back to."""
        rng = self.world.rng
        if self.world.healthy or rng.random() > 0.4:
            return None
        manifests = CheckpointLog(self._job_storage().inner).scan().manifests
        if len(manifests) < 2:
            return None
        chosen = rng.choice(manifests[:-1])
        self.turns.append(int(chosen.sources[SOURCE].offset or 0))
        return chosen.number

    def _job_storage(self) -> SimStorage:
        return self._storage(f"{self.root}/job")

    def _finish(self) -> None:
        """Let everybody end who is left, and then the job, with nothing in its way."""
        world = self.world
        world.end_faults()
        while world.step():
            pass
        driver = self._start()
        while world.step():
            pass
        if driver.outcome != "finished":
            raise WrongOutcomeError(f"the last driver could not finish the job: {driver.outcome!r}")

    def _storage(self, name: str) -> SimStorage:
        if name not in self.storages:
            self.storages[name] = SimStorage(self.world, name)
        return self.storages[name]

    # -- what readers must see

    def _check(self) -> None:
        counts: Counter[str] = Counter()
        most: dict[tuple[str, int], int] = {}
        for key, place in self.input.records:
            counts[key] += 1
            most[key, counts[key]] = 1 + sum(turn <= place for turn in self.turns)
        for kind in self.program.sinks:
            if kind == "idempotent":
                seen = {key: row[1] for key, (_, _, row) in target(kind).values.items()}
                if seen != dict(counts):
                    raise WrongOutcomeError(f"{kind} shows {seen}, not {dict(counts)}")
            else:
                self._check_rows(kind, most)
        log = CheckpointLog(self._job_storage().inner)
        newest = log.latest()
        if newest is not None and log.uncommitted(newest):
            raise WrongOutcomeError("the newest checkpoint has promised output that is not there")
        staged = [p for p in self._job_storage().inner.list("sinks") if p.endswith(".arrow")]
        if staged:
            raise WrongOutcomeError(f"left staged: {staged}")

    def _check_rows(self, kind: str, most: dict[tuple[str, int], int]) -> None:
        """Each row is there, and no more often than the job was turned back behind it."""
        place = target(kind)
        rows = Counter(place.rows)
        lost = sorted(row for row in most if not rows[row])
        more = sorted(row for row, times in rows.items() if times > most.get(row, 0))
        if lost or more:
            raise WrongOutcomeError(f"{kind}: lost {lost}, too often {more}")
        for key in self.input.groups:
            order = [row[1] for row in place.rows if row[0] == key]
            if not self.turns and order != sorted(order):
                raise WrongOutcomeError(f"{kind}: the order of key {key} is {order}")
        if place.prepared:
            raise WrongOutcomeError(f"{kind}: left prepared: {sorted(place.prepared)}")


def play(seed: int, plant: str | None = None) -> Run:
    """Play a seed; raises what went wrong, with the story in its notes."""
    logging.getLogger("turnback").setLevel(logging.CRITICAL)
    run = Run(seed, plant)
    try:
        run.play()
    except Exception as error:
        error.add_note("\n".join(run.world.story))
        raise
    return run
