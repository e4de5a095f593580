"""Records for the savepoint measure: all keys once, then batches that touch keys everywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.workload import PARALLELISM

SEED = 7_000
FORMAT = 1
LOAD_BATCH = 500_000
CSV_BATCHES = 20
"""Batches that are there as CSV too; their reader may take each more than once."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A state of `keys` keys, and the stream that goes on over it.

    Attributes:
        batch_records: In every batch, over evenly drawn keys.
        batches: How many there are: more than are processed while savepoints are taken.
        checked: Keys whose counts are compared after a restore, evenly spread.
    """

    keys: int
    batch_records: int = 100_000
    batches: int = 200
    checked: int = 5_000

    @property
    def check_step(self) -> int:
        """Keys with a number that this divides are checked."""
        return self.keys // self.checked


@dataclass(frozen=True)
class SavepointDataset:
    """Where the files are, and which counts they lead to."""

    root: Path
    shape: Shape

    @property
    def load_files(self) -> str:
        return str(self.root / "load-*.parquet")

    @property
    def all_files(self) -> str:
        return str(self.root / "*.parquet")

    def load_csv(self) -> list[Path]:
        return sorted(self.root.glob("load-*.csv"))

    def batch_csv(self, batch: int) -> list[Path]:
        return sorted(self.root.glob(f"batch-{batch % self._csv_batches:04d}-*.csv"))

    def counts(self, batches: Iterable[int]) -> Numbers:
        """The count of every key after the load and these batches."""
        counts = np.ones(self.shape.keys, dtype=np.int64)
        for batch in batches:
            counts += np.bincount(_drawn(self.shape, batch), minlength=self.shape.keys)
        return counts

    def csv_counts(self, batches: Iterable[int]) -> Numbers:
        """As `counts`, of batches as `batch_csv` gives them."""
        return self.counts(batch % self._csv_batches for batch in batches)

    def check_batch(self, counts: Numbers) -> pa.Table:
        """Records of some keys, `amount` being the count that the state must hold for them."""
        keys = np.arange(self.shape.checked) * self.shape.check_step
        return records.table(keys, counts[keys])

    def write_check(self, directory: Path, counts: Numbers) -> None:
        """Write the check batch in both formats, to be read after all other files."""
        (directory / "parquet").mkdir(parents=True)
        (directory / "csv").mkdir()
        rows = self.check_batch(counts)
        position = (_load_batches(self.shape) + self.shape.batches) * PARALLELISM
        half = len(rows) // PARALLELISM
        for part in range(PARALLELISM):
            mine = rows.slice(part * half, half if part < PARALLELISM - 1 else None)
            path = directory / "parquet" / f"check-{part}.parquet"
            records.write_parquet(path, mine, position + part)
            records.write_csv(directory / "csv" / f"check-{part}.csv", mine)

    @property
    def _csv_batches(self) -> int:
        return min(CSV_BATCHES, self.shape.batches)

    @staticmethod
    def load(root: Path) -> SavepointDataset:
        return SavepointDataset(root, Shape(**json.loads((root / "dataset.json").read_text())))


def prepare(shape: Shape, cache: Path) -> SavepointDataset:
    """Return the dataset of `shape`, generating it if the cache does not hold it."""
    s = shape
    root = cache / f"savepoint-v{FORMAT}-{s.keys}-{s.batch_records}x{s.batches}-{s.checked}"
    if not (root / "dataset.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        _generate(shape, root)
    return SavepointDataset.load(root)


def _generate(shape: Shape, root: Path) -> None:
    loads = _load_batches(shape)
    for number in range(loads):
        start = number * LOAD_BATCH
        keys = np.arange(start, min(start + LOAD_BATCH, shape.keys))
        _write(root, "load", number, number, keys, csv=True)
    for number in range(shape.batches):
        keys = _drawn(shape, number)
        _write(root, "batch", number, loads + number, keys, csv=number < CSV_BATCHES)
    # Written last: a directory without it was interrupted and is made again.
    (root / "dataset.json").write_text(json.dumps(asdict(shape)))


def _load_batches(shape: Shape) -> int:
    return -(-shape.keys // LOAD_BATCH)


def _drawn(shape: Shape, batch: int) -> Numbers:
    """The keys of a batch, the same every time."""
    return np.random.default_rng([SEED, batch]).integers(0, shape.keys, shape.batch_records)


def _write(root: Path, kind: str, number: int, place: int, keys: Numbers, *, csv: bool) -> None:
    for part in range(PARALLELISM):
        mine = keys[part::PARALLELISM]
        rows = records.table(mine, np.ones(len(mine), dtype=np.int64))
        name = f"{kind}-{number:04d}-{part}"
        records.write_parquet(root / f"{name}.parquet", rows, place * PARALLELISM + part)
        if csv:
            records.write_csv(root / f"{name}.csv", rows)
