"""Functions over whole batches in jobs: epochs, savepoints, failures, changed programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from job_support import COUNTED, BatchCount, Count, Jobs, counted
from turnback import FileSink, StreamExecutionEnvironment, ValueStateDescriptor
from turnback.errors import JobFailedError
from turnback.functions import KeyedBatchFunction, KeyedColumns
from turnback.testing import DriverCrash, JobHarness, source

SALES = "region string, shop int, price double"
TOTALS = "region string, shop int, n bigint, total double"


class Totals(KeyedBatchFunction):
    """Number and sum of the sales of each shop so far, once per batch."""

    totals = ValueStateDescriptor("totals", "n bigint, total double")

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        before = state.read(self.totals)
        n = before.field("n").fill_null(0).to_numpy() + np.bincount(state.index)
        total = before.field("total").fill_null(0.0).to_numpy()
        total = total + np.bincount(state.index, batch["price"])
        state.write(self.totals, {"n": n, "total": total})
        region, shop = state.keys.flatten()
        return pa.table({"region": region, "shop": shop, "n": n, "total": total})


def test_two_key_columns_over_several_epochs(jobs: Jobs) -> None:
    """Also behind another operator, and in two runs of the job."""
    shops = [(region, shop) for region in ("north", "south", "west") for shop in range(20)]
    expected, so_far = [], Counter[tuple[str, int]]()
    for epoch in range(4):
        sold = [shop for i, shop in enumerate(shops * 3) if (i + epoch) % 4]
        jobs.feed("sales", *({"region": r, "shop": s, "price": 0.5} for r, s in sold))
        so_far.update(sold)
        expected += [(*shop, so_far[shop], so_far[shop] / 2) for shop in set(sold)]
        if epoch % 2:
            env = jobs.env(**{"state.backend.type": ("hashmap", "rocksdb")[epoch // 2]})
            sales = jobs.files(env, "sales", SALES)
            totals = sales.key_by("region", "shop").process(Totals(), TOTALS).uid("totals")
            totals.sink_to(jobs.sink()).uid("out")
            regions = totals.key_by("region").process(BatchCount(), COUNTED).uid("regions")
            regions.sink_to(jobs.sink("regions")).uid("out of regions")
            env.execute("job", bounded=True)
    assert jobs.out() == sorted(expected, key=repr)
    assert jobs.out("regions") == counted(row[0] for row in expected)


# -- without Spark


def program(function: type[Any]) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        counts = source(env, "s", str).key_by("value").process(function(), COUNTED).uid("count")
        counts.sink_to(FileSink("/replaced", "json")).uid("out")

    return build


@pytest.mark.parametrize("functions", [(Count, BatchCount, Count), (BatchCount, Count, BatchCount)])
def test_one_kind_takes_the_place_of_the_other_from_a_savepoint(
    tmp_path: Path, functions: tuple[Any, ...]
) -> None:
    text = "abracadabra"
    with JobHarness(program(functions[0]), tmp_path) as job:
        job.push("s", *text)
        for parallelism, function in ((3, functions[1]), (1, functions[2])):
            savepoint = job.savepoint()
            job.stop()
            job.start(program(function), parallelism=parallelism, start_from=savepoint)
            job.push("s", *text)
        assert Counter(job.output("out")) == Counter(counted(text * 3))
        assert job.state("count", "count") == Counter(text * 3)


class Named(KeyedBatchFunction):
    """`BatchCount` with a state that has grown: a number has become a row."""

    count = ValueStateDescriptor(
        "count", "n bigint, note string", migrate=lambda old: (old, "migrated")
    )

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> pa.Table:
        rows = state.read(self.count)
        note = rows.field("note").fill_null("new")
        n = rows.field("n").fill_null(0).to_numpy() + np.bincount(state.index)
        state.write(self.count, {"n": n, "note": note})
        return pa.table({"key": state.keys, "n": n})


def test_its_state_evolves_like_any_other(tmp_path: Path) -> None:
    with JobHarness(program(Count), tmp_path) as job:
        job.push("s", *"aab")
        job.restart(program(Named))
        job.push("s", *"bc")
        assert job.state("count", "count") == {
            "a": (2, "migrated"),
            "b": (2, "migrated"),
            "c": (1, "new"),
        }


def test_it_goes_on_after_failures(tmp_path: Path) -> None:
    with JobHarness(program(BatchCount), tmp_path) as job:
        job.push("s", *"abc")
        job.fail_task("count")
        job.push("s", *"ab")
        job.crash_at("after-manifest")
        with pytest.raises(DriverCrash):
            job.push("s", *"a")
        job.start()
        job.push("s", *"ab")
        assert Counter(job.output("out")) == Counter(counted("abcabaab"))


class Breaks(KeyedBatchFunction):
    count = ValueStateDescriptor("count", int)

    def process_batch(self, batch: pa.RecordBatch, state: KeyedColumns) -> None:
        state.write(self.count, np.zeros(5))


def test_a_mistake_in_it_fails_the_job_with_its_line(tmp_path: Path) -> None:
    with (
        JobHarness(
            program(Breaks), tmp_path, configuration={"restart-strategy.type": "none"}
        ) as job,
        pytest.raises(JobFailedError) as caught,
    ):
        job.push("s", "a", "b")
    assert "state 'count' of operator 'count'" in str(caught.value)
    assert "state.write(self.count, np.zeros(5))" in str(caught.value)
