"""What an engine reports about one run, as the one JSON line it prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median


class WrongAnswerError(Exception):
    """The run finished but its output is not that of the workload: its speed means nothing."""


@dataclass(frozen=True)
class Result:
    """The counted part of one run.

    Attributes:
        records: Counted records, warm-up left out.
        seconds: Duration of each counted batch; an engine without batches gives the total alone.
        checkpoints: Checkpoints completed in the whole run.
        versions: Engine and runtime versions worth printing.
    """

    engine: str
    records: int
    seconds: tuple[float, ...]
    checkpoints: int
    versions: dict[str, str]

    @property
    def records_per_second(self) -> float:
        return self.records / sum(self.seconds)

    @property
    def median_seconds(self) -> float:
        return median(self.seconds)

    def summary(self) -> str:
        return f"{self.records_per_second:,.0f} records/s, {self.median_seconds:.3f} s a batch"

    def print(self) -> None:
        print(json.dumps(asdict(self)), flush=True)

    @staticmethod
    def parse(line: str) -> Result:
        fields = json.loads(line)
        return Result(**{**fields, "seconds": tuple(fields["seconds"])})


def check(what: str, actual: object, expected: object) -> None:
    """Raise unless the engine's `what` is the workload's."""
    if actual != expected:
        raise WrongAnswerError(f"{what}: {actual}, expected {expected}")


def check_counts(found: Mapping[str, int], expected: Mapping[str, int]) -> None:
    """Raise unless every key has its count; what is emitted for a probe, for example."""
    check("keys", len(found), len(expected))
    for key, n in found.items():
        check(f"count of {key}", n, expected.get(key))
