"""What the job must write and hold, worked out from the fed records in plain Python.

It shares no code with Turnback or with the job.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_RECENT, _FORGET = 7, 3


@dataclass(frozen=True)
class Record:
    """One fed record."""

    account: str
    seq: int
    region: str
    amount: int


@dataclass
class Fed:
    """All fed records.

    Attributes:
        records: By account, in the order in which they were fed.
        files: Number of records of each account in each file.
    """

    records: dict[str, list[Record]] = field(default_factory=dict)
    files: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of records."""
        return sum(map(len, self.records.values()))

    @classmethod
    def read(cls, directory: Path, log: Path) -> Fed:
        """Read the files that the feeder has logged.

        Raises:
            ValueError: A file is not what the feeder has written.
        """
        fed = cls()
        for line in log.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            text = (directory / entry["file"]).read_text(encoding="utf-8")
            records = [Record(**json.loads(row)) for row in text.splitlines()]
            if (len(records), sum(r.amount for r in records)) != (entry["records"], entry["sum"]):
                raise ValueError(f"{entry['file']} is not what was fed")
            fed.add(entry["file"], records)
        return fed

    def add(self, file: str, records: Iterable[Record]) -> None:
        """Add the records of one file."""
        counts = self.files.setdefault(file, {})
        for record in records:
            of_account = self.records.setdefault(record.account, [])
            of_account.append(record)
            if record.seq != len(of_account):
                raise ValueError(f"{file}: {record} is number {len(of_account)} of its account")
            counts[record.account] = counts.get(record.account, 0) + 1

    def account_rows(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the rows of the first sink, by account and running number."""
        rows = {}
        for account, records in self.records.items():
            total = 0
            for count, record in enumerate(records, 1):
                total += record.amount
                recent = records[(count - 1) // _RECENT * _RECENT : count]
                rows[account, count] = {
                    "account": account,
                    "seq": record.seq,
                    "count": count,
                    "total": total,
                    "recent": sum(r.amount for r in recent),
                    "region": record.region,
                    "amount": record.amount,
                }
        return rows

    def state(self, counts: dict[str, int]) -> dict[tuple[str, str], dict[Any, Any]]:
        """Return what each state holds after so many records of each account.

        Returns:
            By uid of the operator and name of the state: value, list or map by key.
        """
        read = {a: self.records[a][:n] for a, n in counts.items() if n}
        regions: dict[str, list[Record]] = {}
        for records in read.values():
            for record in records:
                regions.setdefault(record.region, []).append(record)
        return {
            ("accounts", "count"): {a: len(records) for a, records in read.items()},
            ("accounts", "total"): {a: _sum(records) for a, records in read.items()},
            ("accounts", "recent"): {
                a: [r.amount for r in records[(len(records) - 1) // _RECENT * _RECENT :]]
                for a, records in read.items()
            },
            ("regions", "count"): {r: len(records) for r, records in regions.items()},
            ("regions", "total"): {r: _sum(records) for r, records in regions.items()},
            ("regions", "accounts"): {
                r: held for r, records in regions.items() if (held := _remembered(records))
            },
        }


def of_account(position: int) -> int:
    """Return what a region counts for an account's record at this position, from 0."""
    return position % _FORGET + 1


def _sum(records: Iterable[Record]) -> int:
    return sum(r.amount for r in records)


def _remembered(records: Iterable[Record]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in records:
        counts[record.account] = counts.get(record.account, 0) + 1
    return {account: left for account, n in counts.items() if (left := n % _FORGET)}
