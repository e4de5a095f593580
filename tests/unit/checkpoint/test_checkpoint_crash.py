"""A crash at every single storage operation, and what the next attempt makes of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import faults
import turnback
from coordinator_fakes import HookedStorage, Job, RecordingCommitter, memory, state_file
from turnback.checkpoint.log import CheckpointLog
from turnback.config.checkpointing import CheckpointSettings
from turnback.storage.local import LocalStorage
from turnback.storage.open import MemoryStorage
from verification import verify

EPOCHS = 8
SETTINGS = CheckpointSettings(interval_ms=1_000, num_retained=2)


class Crash(BaseException):
    pass


def run(storage, sink: RecordingCommitter, nonce: str, last: int = EPOCHS) -> None:
    """One attempt: recover, then go on to the last epoch."""
    log = CheckpointLog(storage)
    latest = log.latest()
    job = Job(storage, SETTINGS, {"sink": sink}, nonce=nonce)
    if latest is not None and latest.number > log.committed():
        sink.recover(latest.transactions.get("sink", ()))
    start, files = (latest.epoch, list(latest.state)) if latest else (0, [])
    for epoch in range(start + 1, last + 1):
        path = f"state/{job.fence.attempt}/{epoch}"
        files = [*files[-2:], state_file(storage, path, f"{epoch}".encode(), epoch)]
        job.epoch(epoch, files)
        if epoch % 2 == 0:
            job.checkpoint()
            job.coordinator.raise_failure()
    job.coordinator.final()
    job.coordinator.close()


def crash_at(count: int) -> tuple[MemoryStorage, RecordingCommitter, bool]:
    inner, sink = memory(), RecordingCommitter()
    storage = HookedStorage(inner)
    seen = [0]

    def hook(operation: str, path: str) -> None:
        seen[0] += 1
        if seen[0] >= count:
            raise Crash

    storage.before = hook
    try:
        run(storage, sink, "first")
    except BaseException:  # noqa: BLE001 (whatever way it died)
        return inner, sink, True
    return inner, sink, seen[0] >= count


def test_whatever_the_operation_at_which_it_dies_the_output_is_exactly_once() -> None:
    last = EPOCHS + 2
    expected = [f"t{n}".encode() for n in range(1, last + 1)]
    count = 0
    while True:
        count += 1
        storage, sink, crashed = crash_at(count)
        assert verify(storage) == [], f"after a crash at operation {count}"
        assert sink.visible == expected[: len(sink.visible)]
        run(storage, sink, "second", last)
        assert sink.visible == expected, f"after a crash at operation {count}"
        retained = CheckpointLog(storage).scan().manifests
        assert retained[-1].epoch == last
        assert len(retained) <= 2
        needed = {path for manifest in retained for path in manifest.files()}
        assert set(storage.list("state")) == needed, f"after a crash at operation {count}"
        if not crashed:
            break
    assert count > 40


SCRIPT = """
import sys, types
sys.path[:0] = sys.argv[2:]
bare = types.ModuleType("turnback")  # without Spark it starts in a blink
bare.__path__ = [sys.argv[3] + "/turnback"]
sys.modules["turnback"] = bare
from coordinator_fakes import RecordingCommitter
from test_checkpoint_crash import FileSink, run
from turnback.storage.local import LocalStorage
run(LocalStorage(sys.argv[1] + "/job"), FileSink(sys.argv[1] + "/out"), sys.argv[1])
"""


class FileSink(RecordingCommitter):
    """A sink whose commits survive the process."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)
        if self._path.exists():
            self.visible = self._path.read_bytes().split()

    def commit(self, transactions) -> None:
        super().commit(transactions)
        self._path.write_bytes(b"\n".join(self.visible))


def run_process(directory: Path, *, injected: bool = True, **wanted: str) -> int:
    here = Path(__file__).parent
    source = Path(turnback.__file__).parents[1]
    path = [str(here), str(source), str(here.parents[1])]
    command = [sys.executable, "-c", SCRIPT, str(directory), *path]
    environment = os.environ | {"PYTHONPATH": faults.DIRECTORY if injected else ""} | wanted
    done = subprocess.run(command, env=environment, timeout=60, check=False)
    return done.returncode


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    "point",
    [
        "before-manifest",
        "after-manifest",
        "after-sink-commit:2",
        "during-cleanup",
        "during-cleanup:2",
    ],
)
def test_killed_for_real_at_a_named_point(point: str, tmp_path: Path) -> None:
    assert run_process(tmp_path, TURNBACK_KILL_AT=point) == -signal.SIGKILL
    storage = LocalStorage(tmp_path / "job")
    assert verify(storage) == []
    assert run_process(tmp_path) == 0
    expected = [f"t{n}".encode() for n in range(1, EPOCHS + 1)]
    assert (tmp_path / "out").read_bytes().split() == expected
    assert verify(storage) == []
    needed = {path for m in CheckpointLog(storage).scan().manifests for path in m.files()}
    assert set(storage.list("state")) == needed


@pytest.mark.slow
@pytest.mark.crash
def test_the_deliberately_broken_order_is_noticed(tmp_path: Path) -> None:
    wrong = {"TURNBACK_KILL_AT": "before-manifest", "TURNBACK_FAULT_COMMIT_FIRST": "1"}
    assert run_process(tmp_path, **wrong) == -signal.SIGKILL
    assert (tmp_path / "out").read_bytes().split() == [b"t1", b"t2"]
    assert CheckpointLog(LocalStorage(tmp_path / "job")).latest() is None


@pytest.mark.crash
def test_nothing_of_it_is_in_what_users_install(tmp_path: Path) -> None:
    wanted = {"TURNBACK_KILL_AT": "before-manifest", "TURNBACK_FAULT_COMMIT_FIRST": "1"}
    assert run_process(tmp_path, injected=False, **wanted) == 0


@pytest.mark.slow
@pytest.mark.crash
def test_a_point_that_is_reached_less_often_does_nothing(tmp_path: Path) -> None:
    assert run_process(tmp_path, TURNBACK_KILL_AT="before-manifest:99") == 0
