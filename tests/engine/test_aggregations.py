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
    Aggregate,
    FileSink,
    Groups,
    StreamExecutionEnvironment,
    Types,
    count,
    last_of,
    max_of,
    mean_of,
    sum_of,
)
from turnback.core.errors import JobFailedError
from turnback.testing import DriverCrash, JobHarness, source

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


def program(**aggregates: Aggregate) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        events = source(env, "s", "k string, n bigint, at bigint")
        events.key_by("k").aggregate(**aggregates).uid("stats").sink_to(
            FileSink("/replaced", "json")
        ).uid("out")

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
