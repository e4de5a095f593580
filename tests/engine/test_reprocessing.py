"""Turned back to last week: a corrected version catches up, and ends with the right numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from job_support import Jobs, eventually
from turnback import Duration, JobClient, Time, WatermarkStrategy
from turnback.functions import AggregateFunction, ProcessWindowFunction
from turnback.windows import TumblingEventTimeWindows

SCHEMA = "user string, amount bigint, at bigint"
DAILY = "user string, day bigint, spent bigint"
HOUR = 3_600_000
DAY = 24 * HOUR
LATENESS = Duration.of_hours(2)


class Spent(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.amount)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class WithoutRefunds(Spent):
    """The version with the mistake."""

    def add(self, value: Any, accumulator: int) -> int:
        return super().add(value, accumulator) if value.amount > 0 else accumulator


class WithDay(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[int]) -> Iterator[Any]:
        (spent,) = elements
        yield key, context.window().start // DAY, spent


def orders(day: int) -> list[dict[str, Any]]:
    """A day's orders and refunds, out of order, and one that is too late."""
    rows = [
        {"user": "abc"[n % 3], "amount": n * 7 - 30, "at": day * DAY + (n * 5 % 24) * HOUR}
        for n in range(24)
    ]
    rows.sort(key=lambda row: int(row["at"]) - int(row["amount"]) % 2 * HOUR)
    return [*rows, {"user": "a", "amount": 1_000, "at": day * DAY + 1}]


def start(
    jobs: Jobs, spent: Spent, name: str, out: str, files: int | None, parallelism: int, **how: Any
) -> JobClient:
    env = jobs.env(parallelism=parallelism)
    events = env.from_files(
        jobs.input("orders"), "json", SCHEMA, "orders", max_files_per_epoch=files
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(LATENESS)
    stamped = events.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("at"))
    windows = stamped.uid("time").key_by("user").window(TumblingEventTimeWindows.of(Time.days(1)))
    daily = windows.aggregate(spent, WithDay(), accumulator_type=int, output_type=DAILY)
    daily.uid("daily").sink_to(jobs.sink(out)).uid("out")
    return jobs.start(env, name, **how)


def test_a_corrected_version_from_last_weeks_savepoint(jobs: Jobs) -> None:
    jobs.feed("orders", *orders(1))
    jobs.feed("orders", *orders(2))
    live = start(jobs, Spent(), "live", "live", 1, 2)
    eventually(lambda: len(jobs.out("live")) == 3)
    saved = str(live.stop_with_savepoint(False, jobs.directory / "last-week").result(60))
    before = jobs.out("live")

    wrong = start(jobs, WithoutRefunds(), "live", "live", 1, 2)
    for day in range(3, 9):
        jobs.feed("orders", *orders(day))
    eventually(lambda: len(jobs.out("live")) == 3 * 7)
    wrong.stop().result(60)

    corrected = start(
        jobs, Spent(), "corrected", "corrected", None, 3, start_from=saved, fork=True, bounded=True
    )
    corrected.result(90)
    always = start(jobs, Spent(), "always", "always", 2, 1, bounded=True)
    always.result(90)
    assert len(jobs.out("always")) == 3 * 8
    assert sorted(before + jobs.out("corrected")) == sorted(jobs.out("always"))
    assert not {*jobs.out("live")} <= {*jobs.out("always")}, "there was nothing to correct"
