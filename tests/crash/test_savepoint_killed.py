"""Kill -9 of the driver while a savepoint is written or taken in."""

import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from crash.conftest import MakePlace
from crash.place import Place
from turnback.errors import CheckpointNotFoundError
from turnback.job.request import Request, RequestKind, RequestSpec, RequestState
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from verification import verify_savepoint

pytestmark = pytest.mark.timeout(900)

KILLED = -signal.SIGKILL


def ask(job: Place, path: Path) -> tuple[Requests, Request]:
    """Let there be some state, and ask for a savepoint while there is no driver."""
    driver = job.start("--kill-driver", TURNBACK_KILL_AT="before-manifest:4")
    assert driver.wait() == KILLED, driver.errors
    requests = Requests(job.storage)
    return requests, requests.submit(RequestSpec(RequestKind.SAVEPOINT, target=str(path)))


def test_killed_while_a_savepoint_is_written(place: MakePlace) -> None:
    """The next driver begins it anew; what was half-written is never part of it."""
    job = place(6)
    path = job.base / "sp"
    successor = job.start(ahead=True)
    requests, request = ask(job, path)
    driver = job.start("--kill-driver", TURNBACK_KILL_AT="during-savepoint")
    assert driver.wait() == KILLED, driver.errors
    job.assert_consistent()
    assert requests.result(request.id) is None
    with pytest.raises(CheckpointNotFoundError, match="partial"):
        SavepointDirectory.locate(path).load()
    successor.go()
    assert successor.wait() == 0, successor.errors
    result = requests.result(request.id)
    assert result is not None
    assert (result.state, result.path) == (RequestState.COMPLETED, path.as_uri())
    metadata = SavepointDirectory.locate(path).load()
    there = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert there == {"_metadata.json", *metadata.files()}
    assert verify_savepoint(path) == []
    assert not job.examine(), job.examine()


def test_killed_between_the_savepoint_and_its_answer(place: MakePlace) -> None:
    """It is complete, and stays: the next driver has only to say so."""
    job = place(6)
    path = job.base / "sp"
    successor = job.start(ahead=True)
    requests, request = ask(job, path)
    driver = job.start("--kill-driver", TURNBACK_KILL_AT="after-savepoint")
    assert driver.wait() == KILLED, driver.errors
    before = SavepointDirectory.locate(path).load()
    assert requests.result(request.id) is None
    successor.go()
    assert successor.wait() == 0, successor.errors
    assert SavepointDirectory.locate(path).load() == before
    result = requests.result(request.id)
    assert result is not None
    assert (result.state, result.checkpoint) == (RequestState.COMPLETED, before.checkpoint)


def test_killed_while_a_savepoint_is_taken_in(place: MakePlace) -> None:
    """Started again without a word about the savepoint, the job still goes on from it."""
    job = place(6)
    path = job.base / "sp"
    ask(job, path)
    driver = job.start("--kill-driver", TURNBACK_KILL_AT="after-savepoint")
    assert driver.wait() == KILLED, driver.errors
    metadata = SavepointDirectory.locate(path).load()
    keys = pq.read_table(path / "state" / "sequence" / "count")["value"].to_pylist()
    assert sum(keys) == 40 * metadata.epoch
    shutil.rmtree(job.job)  # nothing is left but the savepoint
    shutil.rmtree(job.base / "local")
    seen = {s: dict(job.visible(s)) for s in ("sequence", "tally")}
    for sink, names in seen.items():
        # Staged by the job whose directory is gone, perhaps in an epoch that was under way.
        shutil.rmtree(job.output / sink / ".turnback")
        for name in names:
            epoch = int(name.split("-")[1])
            if epoch > metadata.epoch:
                (job.output / sink / name).unlink()
    driver = job.start(
        *("--kill-driver", "--start-from", str(path)), TURNBACK_KILL_AT="during-intake"
    )
    assert driver.wait() == KILLED, driver.errors
    again = job.start()
    assert again.wait() == 0, again.errors
    assert again.report["restored_from"] == path.as_uri()
    job.assert_settled(again.report)
