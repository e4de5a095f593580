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
    def csv_directory(self) -> Path:
        return self.root / "csv"

    @staticmethod
    def load(root: Path) -> Dataset:
        saved: dict[str, Any] = json.loads((root / "dataset.json").read_text())
        return Dataset(root, Workload(**saved["workload"]), Answer(**saved["answer"]))
