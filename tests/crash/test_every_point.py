"""A driver is killed at every named point once; the job ends as if nothing had been."""

import signal

import pytest

from crash.conftest import MakePlace
from crash.driver import Driver
from crash.place import Place
from faults import POINTS
from tiers import with_examples
from turnback.job.request import RequestKind, RequestSpec
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from turnback.testing.crash_points import DATABASE_POINTS
from verification import verify_savepoint

FILES = 13
"""Epochs enough for state files to be merged."""
SAVEPOINT = ("during-savepoint", "after-savepoint")
STOP = ("before-decision", "after-decision", "before-answer")

EXAMPLES = (
    "before-state-file",
    "after-manifest",
    "after-start-record",
    "during-intake",
    "after-decision",
)


def kill(job: Place, point: str, *arguments: str) -> None:
    driver = job.start("--resumed", *arguments, TURNBACK_KILL_AT=point)
    assert driver.wait() == -signal.SIGKILL, driver.errors
    job.assert_consistent()


def run(job: Place, *arguments: str) -> Driver:
    driver = job.start("--resumed", *arguments)
    assert driver.wait() == 0, driver.errors
    job.assert_consistent()
    return driver


@pytest.mark.parametrize(
    "point", with_examples([name for name in POINTS if name not in DATABASE_POINTS], EXAMPLES)
)
def test_killed_once(place: MakePlace, point: str) -> None:
    job = place(FILES)
    target = job.base / "sp"
    start: tuple[str, ...] = ()
    if point in (*SAVEPOINT, *STOP, "during-intake"):
        kill(job, "before-manifest:4")
        kind = RequestKind.STOP if point in STOP else RequestKind.SAVEPOINT
        spec = RequestSpec(kind, savepoint=point in STOP, target=str(target))
        Requests(job.storage).submit(spec)
    if point == "during-intake":
        kill(job, "after-savepoint")
        epoch = SavepointDirectory.locate(target).load().epoch
        for sink in ("sequence", "tally"):  # readers go back with the job
            for name in job.visible(sink):
                if int(name.split("-")[1]) > epoch:
                    (job.output / sink / name).unlink()
        start = ("--start-from", str(target))
    with job.watched():
        kill(job, point, *start)
        driver = run(job)
        if point in STOP:  # it has ended there, as it was asked to
            assert verify_savepoint(target) == []
            assert job.latest().epoch == SavepointDirectory.locate(target).load().epoch
            driver = run(job)
    job.assert_settled(driver.report)
    assert Requests(job.storage).open() == []
