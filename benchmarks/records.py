"""Records of the benchmarks as Arrow tables and as the files a stream reads in order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv, parquet

SPARK_SCHEMA = "post string, kind string, amount bigint"
FAILING_KEY = 999_999
FAILING = f"post-{FAILING_KEY:06d}"
"""The record of this key fails a job that is to fail."""
_FIRST_MTIME = 1_700_000_000


def table(keys: NDArray[np.int64], amounts: NDArray[np.int64]) -> pa.Table:
    """One record for each key and its amount."""
    return pa.table(
        {
            "post": [f"post-{key:06d}" for key in keys.tolist()],
            "kind": ["click" if amount % 5 == 0 else "view" for amount in amounts.tolist()],
            "amount": pa.array(amounts, pa.int64()),
        }
    )


def write_parquet(path: Path, records: pa.Table, position: int) -> None:
    """Write the file that is to be read at `position` of its stream.

    Spark's file source goes by modification time; a fixed one makes every run cut the same batches.
    """
    parquet.write_table(records, path)
    os.utime(path, (_FIRST_MTIME + position, _FIRST_MTIME + position))


def write_csv(path: Path, records: pa.Table) -> None:
    """Write the same records without header or quotes."""
    csv.write_csv(records, path, csv.WriteOptions(include_header=False, quoting_style="none"))


def copy_to_csv(path: Path, directory: Path) -> None:
    """Write the records of a Parquet file as CSV, under the same name."""
    write_csv(directory / f"{path.stem}.csv", parquet.read_table(path))
