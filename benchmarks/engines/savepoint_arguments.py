"""The command line shared by the programs that take savepoints and start from them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.saved import EMPTY, FORMATS
from benchmarks.savepoint_dataset import SavepointDataset

SAVE = "save"
PHASES = (SAVE, *FORMATS, EMPTY)
"""Taking both savepoints, then a start from each of them and one from nothing."""


@dataclass(frozen=True)
class SavepointArguments:
    """One phase; what a phase leaves in `scratch` is there for the next."""

    phase: str
    dataset: SavepointDataset
    scratch: Path

    def savepoint(self, format: str) -> Path:
        return self.scratch / "savepoints" / format

    def check(self, format: str) -> Path:
        """Where the batch is that checks the state of this savepoint."""
        return self.scratch / "check" / format


def parse(description: str) -> SavepointArguments:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("phase", choices=PHASES)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    given = parser.parse_args()
    return SavepointArguments(given.phase, SavepointDataset.load(given.dataset), given.scratch)
