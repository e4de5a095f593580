"""The command line shared by the engine programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.dataset import Dataset

D = TypeVar("D")


@dataclass(frozen=True)
class Arguments(Generic[D]):
    """One run: which variant of the engine, on which data, with which empty directory to use."""

    variant: str
    dataset: D
    scratch: Path


def parse(description: str, variants: tuple[str, ...]) -> Arguments[Dataset]:
    return parse_with(description, variants, Dataset.load)


def parse_with(
    description: str, variants: tuple[str, ...], load: Callable[[Path], D]
) -> Arguments[D]:
    """Parse the arguments of an engine that reads records of its own kind."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--variant", choices=variants, default=variants[0])
    parser.add_argument("--dataset", type=Path, required=True, help="prepared by benchmarks.run")
    parser.add_argument("--scratch", type=Path, required=True, help="an empty directory")
    given = parser.parse_args()
    return Arguments(given.variant, load(given.dataset), given.scratch)
