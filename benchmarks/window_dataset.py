"""Records with times, to be counted per key and window, and the answer a correct engine gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from benchmarks import records
from benchmarks.workload import PARALLELISM, Workload

SEED = 60_000
FORMAT = 1
"""Part of the name in the cache; raise it whenever the records change."""

WINDOW_MS = 60_000
BATCH_MS = 2 * WINDOW_MS
"""The time that the records of a batch cover."""
DISORDER_MS = 1_000
"""How much later than others a record may come."""
START_MS = 1_700_000_040_000
"""Where the first window begins."""
SPARK_SCHEMA = f"{records.SPARK_SCHEMA}, at timestamp"

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class WindowAnswer:
    """How many keys and records there are in each window, from the first on.

    Attributes:
        closed: Windows that have ended before the last batch, which is when Spark's own watermark
            moves for the last time.
    """

    keys: list[int]
    records: list[int]
    closed: int


@dataclass(frozen=True)
class WindowDataset:
    """Where the files of one workload are, and its answer."""

    root: Path
    workload: Workload
    answer: WindowAnswer

    @property
    def batch_files(self) -> str:
        return str(self.root / "parquet" / "batch-*.parquet")

    @property
    def csv_directory(self) -> Path:
        """All records, one file for each reader, so that both go through time together."""
        return self.root / "csv"

    @staticmethod
    def load(root: Path) -> WindowDataset:
        saved: dict[str, Any] = json.loads((root / "dataset.json").read_text())
        workload, answer = Workload(**saved["workload"]), WindowAnswer(**saved["answer"])
        return WindowDataset(root, workload, answer)


def prepare(workload: Workload, cache: Path) -> WindowDataset:
    """Return the dataset of `workload`, generating it if the cache does not hold it."""
    w = workload
    name = f"windows-v{FORMAT}-{w.keys}-{w.batch_records}x{w.batches}-{w.warmup_batches}"
    root = cache / name
    if not (root / "dataset.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        _generate(workload, root)
    return WindowDataset.load(root)


def add_csv(dataset: WindowDataset) -> None:
    """Write the same records as CSV, for engines that cannot read Parquet."""
    if dataset.csv_directory.exists():
        return
    paths = sorted(dataset.root.glob("parquet/batch-*.parquet"))
    table = pa.concat_tables([parquet.read_table(path) for path in paths])
    at = table.column("at").cast(pa.int64())
    table = table.set_column(table.schema.get_field_index("at"), "at", at)
    unfinished = dataset.root / "csv-unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for part in range(PARALLELISM):
        mine = pa.array(np.arange(part, table.num_rows, PARALLELISM))
        records.write_csv(unfinished / f"part-{part}.csv", table.take(mine))
    unfinished.rename(dataset.csv_directory)


def _generate(workload: Workload, root: Path) -> None:
    (root / "parquet").mkdir(parents=True)
    random = np.random.default_rng(SEED)
    size = workload.batch_records
    pairs: list[Numbers] = []
    greatest = 0
    counts = np.zeros(BATCH_MS // WINDOW_MS * workload.batches + 1, np.int64)
    for batch in range(workload.batches):
        keys = random.integers(0, workload.keys, size)
        amounts = random.integers(1, 1_000, size)
        steady = START_MS + DISORDER_MS + batch * BATCH_MS + np.arange(size) * BATCH_MS // size
        at = steady - random.integers(0, DISORDER_MS + 1, size)
        windows = (at - START_MS) // WINDOW_MS
        counts += np.bincount(windows, minlength=len(counts))
        pairs.append(np.unique(windows * workload.keys + keys))
        if batch < workload.batches - 1:
            greatest = max(greatest, int(at.max()))
        _write_batch(root, batch, keys, amounts, at)
    distinct = np.unique(np.concatenate(pairs)) // workload.keys
    answer = WindowAnswer(
        np.bincount(distinct, minlength=len(counts)).tolist(),
        counts.tolist(),
        max(0, (greatest - DISORDER_MS - START_MS) // WINDOW_MS),
    )
    # Written last: a directory without it was interrupted and is made again.
    saved = {"workload": asdict(workload), "answer": asdict(answer)}
    (root / "dataset.json").write_text(json.dumps(saved, indent=1))


def _write_batch(root: Path, batch: int, keys: Numbers, amounts: Numbers, at: Numbers) -> None:
    """Write files that follow each other in time."""
    size = len(keys)
    for part in range(PARALLELISM):
        mine = slice(size * part // PARALLELISM, size * (part + 1) // PARALLELISM)
        times = pa.array(at[mine]).cast(pa.timestamp("ms", "UTC"))
        rows = records.table(keys[mine], amounts[mine]).append_column("at", times)
        name, position = f"batch-{batch:04d}-{part}", batch * PARALLELISM + part
        records.write_parquet(root / "parquet" / f"{name}.parquet", rows, position)
