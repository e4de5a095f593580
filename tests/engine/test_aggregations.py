"""Declared aggregations in jobs: epochs, upgrades, failures, aggregates of one's own."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from job_support import Jobs
from turnback import (
    FileSink,
    StreamExecutionEnvironment,
    Time,
    Types,
    WatermarkStrategy,
    count,
    max_of,
    mean_of,
    sum_of,
)
from turnback.errors import IncompatibleStateError, JobFailedError
from turnback.functions import Aggregate, Groups, first_of, last_of, stddev_of, variance_of
from turnback.testing import DriverCrash, JobHarness, source
from turnback.windows import TumblingEventTimeWindows

SALES = "region string, shop int, price decimal(9,2), at bigint"


def test_two_key_columns_over_several_epochs(jobs: Jobs) -> None:
    """Also behind another operator, before another aggregation, and in two runs of the job."""
    shops = [(region, shop) for region in ("north", "south", "west") for shop in range(20)]
    expected, sold_before = [], Counter[tuple[str, int]]()
    shops_of: defaultdict[str, int] = defaultdict(int)
    for epoch in range(4):
        sold = [shop for i, shop in enumerate(shops * 3) if (i + epoch) % 4]
        rows = [{"region": r, "shop": s, "price": "0.50", "at": epoch} for r, s in sold]
        jobs.feed("sales", *rows)
        sold_before.update(sold)
        for shop in set(sold):
            n = sold_before[shop]
            expected.append((*shop, n, f"{n / 2:.2f}", epoch, 0.5))
            shops_of[shop[0]] += 1
        if epoch % 2:
            env = jobs.env(**{"state.backend.type": ("hashmap", "rocksdb")[epoch // 2]})
            sales = jobs.files(env, "sales", SALES)
            if epoch > 1:
                sales = sales.filter(lambda row: row.shop >= 0)
            totals = sales.key_by("region", "shop").aggregate(
                n=count(), total=sum_of("price"), last=max_of("at"), mean=mean_of("price")
            )
            totals.uid("totals").sink_to(jobs.sink()).uid("out")
            regions = totals.key_by("region").aggregate(rows=count()).uid("regions")
            regions.sink_to(jobs.sink("regions")).uid("out of regions")
            env.execute("job", bounded=True)
    assert [tuple(map(str, row)) for row in jobs.out()] == [
        tuple(map(str, row)) for row in sorted(expected, key=repr)
    ]
    last = dict(sorted(jobs.out("regions"), key=lambda row: row[1]))
    assert last == shops_of


# -- without Spark


def program(windows: str | None = None, **aggregates: Aggregate) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        keyed: Any = source(env, "s", "k string, n bigint, at bigint")
        if windows is not None:
            by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
            keyed = keyed.assign_timestamps_and_watermarks(by_time).uid("times")
        keyed = keyed.key_by("k")
        if windows is not None:
            keyed = keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        if windows == "by element":
            keyed = keyed.allowed_lateness(5)
        keyed.aggregate(**aggregates).uid("stats").sink_to(FileSink("/replaced", "json")).uid("out")

    return build


def test_aggregates_are_added_and_removed_between_releases(tmp_path: Path) -> None:
    with JobHarness(program(n=count(), total=sum_of("n")), tmp_path) as job:
        job.push("s", ("a", 1, 1), ("a", 2, 2), ("b", 3, 3))
        savepoint = job.savepoint()
        job.stop()
        later = program(total=sum_of("n"), last=last_of("n", by="at"))
        job.start(later, parallelism=3, start_from=savepoint)
        job.push("s", ("a", 4, 4), ("c", 5, 5))
        assert job.state("stats", "aggregates") == {
            "a": (7, (4, 4)),
            "b": (3, None),
            "c": (5, (5, 5)),
        }
        assert sorted(job.output("out")[-2:]) == [("a", 7, 4), ("c", 5, 5)]


OTHERS = [
    (mean_of("n"), variance_of("n"), r"mean_of\(n\) and is now variance_of\(n\)"),
    (sum_of("n"), max_of("n"), r"sum_of\(n\) and is now max_of\(n\)"),
    (count(), sum_of("n"), r"count\(\) and is now sum_of\(n\)"),
    (sum_of("n"), sum_of("at"), r"sum_of\(n\) and is now sum_of\(at\)"),
    (first_of("n", by="at"), last_of("n", by="at"), r"first_of\(n, by=at\) and is now last_of"),
]


@pytest.mark.parametrize("windows", [None, "combined", "by element"])
@pytest.mark.parametrize(("before", "after", "message"), OTHERS)
def test_another_aggregate_does_not_take_over_under_the_same_name(
    tmp_path: Path, windows: str | None, before: Aggregate, after: Aggregate, message: str
) -> None:
    with JobHarness(program(windows, m=before), tmp_path) as job:
        job.push("s", ("a", 5, 1), ("a", 6, 2))
        savepoint = job.savepoint()
        job.stop()
        with pytest.raises(IncompatibleStateError, match=f"'m' was {message}.*another name"):
            job.start(program(windows, m=after), start_from=savepoint)
        job.start(program(windows, m2=after, m=before), start_from=savepoint)
        job.push("s", ("a", 1, 3))


@pytest.mark.parametrize("windows", [None, "combined", "by element"])
@pytest.mark.parametrize("allow", [True, ["stats"]])
def test_another_aggregate_starts_anew_if_that_is_allowed(
    tmp_path: Path, windows: str | None, allow: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with JobHarness(program(windows, m=count()), tmp_path) as job:
        job.push("s", ("a", 5, 1), ("a", 6, 2))
        savepoint = job.savepoint()
        job.stop()
        later = program(windows, m=sum_of("n"))
        with pytest.raises(IncompatibleStateError, match=r"allow_non_restored_state=\['stats'\]"):
            job.start(later, start_from=savepoint)
        job.start(later, start_from=savepoint, allow_non_restored_state=allow)
        job.push("s", ("a", 7, 3))
        job._running().client.stop_with_savepoint(True, str(tmp_path / "drained")).result()
        assert [row.m for row in job.output("out")][-1] == 7
    name = "aggregates" if windows is None else "windows"
    assert f"state {name!r} of operator 'stats' starts empty, as allowed" in caplog.text


def test_the_deviation_goes_on_from_the_variance(tmp_path: Path) -> None:
    with JobHarness(program(m=variance_of("n")), tmp_path) as job:
        job.push("s", ("a", 1, 1))
        job.restart(program(m=stddev_of("n")))
        job.push("s", ("a", 3, 2))
        assert job.output("out")[-1] == ("a", 2**0.5)


def test_a_sum_that_does_not_fit_is_told_by_operator_and_key(tmp_path: Path) -> None:
    with JobHarness(program(total=sum_of("n")), tmp_path, parallelism=1) as job:
        job.push("s", ("a", 2**63 - 1, 1), ("b", 1, 1))
        assert sorted(job.output("out")) == [("a", 2**63 - 1), ("b", 1)]
        with pytest.raises(
            JobFailedError, match=r"operator 'stats' .*: key 'a': the sum of column 'n' does not"
        ):
            job.push("s", ("b", 1, 1), ("a", 1, 1))


def test_it_goes_on_after_failures(tmp_path: Path) -> None:
    with JobHarness(program(n=count(), total=sum_of("n")), tmp_path) as job:
        job.push("s", ("a", 1, 1), ("b", 2, 2))
        job.fail_task("stats")
        job.push("s", ("a", 10, 3))
        job.crash_at("after-manifest")
        with pytest.raises(DriverCrash):
            job.push("s", ("b", 20, 4))
        job.start()
        job.push("s", ("a", 100, 5))
        assert sorted(job.output("out")) == [
            ("a", 1, 1),
            ("a", 2, 11),
            ("a", 3, 111),
            ("b", 1, 2),
            ("b", 2, 22),
        ]


class Product(Aggregate):
    """An aggregate of a user's own: the product of a column."""

    def __init__(self, column: str) -> None:
        self.columns = (column,)

    def types(self, *columns: Any) -> Any:
        return Types.DOUBLE(), Types.DOUBLE()

    def combine(self, groups: Groups, *columns: pa.Array) -> pa.Array:
        return groups.sum(pc.ln(columns[0].cast(pa.float64())))

    def merge(self, groups: Groups, accumulators: pa.Array) -> pa.Array:
        return groups.sum(accumulators)

    def result(self, accumulators: pa.Array) -> pa.Array:
        return pc.round(pc.exp(accumulators), 6)


def test_aggregates_of_ones_own(tmp_path: Path) -> None:
    with JobHarness(program(product=Product("n")), tmp_path) as job:
        job.push("s", ("a", 2, 1), ("a", 3, 2), ("b", 5, 3))
        job.push("s", ("a", 7, 4))
        assert sorted(job.output("out")) == [("a", 6.0), ("a", 42.0), ("b", 5.0)]


class Broken(Product):
    def merge(self, groups: Groups, accumulators: pa.Array) -> pa.Array:
        raise ValueError("out of tune")


@pytest.mark.parametrize(
    ("aggregate", "row", "problem"),
    [
        (Broken("n"), ("a", 1, 1), "operator 'stats'.*out of tune"),
        (count(), (None, 1, 1), "operator 'stats-combine'.*key.*null"),
    ],
    ids=["an error of its own", "a null key"],
)
def test_what_goes_wrong_is_told_by_the_operator(
    tmp_path: Path, aggregate: Aggregate, row: Any, problem: str
) -> None:
    settings = {"restart-strategy.type": "none"}
    with (
        JobHarness(program(x=aggregate), tmp_path, configuration=settings) as job,
        pytest.raises(JobFailedError, match=f"(?s){problem}"),
    ):
        job.push("s", row)
