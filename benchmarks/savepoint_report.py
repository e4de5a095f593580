"""The savepoints section of RESULTS.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.machine import Machine
from benchmarks.saved import EMPTY, Saved
from benchmarks.savepoint_dataset import Shape
from benchmarks.table import table

HEAD = (
    "keys", "engine", "savepoint", "taken in", "per million keys", "size", "start from it",
    "records/s before", "during", "ratio",
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """What one engine did with a state of one size.

    Attributes:
        starts: Seconds that a start takes, by format, and from nothing.
        failure: Why there are no figures.
    """

    keys: int
    engine: str
    saved: tuple[Saved, ...] = ()
    starts: dict[str, float] | None = None
    versions: dict[str, str] | None = None
    failure: str | None = None


def section(command: str, machine: Machine, shape: Shape, measured: Sequence[Measured]) -> str:
    """Text and table."""
    versions = {pair for m in measured for pair in (m.versions or {}).items()}
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions))
    return "\n\n".join(
        [
            "## Savepoints",
            f"Written by `{command}`; [README.md](README.md) says how it is measured. "
            f"{machine.describe()} {named}.",
            f"A long for every string key, RocksDB, parallelism 2, 128 key groups. The stream goes "
            f"on meanwhile, records over all keys, Turnback's in batches of "
            f"{shape.batch_records:,}. Ratio: records/s during the savepoint divided by those "
            "before. Starts are from a new process to the first output that a checkpoint covers, "
            "and were checked against the expected counts.",
            table(HEAD, [row for m in measured for row in _rows(m)]),
        ]
    )


def _rows(measured: Measured) -> Iterable[tuple[str, ...]]:
    name = (f"{measured.keys:,}", measured.engine)
    if measured.failure is not None or measured.starts is None:
        yield (*name, f"failed: {measured.failure}", *[""] * (len(HEAD) - 3))
        return
    for saved in measured.saved:
        yield (
            *name,
            saved.format,
            f"{saved.seconds:.1f} s",
            f"{saved.seconds / measured.keys * 1e6:.1f} s",
            f"{saved.bytes / 1e6:,.1f} MB",
            f"{measured.starts[saved.format]:.1f} s",
            f"{saved.rate_before:,.0f}",
            f"{saved.rate_during:,.0f}",
            f"{saved.ratio:.2f}",
        )
    yield (*name, "none, empty state", "", "", "", f"{measured.starts[EMPTY]:.1f} s", "", "", "")
