"""Savepoints of running jobs: what they hold, and what happens around taking them."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from job_support import COUNTED, Count, counted, eventually
from saved_jobs import KEYS, build, feed, rows, settled
from services.missing import missing
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Savepoint,
    Types,
    ValueStateDescriptor,
)
from turnback.checkpoint.manifest import END_OF_TIME
from turnback.config import ExternalizedCheckpointRetention
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConfigurationError,
)
from turnback.job.catalog import SavepointCatalog
from turnback.job.directory import JobDirectory
from turnback.job.history import JobEnded
from turnback.job.requests import Requests
from turnback.snapshot.directory import SavepointDirectory
from verification import verify_savepoint


@pytest.mark.parametrize("format_type", list(SavepointFormat))
def test_one_is_taken_while_the_job_runs_and_many_jobs_start_from_it(jobs, format_type):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    path = jobs.directory / "sp"
    where = client.trigger_savepoint(path, format_type, label="first", note="why").result(60)
    assert where == path.as_uri()
    feed(jobs)
    settled(jobs, KEYS * 2)  # the job has gone on
    client.cancel()
    client.result(60)
    metadata = SavepointDirectory.locate(path).load()
    assert (metadata.label, metadata.note, metadata.job) == ("first", "why", "job")
    if format_type is SavepointFormat.CANONICAL:
        assert rows(path) == {"a": 3, "b": 2, "c": 1}
    for name in ("fork1", "fork2"):
        build(jobs, sink=name).execute(name, bounded=True, start_from=path, fork=True)
        assert jobs.out(name) == [p for p in counted(KEYS * 2) if p not in counted(KEYS)]
    assert verify_savepoint(path) == []


def test_stopping_with_one_ends_the_job_right_there(jobs):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    where = client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    client.result(60)
    assert jobs.events()[-1] == JobEnded("FINISHED")
    feed(jobs)
    build(jobs).execute("job", bounded=True, start_from=where)
    assert jobs.out() == counted(KEYS * 2)
    build(jobs).execute("job", bounded=True)  # and from its own checkpoint afterwards
    assert jobs.out() == counted(KEYS * 2)


def test_a_drained_job_says_so_in_its_savepoint(jobs, caplog):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    client.stop_with_savepoint(True, jobs.directory / "drained").result(60)
    client.result(60)
    saved = Savepoint.load(jobs.directory / "drained")
    assert saved.drained
    assert saved.metadata.watermarks == dict.fromkeys(("events", "count", "out"), END_OF_TIME)
    feed(jobs)
    build(jobs, sink="next").execute("next", bounded=True, start_from=saved.location, fork=True)
    assert "was drained: its event time is at its end" in caplog.text
    assert jobs.out("next") == [p for p in counted(KEYS * 2) if p not in counted(KEYS)]


def test_cancelling_with_one(jobs):
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    client.cancel_with_savepoint(jobs.directory / "sp").result(60)
    client.result(60)
    assert jobs.events()[-1] == JobEnded("CANCELED")
    assert rows(jobs.directory / "sp") == {"a": 3, "b": 2, "c": 1}


def test_a_job_that_has_had_no_input_can_be_saved(jobs):
    jobs.input("events")
    client = jobs.start(build(jobs))
    client.stop_with_savepoint(savepoint_directory=jobs.directory / "empty").result(60)
    client.result(60)
    feed(jobs)
    build(jobs).execute("job", bounded=True, start_from=jobs.directory / "empty")
    assert jobs.out() == counted(KEYS)
    # Nor need there be any after a start from a savepoint.
    client = jobs.start(build(jobs))
    client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    client.result(60)
    assert rows(jobs.directory / "sp") == {"a": 3, "b": 2, "c": 1}


class Everything(KeyedProcessFunction):
    seen = ListStateDescriptor("seen", int)
    by_parity = MapStateDescriptor("by parity/..", str, int)
    last = ValueStateDescriptor("last", "n bigint, text string")

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.add(value.n)
        parity = "odd" if value.n % 2 else "even"
        self.by_parity[parity] = (self.by_parity.get(parity) or 0) + value.n
        self.last.update((value.n, str(value.n)))
        yield value.k, len(list(self.seen.get())), self.by_parity[parity], self.last.value()[1]


def test_lists_maps_and_rows_with_awkward_names(jobs):
    def run(name, numbers, **how):
        jobs.feed("numbers", *({"k": "ab"[n % 3 % 2], "n": n} for n in numbers))
        env = jobs.env()
        stream = jobs.files(env, "numbers", "k string, n bigint").key_by("k")
        out = stream.process(Everything(), "k string, n bigint, sum bigint, text string")
        out.uid("a/b..c").sink_to(jobs.sink()).uid("out")
        return jobs.start(env, name, **how)

    client = run("job", range(10))
    eventually(lambda: len(jobs.out()) == 10)
    client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    client.result(60)
    assert {p.relative_to(jobs.directory / "sp").parts[0] for p in jobs.directory.glob("sp/*")} == {
        "_metadata.json",
        "sources",
        "state",
    }
    client = run("job", range(10, 20), bounded=True, start_from=jobs.directory / "sp")
    client.result(60)
    expected, seen, sums = [], {}, {}
    for n in range(20):
        k = "ab"[n % 3 % 2]
        seen[k] = seen.get(k, 0) + 1
        sums[k, n % 2] = sums.get((k, n % 2), 0) + n
        expected.append((k, seen[k], sums[k, n % 2], str(n)))
    assert jobs.out() == sorted(expected, key=repr)


@pytest.mark.parametrize("format_type", list(SavepointFormat))
def test_progress_is_told_in_parts_and_bytes(jobs, monkeypatch, format_type):
    told = []
    monkeypatch.setattr(Requests, "report", lambda self, id, progress: told.append(progress))
    feed(jobs)
    client = jobs.start(build(jobs))
    settled(jobs, KEYS)
    client.stop_with_savepoint(False, jobs.directory / "sp", format_type).result(60)
    client.result(60)
    written = [p for p in (jobs.directory / "sp").rglob("*") if p.suffix in (".parquet", ".arrow")]
    assert (told[0].done, told[0].bytes) == (0, 0)
    assert told[-1].done == told[-1].total == told[0].total > 0
    assert told[-1].bytes == sum(path.stat().st_size for path in written) > 0


def test_scheduled_ones_come_by_themselves_and_old_ones_go(jobs):
    feed(jobs)
    env = build(
        jobs,
        **{
            "state.savepoints.dir": str(jobs.directory / "saved"),
            "savepoints.schedule.interval": "1 s",
            "savepoints.schedule.keep": 2,
        },
    )
    client = jobs.start(env)
    kept = client.trigger_savepoint(label="mine").result(60)
    catalog = SavepointCatalog(JobDirectory.locate(jobs.root, "job").storage)
    first = eventually(lambda: [e for e in catalog.list() if e.scheduled])[0]
    eventually(lambda: first not in catalog.list())
    client.cancel()
    client.result(60)
    entries = catalog.list()
    assert len([e for e in entries if e.scheduled]) <= 2
    assert [e.path for e in entries if not e.scheduled] == [kept]
    for entry in entries:
        assert verify_savepoint(entry.path) == []
    with pytest.raises(CheckpointNotFoundError):
        SavepointDirectory.locate(first.path).load()


def test_the_newest_of_checkpoints_and_savepoints(jobs):
    """By name or by time, both kinds count."""
    feed(jobs)
    env = build(jobs, **{"state.savepoints.dir": str(jobs.directory / "saved")})
    retention = ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    client = jobs.start(env)
    settled(jobs, KEYS)
    where = client.cancel_with_savepoint().result(60)
    client.result(60)
    assert jobs.checkpoints() == []
    feed(jobs)
    report = build(jobs).execute("job", bounded=True, start_from="latest")
    assert report.restored_from == where
    assert jobs.out() == counted(KEYS * 2)
    now = datetime.now(UTC)
    feed(jobs)
    report = build(jobs).execute("job", bounded=True, start_from=now)
    assert report.restored_from != where  # there is a newer checkpoint now
    assert jobs.out() == counted(KEYS * 3)


def test_one_is_taken_by_itself_before_a_stop_and_before_an_upgrade(jobs):
    how = {"state.savepoints.dir": str(jobs.directory / "saved")}
    catalog = SavepointCatalog(JobDirectory.locate(jobs.root, "job").storage)
    feed(jobs)
    client = jobs.start(build(jobs, **how))
    settled(jobs, KEYS)
    where = client.stop().result(60)
    client.result(60)
    assert [e.path for e in catalog.list()] == [where]
    feed(jobs)
    build(jobs, **how).execute("job", bounded=True)  # the same program
    assert len(catalog.list()) == 1
    env = jobs.env(**how)
    counts = jobs.files(env, "events", "k string").key_by("k").process(Count(), COUNTED)
    counts.uid("count").map(lambda row: row, COUNTED).uid("new").sink_to(jobs.sink()).uid("out")
    env.execute("job", bounded=True)
    before = catalog.list()[-1]
    assert before.label == "before-upgrade"
    assert verify_savepoint(before.path) == []
    client = jobs.start(build(jobs, **how, **{"savepoints.on-stop": False}))
    assert client.stop().result(60) is None
    client.result(60)
    assert len(catalog.list()) == 2
    assert jobs.out() == counted(KEYS * 2)


class Pickles(KeyedProcessFunction):
    what = ValueStateDescriptor("what", Types.PICKLED_BYTE_ARRAY())

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.what.update({"seen": (self.what.value() or {"seen": 0})["seen"] + 1})
        yield value.k, self.what.value()["seen"]


def test_pickles_are_read_only_on_demand(jobs):
    feed(jobs)
    client = jobs.start(build(jobs, Pickles()))
    settled(jobs, KEYS)
    client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
    client.result(60)
    feed(jobs)
    with pytest.raises(ConfigurationError, match=r"state 'what' .*allow_pickled_state=True"):
        build(jobs, Pickles()).execute("job", bounded=True, start_from=jobs.directory / "sp")
    build(jobs, Pickles()).execute(
        "job", bounded=True, start_from=jobs.directory / "sp", allow_pickled_state=True
    )
    assert jobs.out() == counted(KEYS * 2)


def test_no_space_left(jobs):
    """The savepoint fails, leaves nothing, and the job goes on."""
    small = jobs.directory / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        missing("a small file system cannot be mounted without the right to do so")
    try:
        feed(jobs)
        jobs.feed("events", *({"k": f"{'long' * 50}{i}{hash(str(i))}"} for i in range(5_000)))
        client = jobs.start(build(jobs))
        eventually(lambda: len(jobs.out()) == 5_000 + len(KEYS))
        with pytest.raises(CheckpointError, match="No space left"):
            client.trigger_savepoint(small / "sp").result(60)
        assert not [p for p in small.rglob("*") if p.is_file()]
        feed(jobs)
        eventually(lambda: len(jobs.out()) == 5_000 + 2 * len(KEYS))
    finally:
        jobs.close()
        subprocess.run(["umount", str(small)], check=True)
