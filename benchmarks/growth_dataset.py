"""Records for the growth measure: a large state is loaded, then a few keys change per epoch."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import records
from benchmarks.workload import PARALLELISM

SEED = 5_000
FORMAT = 3
LOAD_BATCH = 500_000
PIECE = 5_000_000
"""Keys that are loaded in one go."""


@dataclass(frozen=True)
class Growth:
    """A state of `keys` keys, of which `touched` different ones change in every epoch."""

    keys: int
    touched: int
    epochs: int
    warmup_epochs: int = 5

    @property
    def pieces(self) -> int:
        """In how many goes the state is loaded."""
        return -(-self.keys // PIECE)


@dataclass(frozen=True)
class GrowthDataset:
    """Where the files are: those that load and touch the state, and one batch to resume with."""

    root: Path
    growth: Growth

    def load_files(self, pieces: int) -> str:
        """The files of the first pieces."""
        return str(self.root / f"load-{{{','.join(f'{i:02d}' for i in range(pieces))}}}-*.parquet")

    @property
    def build_files(self) -> str:
        return str(self.root / "{load,touch}-*.parquet")

    @property
    def all_files(self) -> str:
        return str(self.root / "*.parquet")

    @staticmethod
    def load(root: Path) -> GrowthDataset:
        return GrowthDataset(root, Growth(**json.loads((root / "dataset.json").read_text())))


class _Writer:
    """Writes batches in the order in which they are to be read."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._position = 0

    def write(self, name: str, keys: NDArray[np.int64], amounts: NDArray[np.int64]) -> None:
        for part in range(PARALLELISM):
            mine = slice(part, None, PARALLELISM)
            path = self._root / f"{name}-{self._position:05d}.parquet"
            records.write_parquet(path, records.table(keys[mine], amounts[mine]), self._position)
            self._position += 1


def prepare(growth: Growth, cache: Path) -> GrowthDataset:
    """Return the dataset of `growth`, generating it if the cache does not hold it."""
    root = cache / f"growth-v{FORMAT}-{growth.keys}-{growth.touched}x{growth.epochs}"
    if not (root / "dataset.json").exists():
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        _generate(growth, root)
    return GrowthDataset.load(root)


def _generate(growth: Growth, root: Path) -> None:
    random = np.random.default_rng(SEED)
    counts = np.ones(growth.keys, dtype=np.int64)
    writer = _Writer(root)
    for start in range(0, growth.keys, LOAD_BATCH):
        keys = np.arange(start, min(start + LOAD_BATCH, growth.keys))
        writer.write(f"load-{start // PIECE:02d}", keys, np.ones(len(keys), dtype=np.int64))
    for _ in range(growth.warmup_epochs + growth.epochs):
        keys = random.choice(growth.keys, growth.touched, replace=False)
        counts[keys] += 1
        writer.write("touch", keys, np.ones(len(keys), dtype=np.int64))
    # After the restart these are compared with the state: `amount` is the count it must hold.
    keys = random.choice(growth.keys, growth.touched, replace=False)
    writer.write("resume", keys, counts[keys])
    (root / "dataset.json").write_text(json.dumps(asdict(growth)))
