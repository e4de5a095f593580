"""How often a job asks its storage for something: an object store charges for every request."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_places import PER_EPOCH, place_of
from ledger_sink import LedgerSink
from turnback import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.storage.local import LocalStorage
from turnback.testing import JobHarness, source
from turnback.worker import local_state

OPERATIONS = {
    "put": "PUT",
    "put_if_absent": "PUT",
    "get": "GET",
    "delete": "DELETE",
    "list": "LIST",
    "sizes": "LIST",
    "folders": "LIST",
}
PARALLELISM = 2
KEYS = "abcdefgh"


class Count(KeyedProcessFunction):
    count = ValueStateDescriptor("count", int)

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield str(value.post), self.count.value()


class Requests:
    """What a job asks its directory for, by place and operation."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, uri: str, operation: str, path: str) -> None:
        if uri.endswith("/jobs/job"):
            self.counts[place_of(path), operation] += 1

    def per_epoch(self) -> dict[tuple[str, str], int]:
        """Those that follow from epochs; others follow the clock."""
        return {key: n for key, n in self.counts.items() if key[0] in PER_EPOCH}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """As on an object store: the root is no directory that the machine has mounted."""
    found = Requests()
    for name, operation in OPERATIONS.items():
        monkeypatch.setattr(LocalStorage, name, _noted(found, name, operation))
    monkeypatch.setattr(local_state, "is_on_file_system", lambda uri: False)
    return found


def _noted(found: Requests, name: str, operation: str):
    method = getattr(LocalStorage, name)

    def call(storage, path="", *args):
        found.note(storage.uri, operation, path)
        return method(storage, path, *args)

    return call


@pytest.fixture
def job(tmp_path: Path, requests: Requests) -> Iterator[JobHarness]:
    ledger = LedgerSink(str(tmp_path / "ledger"))

    def program(env: StreamExecutionEnvironment) -> None:
        events = source(env, "events", "post string")
        counts = events.key_by("post").process(Count(), "post string, n bigint").uid("count")
        again = counts.key_by("post").process(Count(), "post string, n bigint").uid("again")
        again.sink_to(ledger).uid("out")

    kept = {"execution.checkpointing.num-retained": 1}
    with JobHarness(program, tmp_path, configuration=kept, real_sinks=["out"]) as job:
        yield job


def until_cleaned_up(job: JobHarness) -> None:
    """Wait for what follows a checkpoint."""
    done = threading.Event()
    job._driver.client._runner.attempt.coordinator._protocol.submit_chore(done.set)
    assert done.wait(60)


def epoch(job: JobHarness) -> None:
    job.push("events", *((key,) for key in KEYS))
    until_cleaned_up(job)


def test_an_epoch_asks_for_no_more_than_it_needs(job: JobHarness, requests: Requests) -> None:
    for _ in range(3):
        epoch(job)
    before = requests.per_epoch()
    epoch(job)
    asked = {key: n - before.get(key, 0) for key, n in requests.per_epoch().items()}
    assert {key: n for key, n in asked.items() if n} == {
        # By tasks: what they changed, and what they have for the sink. They read nothing.
        ("state files", "PUT"): 2 * PARALLELISM,
        ("staged output", "PUT"): PARALLELISM,
        # The checkpoint.
        ("checkpoint log", "PUT"): 1,
        # The commit: how far the sink is going to be, its output, and that it is done.
        ("records of sinks", "PUT"): 1,
        ("staged output", "GET"): PARALLELISM,
        ("commit record", "PUT"): 1,
        # Clean-up: between two looks at the fence the checkpoint before, and what was published.
        ("checkpoint log", "GET"): 3,
        ("checkpoint log", "DELETE"): 1,
        ("records of sinks", "DELETE"): 1,
        ("staged output", "DELETE"): PARALLELISM,
    }


def test_a_task_whose_local_store_is_gone_reads_its_files(
    job: JobHarness, requests: Requests, tmp_path: Path
) -> None:
    for _ in range(3):
        epoch(job)
    assert requests.counts["state files", "GET"] == 0
    gone = [*(tmp_path / "local").glob("*/*/[01]-0")]
    assert len(gone) == 2  # one task of each level
    for store in gone:
        shutil.rmtree(store)
    epoch(job)
    assert requests.counts["state files", "GET"] == 2 * 3


def test_a_damaged_copy_is_not_used(job: JobHarness, requests: Requests, tmp_path: Path) -> None:
    epoch(job)
    copies = [*(tmp_path / "local").glob("*/*/*/*.copy")]
    assert len(copies) == 2 * PARALLELISM  # of the newest file only
    for copy in copies:
        copy.write_bytes(copy.read_bytes()[:-1])
    epoch(job)
    assert requests.counts["state files", "GET"] == 2 * PARALLELISM
    assert job.state("again", "count") == dict.fromkeys(KEYS, 2)
