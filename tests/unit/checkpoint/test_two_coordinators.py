"""Two live drivers of one job, in many orders of their storage operations.

The second takes the job over while the first still works, is paused, or dies. Each driver does
what a real one does, without Spark: fence, resume, settle the sinks, epochs with checkpoints
beside them, the two executors of the coordinator as threads of their own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest

from coordinator_fakes import memory, state_file
from interleaving import InterleavedExecutor, InterleavedStorage, Interleaving, replayable, seeds
from manual_clock import ManualClock
from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.checkpoint.log import CheckpointLog
from turnback.checkpoint.manifest import EpochCut, Manifest, Slot, SourcePosition, decode
from turnback.config.checkpointing import CheckpointSettings, ExternalizedCheckpointRetention
from turnback.errors import FencedError, SinkError, TurnbackError
from turnback.job.directory import JobDirectory
from turnback.snapshot.find import resume_point
from turnback.state.files import StateFile
from verification import verify

EPOCHS = 6

pytestmark = [pytest.mark.orders, pytest.mark.slow]
ORDERS = 250
_SLOT = re.compile(r"checkpoints/chk-(\d+)\.json")


class Target:
    """What a sink writes to: output is prepared, then committed or rolled back, by handle.

    A handle names attempt and epoch. To commit one twice changes nothing; to commit one that was
    rolled back is an error, as its rows are lost.
    """

    def __init__(self, order: Interleaving) -> None:
        self.order = order
        self.prepared: set[bytes] = set()
        self.visible: list[bytes] = []
        self.lost: list[bytes] = []

    def epochs(self) -> list[int]:
        """The epochs of what readers see."""
        return [_epoch(handle) for handle in self.visible]


class Committer:
    """The sink of one attempt."""

    def __init__(self, target: Target, attempt: int) -> None:
        self._target, self._attempt = target, attempt

    def prepare(self, epoch: int) -> bytes:
        handle = f"{self._attempt}:{epoch}".encode()
        self._target.order.point(f"prepare {handle!r}")
        self._target.prepared.add(handle)
        return handle

    def commit(self, transactions: Sequence[bytes]) -> None:
        for handle in transactions:
            self._target.order.point(f"commit {handle!r}")
            if handle in self._target.visible:
                continue
            if handle not in self._target.prepared:
                self._target.lost.append(handle)
                raise SinkError(f"{handle!r} was rolled back")
            self._target.visible.append(handle)

    def abort(self, transactions: Sequence[bytes]) -> None:
        for handle in transactions:
            self._target.order.point(f"abort {handle!r}")
            self._target.prepared.discard(handle)

    def recover(self, pending: Sequence[bytes]) -> None:
        self.commit(pending)
        self._target.order.point("roll back what older attempts left")
        mine = {h for h in self._target.prepared if int(h.split(b":")[0]) >= self._attempt}
        self._target.prepared = mine


class World:
    """What all drivers of a job share, and what must hold there."""

    def __init__(self, order: Interleaving) -> None:
        self.order = order
        self.files = memory()
        self.storage = _Recording(self.files, order)
        self.target = Target(order)
        self.log = CheckpointLog(self.files)
        self.lost: list[str] = []
        self.storage.on_delete = self._deleted

    def _deleted(self, path: str) -> None:
        """No delete may touch what the newest checkpoint needs."""
        newest = self.newest()
        if newest is not None and path in newest.files():
            self.lost.append(f"{newest.name} has lost {path}")

    def newest(self) -> Manifest | None:
        """The newest checkpoint, found without the help of the code under test."""
        for number in sorted(self.storage.written, reverse=True):
            slot = self.storage.written[number]
            if isinstance(slot, Manifest):
                return slot
            if slot.ended:
                return None
        return None

    def check(self) -> None:
        """What must hold at any time."""
        assert self.lost == []
        newest = self.newest()
        if newest is not None:
            assert verify(self.files, newest) == []
        assert verify(self.files) == []
        self._check_lineage()
        there = [n for n in self.log.numbers() if isinstance(self.log.get(n), Manifest)]
        assert [m.number for m in self.log.scan().manifests] == there, "a checkpoint is unknown"

    def check_output(self) -> None:
        """Readers see each epoch once, and nothing that no checkpoint has promised."""
        assert self.target.lost == []
        seen = self.target.epochs()
        assert sorted(seen) == list(range(1, len(seen) + 1)), seen
        manifests = [slot for _, slot in self.storage.writes if isinstance(slot, Manifest)]
        promised = {h for m in manifests for handles in m.transactions.values() for h in handles}
        assert set(self.target.visible) <= promised

    def _check_lineage(self) -> None:
        """Attempts follow each other: none commits anything after its successor's fence."""
        attempt = top = 0
        for number, slot in self.storage.writes:
            if isinstance(slot, Manifest) or slot.ended:
                assert slot.attempt == attempt, f"chk-{number} of attempt {slot.attempt} is late"
            elif number > top:
                assert slot.attempt == attempt + 1
                attempt = slot.attempt
            top = max(top, number)


class _Recording(InterleavedStorage):
    """Remembers the slots of the log.

    Attributes:
        writes: All that were ever written, in order of time.
        written: The same by number.
    """

    def __init__(self, inner, order: Interleaving) -> None:
        super().__init__(inner, order)
        self.writes: list[tuple[int, Slot]] = []
        self.written: dict[int, Slot] = {}

    def put_if_absent(self, path: str, data: bytes) -> None:
        super().put_if_absent(path, data)
        if match := _SLOT.fullmatch(path):
            number, slot = int(match[1]), decode(data, path)
            self.writes.append((number, slot))
            self.written[number] = slot


class Driver:
    """One driver of the job.

    Args:
        world: Where it works.
        name: Of its actor.
        last: The epoch it ends with.
        keep: How many checkpoints are retained.
        back: Start from the oldest checkpoint instead of the newest.
        cancel: End as a cancellation that deletes all checkpoints.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        last: int = EPOCHS,
        keep: int = 1,
        back: bool = False,
        cancel: bool = False,
    ) -> None:
        self.world, self.name = world, name
        self._last, self._back, self._cancel = last, back, cancel
        self._settings = CheckpointSettings(
            interval_ms=1_000,
            num_retained=keep,
            max_concurrent=2,
            retention=ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION,
        )
        self._clock = ManualClock(1_000_000)
        self._storage = world.storage
        self._log = CheckpointLog(self._storage)
        self._names = itertools.count()
        self.outcome = "did not end"

    @property
    def has_ended(self) -> bool:
        return self.outcome != "did not end"

    def __call__(self) -> None:
        try:
            self._live()
            self.outcome = "finished"
        except FencedError:
            self.outcome = "fenced"
        except TurnbackError:
            if not self._is_replaced():
                raise
            self.outcome = "fenced"

    def _is_replaced(self) -> bool:
        try:
            self._log.check_fence()
        except FencedError:
            return True
        return False

    def _live(self) -> None:
        directory = JobDirectory(self._storage, "job")
        info = directory.open()
        fence = self._log.fence(
            job="job",
            job_id=info.job_id,
            created_ms=0,
            host=self.name,
            pid=1,
            nonce=self.name,
        )
        origin = self._origin(directory)
        directory.record_attempt(fence.attempt, checkpoint=origin.number if origin else None)
        sink = Committer(self.world.target, fence.attempt)
        promised = origin is not None and origin.number > self._log.committed()
        sink.recover(origin.transactions.get("sink", ()) if origin and promised else ())
        coordinator = CheckpointCoordinator(
            self._log,
            self._settings,
            {"sink": sink},
            max_parallelism=128,
            parent=origin.number if origin else None,
            clock=self._clock,
            inherited=origin.files() if origin else (),
            executor=lambda name: InterleavedExecutor(name, self.world.order, self.name),
        ).start(thread=False)
        try:
            self._drive(coordinator, sink, fence.attempt, origin)
        finally:
            coordinator.close(cancelled=self._cancel)
        coordinator.raise_failure()

    def _origin(self, directory: JobDirectory) -> Manifest | None:
        if self._back:
            return next(iter(self._log.scan().manifests), None)
        point = resume_point(self._log, directory)
        return point.manifest if point else None

    def _drive(
        self,
        coordinator: CheckpointCoordinator,
        sink: Committer,
        attempt: int,
        origin: Manifest | None,
    ) -> None:
        files = list(origin.state) if origin else []
        first = origin.epoch + 1 if origin else 1
        for epoch in range(first, self._last + 1):
            self._read(files)
            files = self._write(files, attempt, epoch)
            coordinator.epoch_confirmed(
                EpochCut(
                    epoch=epoch,
                    sources={"source": SourcePosition(str(epoch))},
                    state=tuple(files),
                    transactions={"sink": (sink.prepare(epoch),)},
                )
            )
            if self.world.order.random.random() < 0.7:
                self._clock.advance(1_000)
                coordinator.tick()
        if first <= self._last and not self._cancel:
            self._take_last_checkpoint(coordinator)

    def _take_last_checkpoint(self, coordinator: CheckpointCoordinator) -> None:
        """What `CheckpointCoordinator.final` does, which would wait for real."""
        final = coordinator.trigger("final")
        while not final.done():
            coordinator.tick()
            self.world.order.wait_until(lambda: final.done() or not coordinator.under_way())
        final.result()

    def _read(self, files: list[StateFile]) -> None:
        """Read the state, as tasks do; only a driver that was replaced may not find it."""
        for file in files:
            self._storage.get(file.path)

    def _write(self, files: list[StateFile], attempt: int, epoch: int) -> list[StateFile]:
        """Write the state of an epoch; now and then, fold older files into one."""
        path = f"state/{attempt}/{epoch}-{self.name}-{next(self._names)}"
        added = state_file(self._storage, path, path.encode(), epoch)
        return [added] if len(files) >= 2 else [*files, added]


def _epoch(handle: bytes) -> int:
    return int(handle.split(b":")[1])


def test_a_successor_takes_over_from_a_driver_that_lives_on() -> None:
    """Both may go on, be paused or die at any operation: nothing is lost, nothing doubled."""
    outcomes = set()
    for seed in seeds(ORDERS):
        with replayable(seed) as order:
            world = World(order)
            keep = order.random.choice((1, 2))
            mortality = order.random.choice((0.0, 0.0, 0.02))
            drivers = [Driver(world, name, keep=keep) for name in ("first", "second")]
            for driver in drivers:
                order.add(driver.name, driver, group=driver.name, mortality=mortality)
            order.run()
            outcomes |= {(d.name, d.outcome) for d in drivers}
            world.check()
            world.check_output()
            finish(world)
    assert {outcome for _, outcome in outcomes} == {"finished", "fenced", "did not end"}


def run_two(world: World, first: Driver, second: Driver) -> None:
    """Start a second driver when the first is somewhere in its life."""
    order = world.order
    start = len(order.trace) + order.random.randrange(100)

    def start_later() -> None:
        order.wait_until(lambda: len(order.trace) >= start or first.has_ended)
        second()

    order.add(first.name, first, group=first.name)
    order.add(second.name, start_later, group=second.name)
    order.run()


def finish(world: World) -> None:
    """A last driver, alone, completes the output and leaves nothing behind."""
    driver = Driver(world, "third", last=EPOCHS + 2)
    world.order.add(driver.name, driver, group=driver.name)
    world.order.run()
    assert driver.outcome == "finished"
    world.check()
    world.check_output()
    assert len(world.target.visible) == EPOCHS + 2
    needed = {path for manifest in world.log.scan().manifests for path in manifest.files()}
    assert set(world.files.list("state")) == needed


def test_a_successor_goes_back_to_an_older_checkpoint() -> None:
    """A predecessor that is still cleaning up must not take away what its successor runs on."""
    for seed in seeds(ORDERS):
        with replayable(seed) as order:
            world = World(order)
            driver = Driver(world, "zeroth", last=3, keep=2)
            order.add(driver.name, driver)
            order.run()
            first = Driver(world, "first", last=7, keep=2)
            run_two(world, first, Driver(world, "second", last=7, keep=2, back=True))
            world.check()


def test_a_successor_starts_while_its_predecessor_deletes_everything() -> None:
    """A cancelled job deletes what it has written, and nothing of a start that comes meanwhile."""
    for seed in seeds(ORDERS):
        with replayable(seed) as order:
            world = World(order)
            first = Driver(world, "first", last=3, cancel=True)
            run_two(world, first, Driver(world, "second"))
            world.check()
