"""A job that goes on: the same, rescaled, on another backend, from an older checkpoint."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from job_support import COUNTED, Count, Jobs, counted, eventually

from turnback import CheckpointingMode, ExternalizedCheckpointRetention
from turnback.core.errors import CheckpointNotFoundError, IncompatibleStateError

KEYS = ["a", "b", "c", "d", "e", "a", "b", "a"]


def feed(jobs: Jobs, source: str = "in", keys: list[str] = KEYS) -> None:
    jobs.feed(source, *({"key": k} for k in keys))


def build(jobs: Jobs, *, sources=("in",), out: str = "out", retained: int = 10, **how):
    env = jobs.env(**how)
    env.get_checkpoint_config().set_num_retained_checkpoints(retained)
    streams = [jobs.files(env, source, "key string") for source in sources]
    merged = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    merged.key_by("key").process(Count(), COUNTED).uid("count").sink_to(jobs.sink(out)).uid("out")
    return env


def run(jobs: Jobs, start_from=None, **how):
    return build(jobs, **how).execute("job", bounded=True, start_from=start_from)


def test_goes_on_rescaled_and_on_another_backend(jobs):
    configurations = [
        {"parallelism": 2},
        {"parallelism": 3},
        {"parallelism": 1, "state.backend.type": "hashmap"},
        {"parallelism": 2, "state.backend.type": "rocksdb"},
    ]
    reports = []
    for configuration in configurations:
        feed(jobs)
        feed(jobs)
        reports.append(run(jobs, **configuration))
    assert jobs.out() == counted(KEYS * 8)
    assert [r.restored_from for r in reports[1:]] == [
        f"chk-{r.last_checkpoint}" for r in reports[:-1]
    ]


def test_another_number_of_key_groups_is_refused(jobs):
    feed(jobs)
    run(jobs)
    env = build(jobs).set_max_parallelism(64)
    with pytest.raises(IncompatibleStateError, match=r"128 key groups.*set_max_parallelism\(128\)"):
        env.execute("job", bounded=True)


def test_sources_reordered_added_and_removed(jobs):
    for source in ("x", "y"):
        feed(jobs, source)
    run(jobs, sources=("x", "y"))
    for source in ("x", "y", "z"):
        feed(jobs, source)
    run(jobs, sources=("z", "y", "x"))
    assert jobs.out() == counted(KEYS * 5)
    for source in ("x", "y", "z"):
        feed(jobs, source)
    run(jobs, sources=("y",))
    assert jobs.out() == counted(KEYS * 6)


def test_starts_from_any_kept_checkpoint(jobs):
    times = []
    for _ in range(3):
        feed(jobs)
        first = run(jobs)
        time.sleep(0.05)
        times.append(datetime.now())
        time.sleep(0.05)
    kept = {m.number: m.epoch for m in jobs.checkpoints()}
    assert sorted(kept.values()) == [1, 2, 3]
    second = next(n for n, epoch in kept.items() if epoch == 2)
    path = jobs.path() / "checkpoints" / f"chk-{second}.json"
    starts = [second, f"chk-{second}", str(path), times[1].isoformat()]
    for i, start in enumerate(starts):
        report = run(jobs, out=f"again{i}", start_from=start, retained=20)
        assert report.restored_from == f"chk-{second}"
        replayed = set(counted(KEYS * 3)) - set(counted(KEYS * 2))
        assert set(jobs.out(f"again{i}")) == replayed
        assert len(jobs.out(f"again{i}")) == len(KEYS)
    assert first.checkpoints == 1
    with pytest.raises(CheckpointNotFoundError, match="chk-999"):
        run(jobs, start_from=999)


def test_retention_keeps_as_many_as_asked(jobs):
    for _ in range(4):
        feed(jobs)
    run(jobs, retained=2)
    eventually(lambda: len(jobs.checkpoints()) == 2)
    assert max(m.epoch for m in jobs.checkpoints()) == 4


@pytest.mark.parametrize("retention", ExternalizedCheckpointRetention)
def test_cancel_keeps_or_deletes_checkpoints(jobs, retention):
    feed(jobs)
    env = build(jobs)
    env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    client = jobs.start(env)
    eventually(lambda: jobs.out() == counted(KEYS))
    feed(jobs)
    eventually(lambda: jobs.out() == counted(KEYS * 2))
    client.cancel()
    client.result(60)
    kept = retention is ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
    assert bool(jobs.checkpoints()) is kept
    assert jobs.out() == counted(KEYS * 2)


def test_without_checkpoints_nothing_is_kept_and_it_is_said(jobs, caplog):
    feed(jobs)
    report = run(jobs, interval=None)
    assert jobs.out() == counted(KEYS)
    assert report.checkpoints == 0
    assert jobs.checkpoints() == []
    assert "at-most-once" in caplog.text
    run(jobs, interval=None)
    assert len(jobs.out()) == 2 * len(KEYS)


def test_at_least_once_shows_output_before_the_checkpoint(jobs):
    feed(jobs)
    env = build(jobs)
    env.enable_checkpointing("1 h", CheckpointingMode.AT_LEAST_ONCE)
    client = jobs.start(env)
    eventually(lambda: jobs.out() == counted(KEYS))
    assert jobs.checkpoints() == []
    client.cancel()
    client.result(60)


def test_exactly_once_shows_nothing_before_the_checkpoint(jobs):
    feed(jobs)
    env = build(jobs)
    env.enable_checkpointing("1 h")
    client = jobs.start(env)
    eventually(lambda: len(client.report.epochs) == 1)
    assert jobs.out() == []
    client.cancel()
    client.result(60)
    assert jobs.out() == []


def test_fresh_forgets(jobs):
    feed(jobs)
    run(jobs)
    build(jobs, out="fresh").execute("job", bounded=True, fresh=True)
    assert jobs.out("fresh") == counted(KEYS)


def test_jobmanager_storage_survives_restarts_within_the_process(jobs):
    for _ in range(3):
        feed(jobs)
    env = jobs.env(**{"state.backend.type": "memory"})
    stream = jobs.files(env, "in", "key string").key_by("key").process(Count(), COUNTED)
    stream.uid("count").sink_to(jobs.sink()).uid("out")
    env.execute("memory-job", bounded=True)
    feed(jobs)
    env.execute("memory-job", bounded=True)
    assert jobs.out() == counted(KEYS * 4)
    assert not jobs.path("memory-job").exists()
