"""Trials: one run of one engine over one dataset each, and how far all of them are."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import program
from benchmarks.dataset import Dataset
from benchmarks.engine import Engine
from benchmarks.result import Result
from benchmarks.window_dataset import WindowDataset
from benchmarks.workload import Workload


@dataclass(frozen=True)
class Trial:
    """A run to come, the `number`th of its kind."""

    engine: Engine
    workload: Workload
    number: int

    def run(self, dataset: Dataset | WindowDataset, timeout: float) -> Result:
        """Run it in an empty directory that is thrown away afterwards."""
        python = program.python_of(self.engine.environment)
        with tempfile.TemporaryDirectory(prefix="turnback-bench-") as scratch:
            arguments = ["--variant", self.engine.name, "--dataset", str(dataset.root.resolve())]
            arguments += ["--scratch", scratch]
            module = f"benchmarks.engines.{self.engine.module}"
            return Result.parse(program.run(module, arguments, Path(scratch), timeout, python))


class Progress:
    """Goes through trials, and prints each with how long those that are left will take.

    A trial takes as long as the last of its kind. Before there is one, its engine's usual rate
    tells, and by how much all trials so far have missed theirs.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = trials
        self._measured: dict[tuple[Engine, Workload], float] = {}
        self._skipped: set[tuple[Engine, Workload]] = set()
        self._begun = time.monotonic()

    def __iter__(self) -> Iterator[Trial]:
        for position, trial in enumerate(self._trials):
            if (trial.engine, trial.workload) in self._skipped:
                continue
            left = _minutes(self._left(position))
            where = f"[{position + 1}/{len(self._trials)}, about {left} left]"
            print(f"{where} {_label(trial)} ...", file=sys.stderr, flush=True)
            yield trial

    def done(self, trial: Trial, result: Result, seconds: float) -> None:
        self._measured[trial.engine, trial.workload] = seconds
        text = f"{result.summary()}; the trial took {seconds:.0f} s"
        print(f"{_label(trial)}: {text}", file=sys.stderr, flush=True)

    def failed(self, trial: Trial, error: Exception) -> None:
        """Leave out all further trials of the kind."""
        self._skipped.add((trial.engine, trial.workload))
        print(f"{_label(trial)} failed: {error}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        took = _minutes(time.monotonic() - self._begun)
        print(f"all trials took {took}", file=sys.stderr, flush=True)

    def _left(self, position: int) -> float:
        usual = sum(engine.trial_seconds(workload) for engine, workload in self._measured)
        slowness = sum(self._measured.values()) / usual if usual else 1.0
        kinds = [(trial.engine, trial.workload) for trial in self._trials[position:]]
        return sum(
            self._measured.get(kind) or kind[0].trial_seconds(kind[1]) * slowness
            for kind in kinds
            if kind not in self._skipped
        )


def _label(trial: Trial) -> str:
    workload = trial.workload
    batch = f"batches of {workload.batch_records:,}"
    return f"{trial.engine.name}, {batch}, trial {trial.number}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
