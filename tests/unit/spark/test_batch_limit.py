from __future__ import annotations

from types import SimpleNamespace

import pytest

from turnback.spark.engine import SMALL, BatchLimit

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def session(rows="10000", **given):
    settings = {ROWS: rows, **given}
    conf = SimpleNamespace(
        get=settings.get, set=settings.__setitem__, unset=lambda key: settings.pop(key, None)
    )
    return SimpleNamespace(conf=conf, settings=settings)


def after(limit, spark, *row_bytes):
    for each in row_bytes:
        limit.learn(each)
        limit.apply(spark)
    return spark.settings.get(BYTES)


def test_nothing_changes_before_rows_were_seen():
    assert after(BatchLimit(), session(), 0) is None


def test_small_rows_need_no_limit_and_large_ones_do():
    limit, spark = BatchLimit(), session()
    assert after(limit, spark, 100) == str(2**31 - 1)
    assert after(limit, spark, 0, 120) == str(2**31 - 1)
    assert after(limit, spark, SMALL // 10_000 + 1) is None
    assert after(limit, spark, 100) is None  # such rows may come again


def test_what_counts_is_the_size_of_a_whole_batch():
    assert after(BatchLimit(), session(), SMALL // 10_000) is not None
    assert after(BatchLimit(), session(rows="1000000"), 100) is None


@pytest.mark.parametrize("rows", ["0", "-1"])
def test_without_a_limit_in_rows_the_one_in_bytes_stays(rows):
    assert after(BatchLimit(), session(rows=rows), 10) is None


def test_a_limit_of_the_user_stays():
    spark = session(**{BYTES: "1000000"})
    assert after(BatchLimit(), spark, 10, 10**9) == "1000000"
