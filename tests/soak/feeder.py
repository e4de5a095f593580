"""A program that drops files of records into a directory, until a file tells it to end.

Accounts are divided into groups, and file n holds accounts of group n % GROUPS only. So any GROUPS
files in a row have no account in common, and the order of an account's records is certain however
many of these files one epoch reads, and in whatever order.

Each file is written hidden, logged (name, number of records, sum of amounts) and renamed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

GROUPS = 16
_ACCOUNTS_PER_GROUP = 6
_REGIONS = ("east", "far north", "north", "south", "west", "\u00fcbersee")


class Feeder:
    """Makes records, the same for the same seed.

    Args:
        directory: Where files go.
        log: Gets one line per file.
        seed: Of everything that is random in the records.
        rows: Records in a file, on average.
    """

    def __init__(self, directory: Path, log: Path, seed: int, rows: int = 25) -> None:
        self._directory = directory
        self._log = log
        self._choose = random.Random(f"feeder {seed}")
        self._rows = rows
        self._numbers: dict[str, int] = {}
        self._files = 0

    def feed(self) -> int:
        """Add one file; returns the number of its records."""
        group = self._files % GROUPS
        rows = [self._record(group) for _ in range(self._choose.randint(1, 2 * self._rows - 1))]
        name = f"{self._files:06d}.json"
        hidden = self._directory / f".{name}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        line = {"file": name, "records": len(rows), "sum": sum(row["amount"] for row in rows)}
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        hidden.rename(self._directory / name)
        self._files += 1
        return len(rows)

    def _record(self, group: int) -> dict[str, object]:
        account = f"account-{group}-{self._choose.randrange(_ACCOUNTS_PER_GROUP)}"
        seq = self._numbers[account] = self._numbers.get(account, 0) + 1
        amount = self._choose.randint(-500, 1000)
        return {
            "account": account,
            "seq": seq,
            "region": self._choose.choice(_REGIONS),
            "amount": amount,
        }


def main() -> None:
    """Feed until the stop file is there or the parent process is gone."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("stop", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--interval", type=float, default=0.5)
    args = parser.parse_args()
    feeder, parent = Feeder(args.directory, args.log, args.seed), os.getppid()
    while not args.stop.exists() and os.getppid() == parent:
        feeder.feed()
        time.sleep(args.interval)


if __name__ == "__main__":
    main()
