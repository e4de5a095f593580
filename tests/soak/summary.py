"""What a soak found, as JSON and as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Summary:
    """What was done and what came of it.

    Attributes:
        seed: From which everything random follows.
        minutes: How long processes were killed.
        kills: SIGKILLs by kind of process.
        steps: Steps by kind.
        skipped: Kills for which there was no process at that moment, by kind of process.
        started_by_hand: How often nobody was left to start the job again, so `turnback run` did.
        slowest_s: Longest time from a kill to the second epoch committed after it.
        attempts: Attempts of the job, the first included.
        checkpoints: Number of the last checkpoint; every attempt takes one number for its fence.
        epochs: Epochs that were committed with output.
        files_fed: Input files.
        records_fed: Records in them.
        savepoints: Savepoints that were taken, the last one included.
        violations: What should not have happened.
    """

    seed: int
    minutes: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    started_by_hand: int = 0
    slowest_s: float = 0.0
    attempts: int = 0
    checkpoints: int = 0
    epochs: int = 0
    files_fed: int = 0
    records_fed: int = 0
    savepoints: int = 0
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return it for programs."""
        return json.dumps({**vars(self), "all_kills": self.kills.total()}, indent=2)

    def to_markdown(self) -> str:
        """Return it for people."""
        rows = {
            "seed": self.seed,
            "minutes of kills": f"{self.minutes:.1f}",
            "kills": f"{self.kills.total()} ({_counts(self.kills)})",
            "steps": f"{self.steps.total()} ({_counts(self.steps)})",
            "kills without a victim": self.skipped.total(),
            "started again by hand": self.started_by_hand,
            "longest time to two more epochs": f"{self.slowest_s:.1f} s",
            "attempts": self.attempts,
            "last checkpoint": self.checkpoints,
            "epochs with output": self.epochs,
            "records fed": f"{self.records_fed} in {self.files_fed} files",
            "savepoints taken and verified": self.savepoints,
            "violations": len(self.violations),
        }
        table = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
        return "\n".join([*table, "", *(f"- {text}" for text in self.violations)]).rstrip() + "\n"


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))
