"""The command line shared by the engine programs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dataset import Dataset


@dataclass(frozen=True)
class Arguments:
    """One run: which variant of the engine, on which data, with which empty directory to use."""

    variant: str
    dataset: Dataset
    scratch: Path


def parse(description: str, variants: tuple[str, ...]) -> Arguments:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--dataset", type=Path, required=True, help="prepared by benchmarks.run")
    parser.add_argument("--scratch", type=Path, required=True, help="an empty directory")
    given = parser.parse_args()
    return Arguments(given.variant, Dataset.load(given.dataset), given.scratch)
