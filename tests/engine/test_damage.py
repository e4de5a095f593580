"""Damaged files and directories in use: the job is refused, and nothing is written anywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted, eventually
from turnback.errors import (
    ConfigurationError,
    CorruptFileError,
    JobFailedError,
    JobInUseError,
    StorageError,
    TurnbackError,
)


def count(jobs: Jobs, backend: str = "rocksdb", **how: Any) -> Any:
    env = jobs.env().set_state_backend(backend)
    events = jobs.files(env, "events", "k string")
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True, **how)


@pytest.fixture
def counted_once(jobs: Jobs) -> Jobs:
    """A job with state in two partitions, a checkpoint, and something new to read."""
    jobs.feed("events", *({"k": k} for k in "abcdefgh"))
    count(jobs)
    jobs.feed("events", {"k": "a"})
    return jobs


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def state_files(jobs: Jobs) -> list[Path]:
    return [jobs.path() / file.path for file in jobs.checkpoints()[-1].state]


def seen_file(jobs: Jobs) -> Path:
    (log,) = jobs.checkpoints()[-1].sources["events"].log
    return jobs.path() / log.path


def manifest(jobs: Jobs) -> Path:
    return jobs.path() / "checkpoints" / f"{jobs.checkpoints()[-1].name}.json"


DAMAGED: dict[str, Callable[[Jobs], Path]] = {
    "manifest": manifest,
    "state": lambda jobs: state_files(jobs)[0],
    "files seen": seen_file,
    "job": lambda jobs: jobs.path() / "job.json",
}


@contextmanager
def damaged(path: Path, how: Callable[[Path], object]) -> Iterator[None]:
    whole = path.read_bytes()
    how(path)
    yield
    path.write_bytes(whole)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_damaged_file_is_named_and_nothing_of_it_is_used(
    counted_once: Jobs, backend: str
) -> None:
    jobs, before = counted_once, counted_once.out()
    for what, find in DAMAGED.items():
        path = find(jobs)
        for how in (flip, cut):
            with damaged(path, how), pytest.raises(CorruptFileError) as error:
                count(jobs, backend)
            assert path.name in str(error.value), what
            assert jobs.out() == before, what
    # Never taken for "no checkpoint, start empty", nor is an older one used.
    assert [m.epoch for m in jobs.checkpoints()] == [1]
    count(jobs, backend)
    assert jobs.out() == counted("abcdefgha")


def test_files_that_are_missing_or_swapped(counted_once: Jobs) -> None:
    jobs, before = counted_once, counted_once.out()
    one, two = state_files(jobs)
    with damaged(one, Path.unlink), pytest.raises(JobFailedError, match=one.name):
        count(jobs)
    with (
        damaged(one, lambda path: path.write_bytes(two.read_bytes())),
        pytest.raises(CorruptFileError, match=one.name),
    ):
        count(jobs)
    path = jobs.path() / "job.json"
    with damaged(path, Path.unlink), pytest.raises(StorageError, match=r"no job\.json"):
        count(jobs)
    assert jobs.out() == before
    count(jobs)
    assert jobs.out() == counted("abcdefgha")


def test_a_checkpoint_can_be_skipped_only_on_demand(jobs: Jobs) -> None:
    """An older one is used when the user names it, never by itself."""
    for _ in range(2):
        jobs.feed("events", {"k": "a"})
        env = jobs.env()
        env.get_checkpoint_config().set_num_retained_checkpoints(5)
        events = jobs.files(env, "events", "k string")
        events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
        env.execute("job", bounded=True)
    old, _ = jobs.checkpoints()
    path = manifest(jobs)
    with damaged(path, flip):
        with pytest.raises(CorruptFileError, match=path.name):
            count(jobs)
        with pytest.raises(CorruptFileError, match=path.name):
            count(jobs, start_from="latest")
    assert jobs.out() == counted("aa")
    assert count(jobs, start_from=old.number).restored_from == old.name


def test_a_directory_that_another_job_uses(jobs: Jobs) -> None:
    """A second job of the same name: in this process, and in another one."""
    jobs.feed("events", {"k": "a"})
    env = jobs.env()
    events = jobs.files(env, "events", "k string")
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    client = jobs.start(env, epoch_interval=20)
    eventually(lambda: jobs.out() == [("a", 1)])
    with pytest.raises(JobInUseError, match=r"job 'job' is already RUNNING as pid .*stop that"):
        count(jobs)
    assert not client.done()
    client.cancel()
    client.result(60)
    program = (
        "import sys, time\n"
        "from turnback.job.directory import JobDirectory\n"
        "from turnback.job.status import JobState, StatusUpdate\n"
        "directory = JobDirectory.locate(sys.argv[1], 'job')\n"
        "update = StatusUpdate(attempt=9)\n"
        "directory.write_status(JobState.RUNNING, directory.open().job_id, update)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(jobs.root)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        before = sorted(p for p in jobs.path().rglob("*") if p.is_file())
        jobs.feed("events", {"k": "a"})
        with pytest.raises(JobInUseError, match=f"pid {other.pid} on .*attempt 9"):
            count(jobs)
        assert sorted(p for p in jobs.path().rglob("*") if p.is_file()) == before
        assert jobs.out() == counted("a")
    finally:
        other.kill()
        other.wait()
    count(jobs)  # dead drivers are no obstacle
    assert jobs.out() == counted("aa")


def test_roots_that_cannot_be_used(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    file = jobs.directory / "file"
    file.write_text("")
    for root, message in ((file, "file"), ("ftp://host/x", "unknown storage scheme 'ftp'")):
        jobs.root = root  # type: ignore[assignment]
        with pytest.raises(ConfigurationError, match=message):
            count(jobs)
    jobs.root = jobs.directory / "jobs"
    sink = jobs.directory / "out"
    sink.write_text("a file where the sink wants a directory")
    with pytest.raises(TurnbackError, match="out is a file"):
        count(jobs)
    assert not jobs.root.exists()
