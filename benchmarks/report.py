"""The tables of a comparison, for the terminal and for RESULTS.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engine import BASELINE, ENGINES
from benchmarks.machine import Machine
from benchmarks.result import Result
from benchmarks.table import table
from benchmarks.workload import FAST_BATCHES, PARALLELISM, SLOW_BATCHES

SAVEPOINTS = "savepoints"
"""Name of the section of RESULTS.md that another program writes."""


@dataclass
class Outcome:
    """What came of all trials of one engine on one workload."""

    results: list[Result] = field(default_factory=list)
    failure: str | None = None


Outcomes = dict[str, Outcome]


def throughput_table(outcomes: Outcomes) -> str:
    """Records a second, median of the trials, and how it compares to the baseline."""
    rates = {name: [r.records_per_second for r in o.results] for name, o in outcomes.items()}
    rows = []
    for name, outcome in outcomes.items():
        if not rates[name]:
            rows.append((name, f"failed: {outcome.failure}", *[""] * 4, ENGINES[name].does))
            continue
        rows.append(
            (
                name,
                f"{median(rates[name]):,.0f}",
                f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}",
                _ratio(rates, name),
                f"{outcome.results[0].records:,}",
                _checkpoints(outcome.results),
                ENGINES[name].does,
            )
        )
    head = (
        "engine", "records/s", "lowest to highest", "ratio", "counted", "checkpoints",
        "what it does",
    )  # fmt: skip
    return table(head, rows)


def epoch_table(outcomes: Outcomes) -> str:
    """Seconds an epoch takes, median over all epochs of all trials."""
    seconds = {name: [s for r in o.results for s in r.seconds] for name, o in outcomes.items()}
    rows = []
    for name, outcome in outcomes.items():
        if not seconds[name]:
            rows.append((name, f"failed: {outcome.failure}", "", "", ""))
            continue
        ordered = sorted(seconds[name])
        rows.append(
            (
                name,
                f"{median(ordered):.3f} s",
                f"{ordered[0]:.3f} to {ordered[-1]:.3f} s",
                _ratio(seconds, name),
                str(len(ordered)),
            )
        )
    return table(("engine", "median epoch", "lowest to highest", "ratio", "epochs"), rows)


def document(
    command: str,
    machine: Machine,
    batch_records: int,
    keys: int,
    throughput: Outcomes,
    epochs: Outcomes,
) -> str:
    """The whole of RESULTS.md."""
    busy = "**Other work was running: these numbers say little.** " if machine.busy else ""
    parts = [
        "# Results",
        f"Written by `{command}`; [README.md](README.md) says what is compared and how.",
        machine.describe() + f" {busy}{_versions([*throughput.values(), *epochs.values()])}",
        "## Throughput",
        f"Batches of {batch_records:,} records over {keys:,} keys: {FAST_BATCHES[1]} of them after "
        f"{FAST_BATCHES[0]} to warm up, {SLOW_BATCHES[1]} after {SLOW_BATCHES[0]} in the engines "
        f"for which these take minutes. Parallelism {PARALLELISM}. Ratio: records/s divided by "
        f"those of {BASELINE}.",
        throughput_table(throughput),
    ]
    if epochs:
        parts += [
            "## An epoch of 1,000 records",
            f"From trigger to commit. Ratio: seconds divided by those of {BASELINE}; "
            "above 1 is slower.",
            epoch_table(epochs),
        ]
    return "\n\n".join(parts) + "\n"


def _checkpoints(results: Sequence[Result]) -> str:
    numbers = sorted({result.checkpoints for result in results})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _ratio(measured: dict[str, list[float]], name: str) -> str:
    baseline = measured.get(BASELINE)
    return f"{median(measured[name]) / median(baseline):.3g}" if baseline else "-"


def _versions(outcomes: Sequence[Outcome]) -> str:
    found = {pair for o in outcomes for r in o.results for pair in r.versions.items()}
    return ", ".join(f"{name} {version}" for name, version in sorted(found)) + "."
