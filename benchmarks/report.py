"""The tables of a comparison, for the terminal and for RESULTS.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engine import BASELINE, CEILING, ENGINES, Engine
from benchmarks.machine import Machine
from benchmarks.result import Result
from benchmarks.table import table
from benchmarks.workload import PARALLELISM, SMALL_BATCH, Workload

EPOCH_HEAD = (
    "engine", "median epoch", "lowest to highest trial", "spread", f"to {CEILING}",
    "shortest to longest epoch", "a trial takes",
)  # fmt: skip


@dataclass
class Outcome:
    """What came of all trials of one engine on one workload.

    Attributes:
        took: How long each trial took from start to end, in seconds.
        failure: Why there are not as many results as there should be.
    """

    workload: Workload
    results: list[Result] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    failure: str | None = None


Outcomes = Mapping[str, Outcome]
"""By the name of the engine."""


@dataclass(frozen=True)
class Report:
    """All that one run has measured."""

    command: str
    machine: Machine
    throughput: Outcomes
    large: Outcomes
    epochs: Outcomes

    def failures(self) -> list[str]:
        return [o.failure for o in self._all() if o.failure is not None]

    def document(self) -> str:
        """The part of RESULTS.md that is about all engines."""
        parts = [
            "# Results",
            f"Written by `{self.command}`; [README.md](README.md) says what is compared and how.",
            f"{self.machine.describe()} {self._versions()}",
            "Medians of the trials of this one run, and ratios of these medians; spread: highest "
            f"less lowest, in percent of the median. Parallelism {PARALLELISM} where nothing else "
            "is said.",
        ]
        if self.throughput:
            parts += [*heading(self.throughput), throughput_table(self.throughput)]
        if self.large:
            parts += [*heading(self.large), throughput_table(self.large)]
        if self.epochs:
            parts += [
                f"## An epoch of {SMALL_BATCH:,} records",
                f"Seconds from trigger to commit, median of a trial's epochs. To {CEILING}: above "
                "1 is slower.",
                epoch_table(self.epochs),
            ]
        return "\n\n".join(parts) + "\n"

    def _all(self) -> list[Outcome]:
        return [o for some in (self.throughput, self.large, self.epochs) for o in some.values()]

    def _versions(self) -> str:
        found = {pair for o in self._all() for r in o.results for pair in r.versions.items()}
        return ", ".join(f"{name} {version}" for name, version in sorted(found)) + "."


def throughput_table(
    outcomes: Outcomes,
    engines: Mapping[str, Engine] = ENGINES,
    compared: Sequence[str] = (BASELINE, CEILING),
) -> str:
    """Records a second, and how they compare with those of some engines."""
    head = [
        "engine", "records/s", "lowest to highest", "spread", *(f"to {name}" for name in compared),
        "counted", "checkpoints", "a trial takes", "what it does",
    ]  # fmt: skip
    rates = {name: [r.records_per_second for r in o.results] for name, o in outcomes.items()}
    rows = []
    for name, outcome in outcomes.items():
        if outcome.failure is not None:
            rows.append(_failed(name, outcome.failure, len(head)))
            continue
        values = rates[name]
        rows.append(
            [
                name,
                f"{median(values):,.0f}",
                f"{min(values):,.0f} to {max(values):,.0f}",
                _spread(values),
                *(_ratio(rates, name, other) for other in compared),
                f"{outcome.results[0].records:,} of {outcome.workload.records:,}",
                _checkpoints(outcome.results),
                f"{median(outcome.took):.0f} s",
                engines[name].does,
            ]
        )
    return table(head, rows)


def epoch_table(outcomes: Outcomes) -> str:
    """Seconds an epoch takes."""
    medians = {name: [r.median_seconds for r in o.results] for name, o in outcomes.items()}
    rows = []
    for name, outcome in outcomes.items():
        if outcome.failure is not None:
            rows.append(_failed(name, outcome.failure, len(EPOCH_HEAD)))
            continue
        values = medians[name]
        seconds = [s for result in outcome.results for s in result.seconds]
        rows.append(
            [
                name,
                f"{median(values):.3f} s",
                f"{min(values):.3f} to {max(values):.3f} s",
                _spread(values),
                _ratio(medians, name, CEILING),
                f"{min(seconds):.3f} to {max(seconds):.3f} s, of {len(seconds)}",
                f"{median(outcome.took):.0f} s",
            ]
        )
    return table(EPOCH_HEAD, rows)


def heading(outcomes: Outcomes) -> list[str]:
    """What the records of a table were."""
    workloads = {name: outcome.workload for name, outcome in outcomes.items()}
    keys = next(iter(workloads.values())).keys
    batch = max(workload.batch_records for workload in workloads.values())
    parts = [f"## Batches of {batch:,} records over {keys:,} keys"]
    smaller = {name: w.batch_records for name, w in workloads.items() if w.batch_records < batch}
    if smaller:
        sizes = ", ".join(f"{name} {size:,}" for name, size in smaller.items())
        parts.append(f"Engines that would take minutes get smaller ones: {sizes}.")
    return parts


def _failed(name: str, failure: str, columns: int) -> list[str]:
    return [name, f"failed: {failure}", *[""] * (columns - 2)]


def _checkpoints(results: Sequence[Result]) -> str:
    numbers = sorted({result.checkpoints for result in results})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return "one trial"
    return f"{(max(values) - min(values)) / median(values) * 100:.0f} %"


def _ratio(measured: Mapping[str, list[float]], name: str, to: str) -> str:
    base = measured.get(to)
    return f"{median(measured[name]) / median(base):.3g}" if base else "-"
