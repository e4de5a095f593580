"""An independent reader of the crash job's output. It shares no code with Turnback.

It knows the input, works out in plain Python what a run without faults writes, and compares that
with the rows of all committed files. Also a program: `verify.py INPUT OUTPUT [--partial]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

SINKS = ("sequence", "tally")
_SHOWN = 5


@dataclass
class Findings:
    """What is wrong with an output; all lists are empty when nothing is.

    Attributes:
        duplicates: Rows that are there more than once.
        unexpected: Rows that a run without faults does not write.
        missing: Rows that are not there.
        gaps: Breaks in a sequence.
        rows: Number of rows by sink.
    """

    duplicates: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.duplicates or self.unexpected or self.missing or self.gaps)

    def __str__(self) -> str:
        kinds = ("duplicates", "unexpected", "missing", "gaps")
        told = {k: getattr(self, k) for k in kinds}
        lines = [f"{len(v)} {k}: {'; '.join(v[:_SHOWN])}" for k, v in told.items() if v]
        return "\n".join([*lines, f"rows: {self.rows}"])


class Truth:
    """What a run without faults writes for an input."""

    def __init__(self, directory: Path) -> None:
        elements = [json.loads(line) for f in sorted(directory.iterdir()) for line in _lines(f)]
        self.elements = [(e["key"], e["seq"], e["team"]) for e in elements]
        previous: dict[str, int] = {}
        counts: Counter[str] = Counter()
        self.sequence: Counter[tuple[object, ...]] = Counter()
        self.tally: Counter[tuple[object, ...]] = Counter()
        for key, seq, team in self.elements:
            counts[key] += 1
            before = previous.get(key, -1)
            previous[key] = seq
            self.sequence[key, seq, before, counts[key], team] += 1
            self.tally[team, key, seq, before] += 1
        self.teams = Counter(team for _, _, team in self.elements)


def examine(truth: Truth, output: Path, *, partial: bool = False) -> Findings:
    """Compare the committed rows with the truth.

    Args:
        truth: Of the input.
        output: Where the sinks' directories are.
        partial: Rows may still be missing at the end of each sequence, nowhere else.
    """
    found = Findings()
    _examine_sequence(truth, list(_parquet(output / "sequence")), found, partial)
    _examine_tally(truth, list(_json(output / "tally")), found, partial)
    return found


def _examine_sequence(
    truth: Truth, rows: list[dict[str, object]], found: Findings, partial: bool
) -> None:
    columns = ("key", "seq", "previous", "count", "team")
    seen = Counter(tuple(row[c] for c in columns) for row in rows)
    found.rows["sequence"] = seen.total()
    _compare("sequence", truth.sequence, seen, found, partial)
    _check_runs("sequence", _by_key((r["key"], r["seq"]) for r in rows), 0, found)


def _examine_tally(
    truth: Truth, rows: list[dict[str, object]], found: Findings, partial: bool
) -> None:
    # In which order the members of a team come is nobody's promise: the running number is
    # checked by itself.
    columns = ("team", "key", "seq", "previous")
    seen = Counter(tuple(row[c] for c in columns) for row in rows)
    found.rows["tally"] = seen.total()
    _compare("tally", truth.tally, seen, found, partial)
    _check_runs("tally", _by_key((r["key"], r["seq"]) for r in rows), 0, found)
    _check_runs("tally of team", _by_key((r["team"], r["n"]) for r in rows), 1, found)


def _compare(
    sink: str,
    wanted: Counter[tuple[object, ...]],
    seen: Counter[tuple[object, ...]],
    found: Findings,
    partial: bool,
) -> None:
    for row, times in seen.items():
        if row not in wanted:
            found.unexpected.append(f"{sink} {row}")
        elif times > wanted[row]:
            found.duplicates.append(f"{sink} {row} x{times}")
    if not partial:
        found.missing += [f"{sink} {row}" for row in (wanted - seen)]


def _check_runs(what: str, numbers: dict[object, list[int]], start: int, found: Findings) -> None:
    for key, run in numbers.items():
        run.sort()
        for at, number in enumerate(run, start):
            if number != at:
                kind = found.duplicates if number < at else found.gaps
                kind.append(f"{what} {key}: {number} instead of {at}")
                break


def _by_key(pairs: Iterable[tuple[object, object]]) -> dict[object, list[int]]:
    runs: dict[object, list[int]] = defaultdict(list)
    for key, number in pairs:
        assert isinstance(number, int)
        runs[key].append(number)
    return runs


def _parquet(directory: Path) -> Iterator[dict[str, object]]:
    for path in sorted(directory.rglob("*.parquet")):
        yield from pq.ParquetFile(path).read().to_pylist()


def _json(directory: Path) -> Iterator[dict[str, object]]:
    for path in sorted(directory.rglob("*.json")):
        for line in _lines(path):
            yield json.loads(line)


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().split("\n") if line]


def main() -> int:
    """Say what is wrong; the exit status is 0 if nothing is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--partial", action="store_true")
    args = parser.parse_args()
    found = examine(Truth(args.input), args.output, partial=args.partial)
    print(found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
