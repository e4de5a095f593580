"""The records of a workload on disk, and the answer a correct engine must give."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workload import Workload


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
    def probe_file(self) -> Path:
        """One record per key, its `amount` the count that key has after the last batch."""
        return self.root / "parquet" / "probe.parquet"

    @property
    def csv_directory(self) -> Path:
        """The records of the batches; there for engines that need it."""
        return self.root / "csv"

    @property
    def csv_probe(self) -> Path:
        """The records of the probe, in the order of their keys."""
        return self.root / "csv-probe" / "probe.csv"

    def counts_after_probe(self) -> dict[str, int]:
        """What every key must have been counted to when the probe has been read as well."""
        # Imported here: programs that do not check counts by key have no use for it.
        from pyarrow import parquet

        rows = parquet.read_table(self.probe_file, columns=["post", "amount"]).to_pydict()
        return {post: n + 1 for post, n in zip(rows["post"], rows["amount"], strict=True)}

    @staticmethod
    def load(root: Path) -> Dataset:
        saved: dict[str, Any] = json.loads((root / "dataset.json").read_text())
        return Dataset(root, Workload(**saved["workload"]), Answer(**saved["answer"]))
