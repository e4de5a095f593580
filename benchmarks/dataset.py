"""The records of a workload on disk, written once, with the answer a correct engine must give."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workload import PARALLELISM, Workload

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SPARK_SCHEMA = "post string, kind string, amount bigint"
SEED = 20_000
FORMAT = 1
# Spark's file source takes files in order of modification time; a fixed clock fixes the batches.
FIRST_MTIME = 1_700_000_000


@dataclass(frozen=True)
class Answer:
    """Checksums over the emitted `n`, exact whatever the order of the records of one batch."""

    rows_per_record: int
    sum_per_record: int
    rows_per_touched_key: int
    sum_per_touched_key: int


@dataclass(frozen=True)
class Dataset:
    """Where the files of one workload are, and its answer."""

    root: Path
    workload: Workload
    answer: Answer

    @property
    def batch_files(self) -> str:
        return str(self.root / "parquet" / "batch-*.parquet")

    @property
    def batch_files_and_probe(self) -> str:
        return str(self.root / "parquet" / "*.parquet")

    @property
    def csv_directory(self) -> Path:
        return self.root / "csv"

    @staticmethod
    def load(root: Path) -> Dataset:
        saved: dict[str, Any] = json.loads((root / "dataset.json").read_text())
        return Dataset(root, Workload(**saved["workload"]), Answer(**saved["answer"]))


def prepare(workload: Workload, cache: Path) -> Dataset:
    """Return the dataset of `workload`, generating it if the cache does not hold it."""
    w = workload
    name = f"v{FORMAT}-{w.name}-{w.keys}-{w.batch_records}x{w.batches}-{w.warmup_batches}"
    root = cache / name
    if not (root / "dataset.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        _generate(workload, root)
    return Dataset.load(root)


def _generate(workload: Workload, root: Path) -> None:
    import numpy as np

    (root / "parquet").mkdir(parents=True)
    (root / "csv").mkdir()
    random = np.random.default_rng(SEED)
    counts = np.zeros(workload.keys, dtype=np.int64)
    rows_touched = sum_per_record = sum_touched = 0
    for batch in range(workload.batches):
        keys = random.integers(0, workload.keys, workload.batch_records)
        amounts = random.integers(1, 1_000, workload.batch_records)
        seen = np.bincount(keys, minlength=workload.keys)
        # A key seen m times after p earlier records emits p+1, ..., p+m.
        sum_per_record += int((seen * counts + seen * (seen + 1) // 2).sum())
        counts += seen
        rows_touched += int((seen > 0).sum())
        sum_touched += int(counts[seen > 0].sum())
        for part in range(PARALLELISM):
            mine = slice(part, None, PARALLELISM)
            _write(root, batch, part, _table(keys[mine], amounts[mine]))
    _write_probe(root, workload, counts)
    answer = Answer(workload.records, sum_per_record, rows_touched, sum_touched)
    # Written last: a directory without it was interrupted and is made again.
    saved = {"workload": asdict(workload), "answer": asdict(answer)}
    (root / "dataset.json").write_text(json.dumps(saved, indent=1))


def _table(keys: np.ndarray[Any, Any], amounts: np.ndarray[Any, Any]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "post": [f"post-{key:06d}" for key in keys.tolist()],
            "kind": ["click" if amount % 5 == 0 else "view" for amount in amounts.tolist()],
            "amount": pa.array(amounts, pa.int64()),
        }
    )


def _write(root: Path, batch: int, part: int, table: pa.Table) -> None:
    from pyarrow import csv, parquet

    name = f"batch-{batch:04d}-{part}"
    path = root / "parquet" / f"{name}.parquet"
    parquet.write_table(table, path)
    mtime = FIRST_MTIME + batch * PARALLELISM + part
    os.utime(path, (mtime, mtime))
    csv.write_csv(
        table,
        root / "csv" / f"{name}.csv",
        csv.WriteOptions(include_header=False, quoting_style="none"),
    )


def _write_probe(root: Path, workload: Workload, counts: np.ndarray[Any, Any]) -> None:
    """One record per key, its `amount` the count that key must have after the last batch."""
    import numpy as np
    from pyarrow import parquet

    path = root / "parquet" / "probe.parquet"
    parquet.write_table(_table(np.arange(workload.keys), counts), path)
    mtime = FIRST_MTIME + workload.batches * PARALLELISM
    os.utime(path, (mtime, mtime))
