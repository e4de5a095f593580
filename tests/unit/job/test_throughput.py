"""How much a job has processed: what is counted, kept, added up and forgotten."""

from __future__ import annotations

from itertools import pairwise

import pytest

from manual_clock import ManualClock
from turnback.errors import CorruptFileError, FormatVersionError
from turnback.job.throughput import FILE, Bucket, ThroughputLog, condense, read_throughput
from turnback.storage.envelope import seal
from turnback.storage.local import LocalStorage
from turnback.views.job import throughput_history

MINUTE, DAY = 60_000, 86_400_000
START = 1_700_000_000_000 - 1_700_000_000_000 % DAY  # the beginning of every width


@pytest.fixture
def storage(tmp_path):
    return LocalStorage(tmp_path)


@pytest.fixture
def clock():
    return ManualClock(START)


def started(storage, clock, job_id="one") -> ThroughputLog:
    log = ThroughputLog(storage, clock)
    log.begin(job_id)
    return log


def test_an_epoch_counts_in_all_the_time_it_took(storage, clock):
    log = started(storage, clock)
    clock.advance(25_000)
    log.count(2_500, 250, 25)
    log.write()
    buckets = [
        (b.start_ms - START, b.span_ms, b.records_in) for b in read_throughput(storage, "one")
    ]
    assert buckets == [(0, 10_000, 1000), (10_000, 10_000, 1000), (20_000, 5_000, 500)]
    points = throughput_history(storage, "one", 30, clock.now_ms()).points
    assert [(p.in_per_s, p.out_per_s) for p in points] == [(100, 10)] * 3


def test_a_job_without_input_has_points_and_one_that_does_not_run_has_none(storage, clock):
    log = started(storage, clock)
    for _ in range(15):
        clock.advance(2_000)
        log.tick(None)
    log.write()
    clock.advance(10 * MINUTE + 1_000)
    log = started(storage, clock)  # the next driver
    log.count(10, 10, 0.001)
    log.tick(7)
    log.write()
    points = throughput_history(storage, "one", 30, clock.now_ms()).points
    assert [(p.start_ms - START, p.in_per_s, p.lag) for p in points] == [
        (0, 0, None), (10_000, 0, None), (20_000, 0, None), (30_000, 0, None), (630_000, 10, 7),
    ]  # fmt: skip


def test_what_a_long_epoch_covers_is_not_written_before_it_ends(storage, clock):
    log = started(storage, clock)
    for second in range(0, 60, 2):
        clock.advance(2_000)
        log.tick(None, epoch_s=float(second))  # it began after two seconds
    assert read_throughput(storage, "one") == ()
    log.count(580, 0, 58)
    clock.advance(10_000)
    log.tick(None)
    points = throughput_history(storage, "one", 30, clock.now_ms()).points
    assert [p.in_per_s for p in points] == [10] * 6 + [0]


def test_a_restart_within_a_bucket_goes_on_with_it(storage, clock):
    log = started(storage, clock)
    clock.advance(1_000)
    log.count(30, 3, 0.5)
    log.write()
    log = started(storage, clock)
    clock.advance(1_000)
    log.count(70, 7, 0.5)
    log.write()
    assert read_throughput(storage, "one") == (Bucket(START, 2_000, 100, 10),)


@pytest.mark.slow
def test_the_file_stays_small_for_ever_and_loses_no_record_of_a_week(storage, clock):
    log = started(storage, clock)
    for _ in range(9 * 24 * 2):
        clock.advance(30 * MINUTE)
        log.count(1_800_000, 1_800, 1_800)
        log.tick(1_000)
    log.write()
    buckets = read_throughput(storage, "one")
    assert len(buckets) < 1_600
    assert len(storage.get(FILE)) < 100_000
    assert clock.now_ms() - buckets[0].start_ms <= 7 * DAY + 10 * MINUTE
    assert sum(b.records_in for b in buckets) == pytest.approx(7 * 86_400_000, rel=0.002)
    for minutes, step, most in [
        (30, 10_000, 181),
        (360, MINUTE, 361),
        (10_080, 10 * MINUTE, 1_009),
    ]:
        history = throughput_history(storage, "one", minutes, clock.now_ms())
        assert history.step_ms == step
        assert most - 3 <= len(history.points) <= most
        starts = [point.start_ms for point in history.points]
        assert {b - a for a, b in pairwise(starts)} == {step}
        assert {round(point.in_per_s) for point in history.points[:-1]} == {1_000}


def test_a_clock_that_was_ahead_hides_nothing(storage, clock):
    log = started(storage, clock)
    clock.set_now_ms(START + DAY)
    log.count(5, 5, 1)
    log.write()
    clock.set_now_ms(START + MINUTE)
    log.count(6, 6, 1)
    log.write()
    assert [(b.start_ms - START, b.records_in) for b in read_throughput(storage, "one")] == [
        (50_000, 6)
    ]


def test_a_job_that_was_started_afresh_begins_anew(storage, clock):
    log = started(storage, clock)
    log.count(5, 5, 1)
    log.write()
    assert read_throughput(storage, "two") == ()
    log = started(storage, clock, "two")
    log.tick(None)
    log.write()
    assert [b.records_in for b in read_throughput(storage, "two")] == [0]
    assert read_throughput(storage, "one") == ()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"{nonsense", CorruptFileError),
        (seal("throughput", 1, b'{"job_id": 1}'), CorruptFileError),
        (seal("throughput", 2, b"{}"), FormatVersionError),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_written_anew(storage, clock, caplog, data, error):
    storage.put(FILE, data)
    with pytest.raises(error, match=FILE):
        read_throughput(storage, "one")
    log = started(storage, clock)
    assert FILE in caplog.text
    clock.advance(1_000)
    log.count(5, 5, 1)
    log.write()
    assert [b.records_in for b in read_throughput(storage, "one")] == [5]


def test_a_storage_that_refuses_fails_nothing(storage, clock, caplog, tmp_path):
    log = started(storage, clock)
    log.count(5, 5, 1)
    (tmp_path / FILE).mkdir()
    log.write()
    (tmp_path / FILE).rmdir()
    assert "cannot write the throughput" in caplog.text
    log.write()
    assert sum(b.records_in for b in read_throughput(storage, "one")) == 5


def test_buckets_are_added_up_once():
    buckets = [Bucket(START + i * 10_000, 10_000, 1, 2, i) for i in range(12)]
    now = START + 40 * MINUTE
    once = condense(buckets, now)
    assert once == [Bucket(START, 60_000, 6, 12, 5), Bucket(START + MINUTE, 60_000, 6, 12, 11)]
    assert condense(once, now) == once
