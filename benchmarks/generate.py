"""Writes the records of a workload once, with the answer to check every engine by."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.dataset import Answer, Dataset
from benchmarks.workload import PARALLELISM, Workload

SEED = 20_000
FORMAT = 2
"""Part of the name in the cache; raise it whenever the records change."""

Numbers = NDArray[np.int64]


def prepare(workload: Workload, cache: Path) -> Dataset:
    """Return the dataset of `workload`, generating it if the cache does not hold it."""
    w = workload
    name = f"v{FORMAT}-{w.name}-{w.keys}-{w.batch_records}x{w.batches}-{w.warmup_batches}"
    root = cache / name
    if not (root / "dataset.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        _generate(workload, root)
    return Dataset.load(root)


def add_csv(dataset: Dataset) -> None:
    """Write the same records as CSV, for engines that cannot read Parquet."""
    if dataset.csv_directory.exists():
        return
    dataset.csv_probe.parent.mkdir(exist_ok=True)
    records.copy_to_csv(dataset.probe_file, dataset.csv_probe.parent)
    unfinished = dataset.root / "csv-unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for path in sorted(dataset.root.glob("parquet/batch-*.parquet")):
        records.copy_to_csv(path, unfinished)
    unfinished.rename(dataset.csv_directory)


def _generate(workload: Workload, root: Path) -> None:
    (root / "parquet").mkdir(parents=True)
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
        _write_batch(root, batch, keys, amounts)
    _write_probe(root, workload, counts)
    answer = Answer(workload.records, sum_per_record, rows_touched, sum_touched)
    # Written last: a directory without it was interrupted and is made again.
    saved = {"workload": asdict(workload), "answer": asdict(answer)}
    (root / "dataset.json").write_text(json.dumps(saved, indent=1))


def _write_batch(root: Path, batch: int, keys: Numbers, amounts: Numbers) -> None:
    for part in range(PARALLELISM):
        mine = slice(part, None, PARALLELISM)
        rows = records.table(keys[mine], amounts[mine])
        name = f"batch-{batch:04d}-{part}"
        position = batch * PARALLELISM + part
        records.write_parquet(root / "parquet" / f"{name}.parquet", rows, position)


def _write_probe(root: Path, workload: Workload, counts: Numbers) -> None:
    rows = records.table(np.arange(workload.keys), counts)
    position = workload.batches * PARALLELISM
    records.write_parquet(root / "parquet" / "probe.parquet", rows, position)
