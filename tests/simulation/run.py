"""One run: an operator who keeps a job going through whatever a seed has in store."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from simulation import databases
from simulation import files as simulated_fs
from simulation import kafka as simulated_broker
from simulation import redis as simulated_redis
from simulation import tables as simulated_lake
from simulation.databases import simulated_databases
from simulation.driver import FORK, Driver, Program, context_with, groups_of, job_spec, make_sink
from simulation.engine import COUNT, Input, counts_in
from simulation.files import simulated_files
from simulation.history import History, Promise, Row, decoded, kind_of, offset_of
from simulation.kafka import simulated_kafka
from simulation.plants import (
    ABORTED,
    ANEW,
    FOCUS,
    HANDED_OVER,
    MOVED,
    RESTORED,
    SAVED,
    SINKS,
    TURNED_BACK,
    UPGRADED,
    planted,
)
from simulation.redis import simulated_redis as redis_patches
from simulation.tables import simulated_tables
from simulation.targets import KINDS, Targets, target
from simulation.threads import simulated
from simulation.world import Process, SimStorage, World
from turnback.checkpoint import log as checkpoint_log
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import Manifest
from turnback.config.checkpointing import CheckpointSettings, SavepointFormat
from turnback.driver import job as driver_job
from turnback.driver import restore_plan
from turnback.driver import runner as driver_runner
from turnback.driver import savepoints as driver_savepoints
from turnback.errors import IncompatibleStateError, TurnbackError
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import AttemptInfo, JobDirectory
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.operations import transactions
from turnback.operations.transactions import Action, settle
from turnback.sinks.base import directory_digest
from turnback.sinks.staged_elements import StagedTask
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.find import resume_point
from turnback.snapshot.metadata import SavepointMetadata
from turnback.snapshot.snapshot import Snapshot, verify_snapshot
from turnback.state import files as state_files
from turnback.state.files import StorageRef, clip_files
from turnback.storage import open as storage_open
from turnback.views.job import Job

_MOST_STEPS = 1500
_MOST_DRIVERS = 10
_KEYS = ("a", "b", "c", "d")
_SERVED = 0.4
"""The share of seeds in which drivers serve requests."""
_FORK_DRIVERS = 2
_GROUPS: dict[str, int] = {}


class WrongOutcomeError(AssertionError):
    """Readers see something else than without faults."""


@dataclass
class Run:
    """A world with one job in it.

    Attributes:
        plant: The defect to plant, see `plants`.
        sinks: The sinks of the job; by default the seed decides.
    """

    seed: int
    plant: str | None = None
    kinds: Sequence[str] = ()
    """The sinks that the program may have; all if none are named."""
    world: World = field(init=False)
    turned_back: bool = False
    """Whether the job was, or may have been, turned back."""

    def __post_init__(self) -> None:
        self.world = World(self.seed)
        if self.plant in FOCUS:
            place, kinds = FOCUS[self.plant]
            self.world.faults = replace(self.world.faults, focus=(place,), kinds=kinds, left=8)
        rng = self.world.rng
        keys = _KEYS[: rng.randint(1, 4)]
        records = [(rng.choice(keys), place) for place in range(rng.randint(4, 32))]
        if not _GROUPS:
            _GROUPS.update(groups_of(list(_KEYS)))
        self.input = Input(records, dict(_GROUPS))
        self._original = f"simulation-{self.seed}"
        self.root = self._original
        """Where the job is that goes on; a copy of it has another."""
        self.backup: dict[str, bytes] | None = None
        self.take_over = False
        self.restored = False
        """Whether drivers were forgotten, so that nobody settles what they have left."""
        self.kinds_played = self._kinds()
        """The kinds of sinks that the program has at one time or another."""
        self.program = Program(self._first_sinks(), rng.randint(1, 3))
        self.uids = set(self.program.sinks)
        """What the sinks have been called."""
        self.history = History(records)
        self.wrong: list[str] = []
        self.settings = CheckpointSettings(
            interval_ms=rng.choice((20, 50, 200)),
            timeout_ms=rng.choice((1000, 600_000)),
            num_retained=rng.choice((1, 2, 3, 3)),
            tolerable_failures=rng.choice((0, 2)),
            max_concurrent=rng.randint(1, 2),
        )
        draws = random.Random(f"savepoints {self.seed}")
        self.serves = self.plant in SAVED or draws.random() < _SERVED
        if self.plant in RESTORED:
            self.serves = False
        """Whether drivers serve requests, and the job may be started from savepoints and anew."""
        self.most_drivers = 0
        self.asked = 0
        """For how many savepoints somebody has asked."""
        self.storages: dict[str, SimStorage] = {}
        self.drivers: list[Driver] = []
        self.by_hand: dict[str, str] = {}
        """The job directory that each process is about which settles output by hand."""

    def _kinds(self) -> tuple[str, ...]:
        rng = self.world.rng
        models = (*KINDS, "files")
        servers = (
            *databases.KINDS,
            *simulated_broker.KINDS,
            *simulated_redis.KINDS,
            *simulated_lake.KINDS,
        )
        wanted = self.kinds or SINKS.get(self.plant or "") or (*models, *servers)
        if self.plant in {*HANDED_OVER, *UPGRADED}:
            return (rng.choice(wanted),)  # a copy of a job takes over one target
        # Of all there are, a story has about two servers: each of them takes its time.
        share = 2 / len(servers) if set(servers) <= set(wanted) else 0.2
        drawn = [kind for kind in wanted if rng.random() < (0.4 if kind in models else share)]
        return tuple(drawn) or (rng.choice(wanted),)

    def _first_sinks(self) -> tuple[str, ...]:
        """Most of the sinks; others are added later, or never."""
        rng = self.world.rng
        drawn = [kind for kind in self.kinds_played if rng.random() < 0.9]
        return tuple(drawn) or self.kinds_played

    def play(self) -> None:
        """Raise `WrongOutcomeError` if readers see something wrong in the end."""
        Targets.begin(self.world)
        with ExitStack() as patches:
            patches.enter_context(simulated(self.world, self._storage))
            patches.enter_context(
                mock.patch.object(driver_runner, "JobContext", context_with(self.world.clock))
            )
            if "files" in self.kinds_played:
                patches.enter_context(simulated_files(self.world))
            if self._databases:
                patches.enter_context(
                    simulated_databases(self.world, self._directory_of, self._promised_by)
                )
            if self._kafka:
                patches.enter_context(simulated_kafka(self.world))
            if self._tables:
                patches.enter_context(simulated_tables(self.world))
            if self._redis:
                patches.enter_context(redis_patches(self.world, self._directory_of))
            patches.enter_context(planted(self.plant))
            # All drivers are in this process, which is alive.
            patches.enter_context(
                mock.patch.object(transactions, "_require_dead", lambda job, force: None)
            )
            # The same in every process, or a seed would not tell the same story.
            patches.enter_context(mock.patch.object(driver_runner, "getpid", lambda: 1))
            patches.enter_context(mock.patch("importlib.metadata.version", lambda name: "1"))
            for module in (driver_job, driver_savepoints):
                patches.enter_context(mock.patch.object(module, "version", lambda name: "1"))
            patches.enter_context(mock.patch.object(checkpoint_log, "decode", decoded))
            # Simulated tasks do not read it, and it takes longer than all else that a start does.
            patches.enter_context(mock.patch.object(restore_plan, "pickled", lambda *_: b""))
            state_files._opened.cache_clear()
            try:
                self._live_through_faults()
                self._finish()
                self._check()
                if self.serves:
                    self._fork()
            finally:
                state_files._opened.cache_clear()
                for place in ("", "-copy", "-fork", "-savepoints"):
                    storage_open._ROOTS.pop(self._original + place, None)

    # -- the operator

    def _live_through_faults(self) -> None:
        world = self.world
        rng = world.rng
        self.most_drivers = 7 if self.plant in RESTORED else rng.randint(2, 7)
        is_restless = self.plant in {*SAVED, *RESTORED}
        restlessness = 0.03 if is_restless else rng.choice((0.0, 0.005, 0.02))
        while world.steps < _MOST_STEPS:
            running = [d for d in self.drivers if world.is_running(d.process)]
            awake = [d for d in running if d.process.asleep_until <= world.steps]
            if not awake:
                if len(self.drivers) >= self.most_drivers:
                    return
                self._change_place()
                self._start()
            elif rng.random() < restlessness:
                self._intervene(rng.choice(awake))
            world.step()

    def _intervene(self, driver: Driver) -> None:
        """Do something to a driver that runs, or beside it."""
        world = self.world
        if self._kafka and world.rng.random() < 0.4:
            simulated_broker.disturb(world)
            return
        if self._redis and world.rng.random() < 0.3:
            # Without that note, whoever comes first has the keys: also a job that has lost them.
            simulated_redis.disturb(world, may_forget=not self.take_over)
            return
        if self.serves and world.rng.random() < (0.8 if self.plant in SAVED else 0.5):
            self._ask()
            return
        what = world.rng.choice(("kill", "pause", "second", "clock", "backup"))
        if self.plant in RESTORED and self.backup is None:
            what = "backup"
        if what == "kill":
            world.tell(f"== {driver.process.name} is killed")
            world.kill(driver.process)
        elif what == "pause":
            world.tell(f"== {driver.process.name} is paused")
            world.pause(driver.process, world.rng.choice((50, 200, 1000)))
        elif what == "second":
            if len(self.drivers) < _MOST_DRIVERS:
                self._start()
        elif what == "backup":
            files = dict(storage_open._ROOTS[self.root])
            # Without a job it would be another one after that, and not all is published of one
            # whose promised files are being removed just now: a start says so, for good.
            if "job/job.json" in files and self._has_promised_files():
                world.tell("== the job directory is backed up")
                self.backup = files
        else:
            world.tell("== the wall clock jumps")
            world.clock.jump(world.rng.choice((-3_600_000, 86_400_000)))

    def _has_promised_files(self) -> bool:
        """Whether all is there that write-ahead sinks have staged and checkpoints promise."""
        storage = self._job_storage().inner
        log = CheckpointLog(storage)
        there = set(storage.list("sinks"))
        return all(
            there.issuperset(StagedTask.decode(transaction, uid).paths)
            for manifest in log.scan().manifests
            for uid, transactions in log.uncommitted(manifest).items()
            if kind_of(uid) in ("write-ahead", "kafka")
            for transaction in transactions
        )

    def _ask(self) -> None:
        """Ask for a savepoint, and perhaps that the job ends with it."""
        self.asked += 1
        kind = self.world.rng.choice((RequestKind.SAVEPOINT, RequestKind.STOP))
        spec = RequestSpec(
            kind,
            target=f"memory://{self._original}-savepoints/{self.asked}",
            type=SavepointFormat.NATIVE,
            savepoint=kind is RequestKind.STOP,
        )
        self.world.tell(f"== somebody asks for savepoint {self.asked}: {kind.value}")
        if "job/job.json" in storage_open._ROOTS.get(self.root, {}):
            Requests(self._job_storage().inner, self.world.clock).submit(spec)

    def _start(self, start_from: str | int | None = None, *, turns_back: bool = True) -> Driver:
        world = self.world
        if self.drivers and world.rng.random() < 0.2:
            self.program = replace(self.program, parallelism=world.rng.randint(1, 3))
        if self.drivers and not world.healthy and not self.restored and not self._is_fork:
            self._upgrade()
        process = world.process(f"driver {len(self.drivers) + 1}")
        fresh = start_from is None and turns_back and self._begins_anew()
        if start_from is None and turns_back and not fresh:
            start_from = self._older()
        # As a supervisor does: what was asked of a driver that died is asked of the next one.
        resumed = self.serves and not world.healthy and not fresh and start_from is None
        spec = job_spec(
            f"memory://{self.root}",
            self.settings,
            start_from=start_from,
            fresh=fresh,
            resumed=resumed and world.rng.random() < 0.5,
            take_over_sinks=self.take_over,
            renames=self._renames_for(start_from),
            allow_non_restored_state=self.program.allow,
        )
        driver = Driver(
            *(world, process, self.program, spec, self.input, self._on_attempt), serves=self.serves
        )
        driver.older = CheckpointLog(self._job_storage().inner).numbers() if fresh else []
        self.drivers.append(driver)
        driver.start()
        return driver

    def _renames_for(self, start_from: str | int | None) -> dict[str, str]:
        """Those of the program, as far as the savepoint has them that the job starts from."""
        renames = dict(self.program.renames)
        if start_from is None:
            storage = self._job_storage().inner
            point = resume_point(CheckpointLog(storage), JobDirectory(storage, "job"))
            start_from = point.snapshot if point is not None else None
        if isinstance(start_from, str):
            known = {operator.uid for operator in self._metadata(start_from).operators}
            return {old: new for old, new in renames.items() if old in known}
        return renames

    def _upgrade(self) -> None:
        """Now and then, go on with another program."""
        rng = self.world.rng
        if isinstance(self.drivers[-1].outcome, IncompatibleStateError):
            self._answer_refusal()
        elif rng.random() < (0.8 if self.plant in UPGRADED else 0.15):
            what = rng.choice(("rename", "rename", "drop", "add"))
            if what == "add" or self.plant in UPGRADED:
                what = what if set(self.kinds_played) - set(self.program.kinds) else "rename"
            if what == "drop" and len(self.program.sinks) == 1:
                what = "rename"
            self._change_sinks(what)

    def _change_sinks(self, what: str) -> None:
        """Rename a sink, drop one or add one, and say so or not."""
        rng = self.world.rng
        sinks = list(self.program.sinks)
        if what == "add":
            sinks.append(rng.choice(sorted(set(self.kinds_played) - set(self.program.kinds))))
        else:
            old = sinks.pop(rng.randrange(len(sinks)))
            if what == "rename":
                sinks.append(f"{kind_of(old)}.{len(self.uids)}")
        self.uids.update(sinks)
        told = [new for new in sinks if new in self.program.sinks or rng.random() < 0.7]
        self.program = replace(
            self.program,
            sinks=tuple(sinks),
            renames=self._renames(told),
            allow=what != "add" and rng.random() < 0.2,
        )

    def _renames(self, sinks: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """All that these sinks were called before: a start may be from any checkpoint."""
        return tuple(
            (old, new)
            for new in sinks
            for old in sorted(self.uids)
            if kind_of(old) == kind_of(new) and old != new
        )

    def _answer_refusal(self) -> None:
        """Do one of the things that the message of a refused start names."""
        answer = self.world.rng.choice(("rename", "allow", "settle"))
        if answer == "rename":
            self.program = replace(self.program, renames=self._renames(self.program.sinks))
        elif answer == "allow":
            self.program = replace(self.program, allow=True)
        else:
            self._settle(self.root)

    def _on_attempt(self, driver: Driver, attempt: int) -> None:
        """Hold a start against what may be left out; it has committed all else by now."""
        root = driver.spec.root.removeprefix("memory://")
        program = driver.program
        uids = {*program.sinks, *(old for old, _ in program.renames)}
        storage = self._storage(f"{root}/job")
        if driver.attempts == 1:
            self._check_start(driver, JobDirectory(storage.inner, "job").attempt(attempt))
        lost = self.history.leave_out(root, storage, attempt, uids, program.allow)
        if lost and not program.allow:
            self.wrong.append(f"{driver.process.name} leaves output of {sorted(lost)} out unasked")

    def _check_start(self, driver: Driver, recorded: AttemptInfo | None) -> None:
        """Hold what the first attempt of a driver starts from against what it was told."""
        told = driver.spec.start
        if recorded is None:
            return
        here = recorded.checkpoint if recorded.snapshot is None else recorded.snapshot
        if (told.fresh and here in driver.older) or told.start_from not in (None, here):
            self.wrong.append(f"{driver.process.name} starts from {here}")

    def _change_place(self) -> None:
        """Now and then restore the job directory, or go on with a copy; no driver is awake."""
        rng = self.world.rng
        # As late as possible, if that matters: what is forgotten is worth more then.
        is_time = self.plant not in RESTORED or len(self.drivers) == self.most_drivers - 1
        may_restore = is_time and not self._never_turns_back
        if self.backup is not None and may_restore and rng.random() < 0.5:
            self._restore(self.backup)
            return
        if self.plant in RESTORED:
            return
        wanted = rng.random() < (0.9 if self.plant in HANDED_OVER else 0.3)
        if wanted and len(self.program.sinks) == 1 and self.drivers:
            self._copy()
        elif self.drivers and rng.random() < (0.5 if self.plant in MOVED else 0.15):
            self._move()
        elif self.drivers and rng.random() < (0.8 if self.plant in ABORTED else 0.08):
            self._abort_by_hand()

    def _move(self) -> None:
        """Go on with the job directory in another place, whatever it has promised meanwhile."""
        self._end_all_drivers()
        files = storage_open._ROOTS[self.root]
        in_databases = databases.KINDS.keys() & set(self.kinds_played)
        # Those who have prepared rows are asked to move back, which is as if nothing was moved.
        prepared = any(databases.prepared(kind, self._mine) for kind in in_databases)
        if self.root != self._original or "job/job.json" not in files or prepared:
            return
        self.world.tell("== the job directory is moved")
        self.root = f"{self._original}-copy"
        storage_open._ROOTS[self.root] = dict(files)
        self.history.copy(self._original, self.root)
        files.clear()
        self.backup = None
        self.take_over = True

    def _restore(self, files: dict[str, bytes]) -> None:
        """Put a backup back; no driver may run meanwhile, but stray tasks may."""
        self.world.tell("== the job directory is restored from the backup")
        self._end_all_drivers()
        here = storage_open._ROOTS[self.root]
        here.clear()
        here.update(files)
        self.history.restore(self.root, self._job_storage())
        self._call_sinks_as_in(CheckpointLog(self._job_storage().inner).latest())
        self.backup = None
        self.turned_back = True
        self.take_over = True
        self.restored = True

    def _end_all_drivers(self) -> None:
        """Kill those that sleep as well, and wait until nothing of them can arrive any more."""
        for driver in self.drivers:
            self.world.kill(driver.process)
        self.world.forget_late_calls()

    def _copy(self) -> None:
        """Go on with a copy of the job directory, which takes the target over."""
        log = CheckpointLog(self._job_storage().inner)
        newest = log.latest()
        if self.root.endswith("-copy") or newest is None or log.uncommitted(newest):
            return
        self.world.tell("== the job directory is copied, and the copy goes on")
        if self._never_turns_back:  # what the original goes on to write, the copy could not
            self._end_all_drivers()
        files = dict(storage_open._ROOTS[self.root])
        if not self._never_turns_back and self.world.rng.random() < 0.5:
            self._start_and_hold_up()  # the original is not stopped, as it should be
        self.root = f"{self._original}-copy"
        storage_open._ROOTS[self.root] = files
        self.history.copy(self._original, self.root)
        self.backup = None
        self.turned_back = True
        self.take_over = True
        if self.world.rng.random() < 0.5:
            self._settle(self._original)

    def _start_and_hold_up(self) -> None:
        """Start a driver that stands still as soon as a checkpoint of its promises rows, or before.

        Where nothing is promised, as tasks write at once, it does so at any time.
        """
        # Values that the original has turned back are not turned forward by the copy.
        driver = self._start(turns_back=not self._has_values)
        mine = driver.spec.root + "/job"
        while self.world.is_running(driver.process):
            is_server = self._redis or self._databases
            if self._promised_by(mine) or (is_server and self.world.rng.random() < 0.02):
                self.world.tell(f"== {driver.process.name} is paused")
                self.world.pause(driver.process, self.world.rng.choice((100, 1000)))
                return
            self.world.step()

    def _abort_by_hand(self) -> None:
        """Drop what the job has promised, so that it goes on without it."""
        storage = self._job_storage()
        newest = CheckpointLog(storage.inner).latest()
        if newest is None or not CheckpointLog(storage.inner).uncommitted(newest):
            return
        process = self._settle(self.root, Action.ABORT)
        while self.world.is_running(process):
            self.world.step()
        self.history.drop_newest(self.root, storage)

    def _settle(self, root: str, action: Action = Action.COMMIT) -> Process:
        """Settle by hand what a job has left, such as in a target that a copy is to take over."""
        sinks = {uid: make_sink(kind_of(uid)) for uid in sorted(self.uids)}

        def run() -> None:
            directory = JobDirectory(self._storage(f"{root}/job"), "job")
            try:
                settle(Job(directory), action, sinks, force=True)
            except TurnbackError as error:
                self.world.tell(f"== it cannot be settled: {error}")

        self.world.tell(f"== what {root} has left is settled by hand: {action.value}")
        process = self.world.process(f"by hand {len(self.by_hand) + 1}")
        self.by_hand[process.name] = f"memory://{root}/job"
        self.world.spawn(process.name, process, run)
        return process

    def _here(self) -> int:
        """The offset of the input from which the job would go on."""
        storage = self._job_storage().inner
        point = resume_point(CheckpointLog(storage), JobDirectory(storage, "job"))
        return offset_of(point.manifest) if point and point.manifest else 0

    def _settled(self) -> int:
        """The offset up to which the job knows its output to be committed.

        Of a restored job directory the target may have forgotten what was promised behind it.
        """
        log = CheckpointLog(self._job_storage().inner)
        done = [m for m in log.scan().manifests if not log.uncommitted(m)]
        return min(self._here(), offset_of(done[-1]) if done else 0)

    def _begins_anew(self) -> bool:
        """Whether the job is started afresh, which happens now and then."""
        if not self.serves or self.world.healthy or self._never_turns_back or not self.drivers:
            return False
        if self.world.rng.random() > (0.3 if self.plant in ANEW else 0.08):
            return False
        self.turned_back = True
        return True

    def _older(self) -> str | int | None:
        """Now and then, an older checkpoint or a savepoint to turn the job back to."""
        rng = self.world.rng
        if self.world.healthy or self._never_turns_back:
            return None
        if rng.random() > (0.9 if self.plant in TURNED_BACK else 0.5):
            return None
        log = CheckpointLog(self._job_storage().inner)
        points: list[tuple[str | int, int]] = [
            (manifest.number, offset_of(manifest)) for manifest in log.scan().manifests[:-1]
        ]
        points += [(path, promise.upto) for path, promise in self._savepoints(self.root)]
        if self._has_values:
            # A target of values cannot be turned forward: nothing writes the newer ones again.
            if any(self.world.is_running(driver.process) for driver in self.drivers):
                return None
            # What is promised behind the settled ones is rolled back, and not there either.
            settled = self._settled()
            points = [(point, upto) for point, upto in points if upto <= settled]
        if not points:
            return None
        self.turned_back = True
        return rng.choice(points)[0]

    def _savepoints(self, root: str) -> list[tuple[str, Promise]]:
        """Where the savepoints of a job are, and what they were made from."""
        entries = SavepointCatalog(self._storage(f"{root}/job").inner).list() if self.asked else []
        found = [(e.path, self.history.save(e.path, self._metadata(e.path))) for e in entries]
        return [(path, promise) for path, promise in found if promise is not None]

    def _metadata(self, savepoint: str) -> SavepointMetadata:
        storage = self._storage(savepoint.removeprefix("memory://"))
        return SavepointDirectory(storage.inner).load()

    @property
    def _has_values(self) -> bool:
        """Whether a target keeps the newest value of each key."""
        return any(map(_keeps_values, self.kinds_played))

    @property
    def _never_turns_back(self) -> bool:
        """Whether a target takes no row twice, so that nobody may turn the job back."""
        return any(kind.endswith("-once") for kind in self.kinds_played)

    def _job_storage(self) -> SimStorage:
        return self._storage(f"{self.root}/job")

    def _finish(self) -> None:
        """Let everybody end who is left, and then the job, with nothing in its way."""
        world = self.world
        world.end_faults()
        while world.step():
            pass
        if self.root != self._original:
            self._settle(self._original)
            while world.step():
                pass
        driver = self._run_to_its_end()
        if isinstance(driver.outcome, IncompatibleStateError):
            self._settle_to_the_end()
            driver = self._run_to_its_end()
        if self._is_elsewhere and isinstance(driver.outcome, IncompatibleStateError):
            self._call_sinks_as_in(CheckpointLog(self._job_storage().inner).latest())
            driver = self._run_to_its_end()
        if self.restored and "are lost" in str(driver.failure):
            # What the backup promises was rolled back since. The message says what to do.
            driver = self._go_back_until_nothing_is_lost()
        if "unpublished files there" in str(driver.outcome):
            # They are of a job that nobody knows any more. The message says what to do.
            simulated_lake.remove_staged(self.kinds_played)
            driver = self._run_to_its_end()
        if driver.outcome != "finished":
            raise WrongOutcomeError(f"the last driver could not finish the job: {driver.outcome!r}")
        if set(self.kinds_played) - set(self.program.kinds) or self.history.has_left_out():
            # Sinks that are gone, and what was left out, are settled by nobody else.
            self._settle_to_the_end()

    @property
    def _is_fork(self) -> bool:
        return self.root.endswith("-fork")

    @property
    def _is_elsewhere(self) -> bool:
        """Whether targets may have to be taken over, which only a start with their sinks does."""
        return self.restored or self.root != self._original

    def _call_sinks_as_in(self, manifest: Manifest | None) -> None:
        """Go on with the sinks of a checkpoint, under the names they have in it.

        A target that has more than a backup knows of is taken over under no other name.
        """
        if manifest is not None:
            sinks = tuple(op.uid for op in manifest.operators if op.kind == "sink")
            self.program = replace(self.program, sinks=sinks, renames=(), allow=False)

    def _settle_to_the_end(self) -> None:
        self._settle(self.root)
        while self.world.step():
            pass

    def _run_to_its_end(self, start_from: str | int | None = None) -> Driver:
        driver = self._start(start_from)
        while self.world.step():
            pass
        return driver

    def _go_back_until_nothing_is_lost(self) -> Driver:
        """Start from one earlier checkpoint after the other."""
        driver = self.drivers[-1]
        for manifest in reversed(CheckpointLog(self._job_storage().inner).scan().manifests[:-1]):
            self.turned_back = True
            self._call_sinks_as_in(manifest)
            driver = self._run_to_its_end(manifest.number)
            if driver.outcome == "finished":
                break
        return driver

    def _storage(self, name: str) -> SimStorage:
        if name not in self.storages:
            self.storages[name] = SimStorage(self.world, name)
            self.history.watch(name.removesuffix("/job"), self.storages[name])
        return self.storages[name]

    def _directory_of(self, process: Process) -> str:
        """The job directory of a driver, or of a copy of one of its tasks, or of a person."""
        if process.name in self.by_hand:
            return self.by_hand[process.name]
        number = int(process.name.split()[1])
        return f"{self.drivers[number - 1].spec.root}/job"

    def _promised_by(self, directory: str) -> set[str]:
        """The prepared transactions that checkpoints of a job directory promise."""
        root = directory.removeprefix("memory://").removesuffix("/job")
        log = CheckpointLog(self._storage(f"{root}/job").inner)
        return {
            name
            for manifest in log.scan().manifests
            for uid, transactions in log.uncommitted(manifest).items()
            if kind_of(uid) in databases.TEXTS
            for name in databases.promised(transactions)
        }

    # -- what readers must see

    def _check(self) -> None:
        log = CheckpointLog(self._job_storage().inner)
        point = resume_point(log, JobDirectory(self._job_storage().inner, "job"))
        assert point is not None
        end = self.history.end(self.root, point)
        for kind in self.kinds_played:
            self._check_sink(kind, self.history.least(end, kind), self.history.most(kind))
        if self.wrong or self.history.wrong:
            raise WrongOutcomeError(f"{self.wrong + self.history.wrong}")
        for path, promise in self._savepoints(self.root):
            self._check_savepoint(path, promise)
        if self._databases and (intruders := databases.intruders()):
            raise WrongOutcomeError(f"written into tables of other jobs: {intruders}")
        if self._databases and (robbed := databases.robbed()):
            raise WrongOutcomeError(f"taken over in spite of promised rows: {robbed}")
        if self._redis and (intruders := simulated_redis.intruders()):
            raise WrongOutcomeError(f"written over keys of other jobs: {intruders}")
        if point.manifest is not None and log.uncommitted(point.manifest):
            raise WrongOutcomeError("the newest checkpoint has promised output that is not there")
        staged = [p for p in self._job_storage().inner.list("sinks") if p.endswith(".arrow")]
        if staged and not self.restored:
            raise WrongOutcomeError(f"left staged: {staged}")

    def _check_savepoint(self, path: str, promise: Promise) -> None:
        """It is complete, and has the state after a part of the input."""
        metadata = self._metadata(path)
        snapshot = Snapshot(metadata, StorageRef(path))
        if problems := verify_snapshot(snapshot):
            raise WrongOutcomeError(f"{path} is damaged: {problems}")
        files = clip_files(metadata.native, {COUNT: (0, metadata.max_parallelism - 1)})
        counts = counts_in(snapshot.storage, files, self.input.groups)
        wanted = self.history.counts_upto(promise.upto)
        if counts != wanted:
            raise WrongOutcomeError(f"{path} has the counts {counts}, not {wanted}")

    # -- a fork

    def _fork(self) -> None:
        """Start another job from a savepoint, which writes elsewhere, and let it end."""
        savepoints = self._savepoints(self.root)
        if not savepoints:
            return
        world = self.world
        world.tell("== a fork is started from a savepoint")
        chosen, promise = world.rng.choice(savepoints)
        self.root = f"{self._original}-fork"
        self.program = Program(tuple(f"{FORK}{kind}" for kind in KINDS), world.rng.randint(1, 3))
        self.take_over = False
        world.healthy = False
        world.faults.left = world.rng.randint(0, 3)
        for _ in range(_FORK_DRIVERS):
            driver = self._start(self._start_of_fork(chosen), turns_back=False)
            while world.is_running(driver.process) and world.step():
                pass
        world.end_faults()
        while world.step():
            pass
        driver = self._run_to_its_end(self._start_of_fork(chosen))
        if driver.outcome != "finished":
            raise WrongOutcomeError(f"the fork could not finish: {driver.outcome!r}")
        for kind in self.program.sinks:
            rows = Counter(self.history.rows[promise.upto :])
            self._check_sink(kind, rows, self.history.most(kind))

    def _start_of_fork(self, savepoint: str) -> str | None:
        """The savepoint, until the fork has a start of its own to go on from."""
        storage = self._job_storage().inner
        begun = resume_point(CheckpointLog(storage), JobDirectory(storage, "job"))
        return savepoint if begun is None else None

    def _check_sink(self, kind: str, least: Counter[Row], most: Counter[Row]) -> None:
        """What a sink shows has to be what was promised to it."""
        if kind.endswith("-set"):
            self._check_rows(kind, databases.rows(kind), least, most)
        elif kind in simulated_lake.KINDS:
            self._check_rows(kind, simulated_lake.rows(kind), least, most)
            self._check_order(kind, simulated_lake.rows(kind))
            self._check_left(kind, simulated_lake.left(kind, self._mine))
        elif kind in simulated_redis.KINDS:
            self._check_values(kind, simulated_redis.values(kind), least)
        elif _keeps_values(kind):
            values = [row for _, _, row in target(kind).values.values()]
            self._check_values(
                kind, dict(databases.rows(kind) if kind in databases.KINDS else values), least
            )
        elif kind == "files":
            self._check_rows(kind, simulated_fs.rows(kind), least, most)
            left = [path for path in simulated_fs.staged(kind) if f"@{self._mine}/" in path]
            if left and not self.restored:
                raise WrongOutcomeError(f"{kind}: left staged: {left}")
        elif kind in databases.KINDS:
            self._check_rows(kind, databases.rows(kind), least, most)
            self._check_order(kind, databases.rows(kind))
            self._check_left(kind, databases.prepared(kind, self._mine))
        elif kind in simulated_broker.KINDS:
            self._check_kafka(kind, least, most)
        else:
            place = target(kind)
            self._check_rows(kind, place.rows, least, most)
            self._check_order(kind, place.rows)
            self._check_left(kind, [t for t in place.prepared if t.startswith(self._mine)])

    @property
    def _kafka(self) -> bool:
        return not simulated_broker.KINDS.keys().isdisjoint(self.kinds_played)

    @property
    def _tables(self) -> bool:
        return not simulated_lake.KINDS.keys().isdisjoint(self.kinds_played)

    @property
    def _redis(self) -> bool:
        return not simulated_redis.KINDS.keys().isdisjoint(self.kinds_played)

    @property
    def _databases(self) -> bool:
        return not databases.KINDS.keys().isdisjoint(self.kinds_played)

    @property
    def _mine(self) -> str:
        """What the job's own names have; a job that has lost its target settles its own."""
        return directory_digest(f"memory://{self.root}/job")

    def _check_rows(
        self, kind: str, seen: list[Any], least: Counter[Row], most: Counter[Row]
    ) -> None:
        """Each row that the job went on from is there, and none more often than promised."""
        rows = Counter(seen)
        # A row that the job was turned back behind and wrote again is wanted once.
        lost = sorted(row for row in least if not rows[row])
        more = sorted(row for row, times in rows.items() if times > most[row])
        if lost or more:
            raise WrongOutcomeError(f"{kind}: lost {lost}, too often {more}")

    def _check_values(self, kind: str, seen: dict[str, int], least: Counter[Row]) -> None:
        """Each value is the newest, or, where the sink was dropped since, not older than that."""
        newest: dict[str, int] = {}
        for key, n in least:
            newest[key] = max(n, newest.get(key, 0))
        counts = self.history.counts
        older = {key for key, n in newest.items() if seen.get(key, 0) < n}
        wrong = {key for key, n in seen.items() if n > counts.get(key, 0)}
        if older or wrong:
            raise WrongOutcomeError(f"{kind} shows {seen}, not {newest} to {counts}")

    def _check_kafka(self, kind: str, least: Counter[Row], most: Counter[Row]) -> None:
        """As of other sinks, and no reader waits; at least once, rows may come more often."""
        seen = simulated_broker.rows(kind)
        if kind == "kafka-streaming":
            self._check_rows(kind, list(set(seen)), least, Counter(self.history.rows))
            return
        self._check_rows(kind, seen, least, most)
        self._check_order(kind, seen)
        if simulated_broker.left_open(kind):
            raise WrongOutcomeError(f"{kind}: a transaction is left open")

    def _check_order(self, kind: str, seen: list[Any]) -> None:
        """The rows of a key are in their order."""
        for key in self.input.groups:
            order = [row[1] for row in seen if row[0] == key]
            if not self.turned_back and order != sorted(order):
                raise WrongOutcomeError(f"{kind}: the order of key {key} is {order}")

    def _check_left(self, kind: str, left: list[str]) -> None:
        """Nothing is left prepared."""
        if left and not self.restored:
            raise WrongOutcomeError(f"{kind}: left prepared: {sorted(left)}")


def _keeps_values(kind: str) -> bool:
    """Whether a target has the newest value of each key."""
    return kind.endswith(("idempotent", "-upsert")) or kind in simulated_redis.KINDS


def play(seed: int, plant: str | None = None, kinds: Sequence[str] = ()) -> Run:
    """Play a seed; raises what went wrong, with the story in its notes."""
    logging.getLogger("turnback").setLevel(logging.CRITICAL)
    run = Run(seed, plant, kinds)
    try:
        run.play()
    except Exception as error:
        error.add_note("\n".join(run.world.story))
        raise
    return run
