"""Compares the output and the savepoints of the job with a plain replay of what was fed.

It shares no code with Turnback: output is read as JSON, savepoints as JSON and Parquet. Also a
program: `python -m soak.verify EVENTS LOG OUT [SAVEPOINT]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from soak.replay import Fed, of_account

_SHOWN = 5
SINKS = ("accounts", "regions")
Row = dict[str, Any]


class Problems:
    """What is wrong, by what it is about; only the first few of each are kept as text."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = defaultdict(list)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, about: str, text: str) -> None:
        """Add one."""
        self._counts[about] += 1
        if len(self._texts[about]) < _SHOWN:
            self._texts[about].append(text)

    def lines(self) -> list[str]:
        """Return one line about each kind of problem; none if nothing is wrong."""
        return [
            f"{count} {about}: {'; '.join(self._texts[about])}"
            for about, count in self._counts.items()
        ]


def verify_output(fed: Fed, out: Path) -> list[str]:
    """Return what is wrong with the committed files of a job that has read everything."""
    return verify_rows(fed, read_rows(out / "accounts"), read_rows(out / "regions"))


def verify_rows(fed: Fed, accounts: list[Row], regions: list[Row]) -> list[str]:
    """Return what is wrong with all rows of a job that has read everything."""
    problems = Problems()
    _verify_accounts(fed, accounts, problems)
    _verify_regions(fed, regions, problems)
    return problems.lines()


def verify_savepoint(fed: Fed, savepoint: str, *, complete: bool) -> list[str]:
    """Return what is wrong with a savepoint.

    The states of both operators and the position of the source must belong to one and the same
    cut: how many records of each account were read says everything else.

    Args:
        fed: What was fed.
        savepoint: Its directory.
        complete: Whether everything that was fed must be in it.
    """
    directory, problems = local_path(savepoint), Problems()
    metadata = json.loads((directory / "_metadata.json").read_text())["savepoint"]
    found = {
        (state["schema"]["uid"], state["schema"]["name"]): _table(directory, state)
        for state in metadata["states"]
    }
    counts = found.get(("accounts", "count"), {})
    for account, count in counts.items():
        if not 0 < count <= len(fed.records.get(account, ())):
            problems.add("accounts with more records than were fed", f"{account} {count}")
            return problems.lines()
    expected = fed.state(counts)
    for name in expected.keys() | found.keys():
        about = f"wrong values of {'/'.join(name)}"
        _compare(expected.get(name, {}), found.get(name, {}), about, problems)
    _compare(_read(fed, directory, metadata), counts, "counts against files read", problems)
    if complete:
        everything = {account: len(records) for account, records in fed.records.items()}
        _compare(everything, counts, "counts against records fed", problems)
    return problems.lines()


def read_rows(directory: Path) -> list[Row]:
    """Read what a reader of a sink's directory sees."""
    return [row for path in sorted(directory.glob("*.json")) for row in read_file(path)]


def read_file(path: Path) -> Iterator[Row]:
    """Read one committed file."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line:
            yield json.loads(line)


def local_path(uri: str) -> Path:
    """Turn a path or a file URI into a path."""
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)


# -- output


def _verify_accounts(fed: Fed, rows: list[Row], problems: Problems) -> None:
    expected = fed.account_rows()
    seen: set[tuple[str, int]] = set()
    for row in rows:
        key = (row["account"], row["count"])
        if key in seen:
            problems.add("duplicates in accounts", str(key))
        elif key not in expected:
            problems.add("rows in accounts that should not be there", str(row))
        elif expected[key] != row:
            problems.add("wrong rows in accounts", f"{row} instead of {expected[key]}")
        seen.add(key)
    for key in expected.keys() - seen:
        problems.add("missing in accounts", str(key))


def _verify_regions(fed: Fed, rows: list[Row], problems: Problems) -> None:
    # In which order the records of different accounts reach a region is nobody's promise. The
    # running number, the running total and the order within each account are.
    by_region: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_region[row["region"]].append(row)
    for region, of_region in by_region.items():
        of_region.sort(key=lambda row: int(row["count"]))
        total = 0
        for position, row in enumerate(of_region, 1):
            total += row["amount"]
            if row["count"] != position:
                what = "duplicates" if row["count"] < position else "gaps"
                problems.add(f"{what} in regions", f"{region}: {row['count']} at {position}")
                break
            if row["total"] != total:
                problems.add("wrong totals in regions", f"{row}, the rows say {total}")
                break
    _verify_members(fed, by_region, problems)


def _verify_members(fed: Fed, by_region: dict[str, list[Row]], problems: Problems) -> None:
    members: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    for region, of_region in by_region.items():
        for row in of_region:
            entry = (row["seq"], row["amount"], row["of_account"])
            members[region, row["account"]].append(entry)
    expected: dict[tuple[str, str], list[tuple[int, int, int]]] = defaultdict(list)
    for account, records in fed.records.items():
        for record in records:
            entries = expected[record.region, account]
            entries.append((record.seq, record.amount, of_account(len(entries))))
    _compare(expected, members, "accounts in regions with wrong rows", problems)


# -- savepoints


def _table(directory: Path, state: dict[str, Any]) -> dict[Any, Any]:
    rows = [
        row
        for file in state["files"]
        for row in pq.ParquetFile(directory / file["path"]).read().to_pylist()
    ]
    kind, values = state["schema"]["kind"], dict[Any, Any]()
    if len(rows) != state["rows"]:
        raise ValueError(f"{state['schema']}: {len(rows)} rows, {state['rows']} were announced")
    if kind == "list":
        for row in sorted(rows, key=lambda row: row["position"]):
            values.setdefault(_key(row), []).append(row["value"])
    elif kind == "map":
        for row in rows:
            entries = values.setdefault(_key(row), {})
            if row["map_key"] in entries:
                raise ValueError(f"{state['schema']}: {row} is there twice")
            entries[row["map_key"]] = row["value"]
    else:
        values = {_key(row): row["value"] for row in rows}
        if len(values) != len(rows):
            raise ValueError(f"{state['schema']}: a key is there twice")
    return values


def _key(row: Row) -> Any:
    key = row["key"]
    if isinstance(key, dict):
        (key,) = key.values()
    return key


def _read(fed: Fed, directory: Path, metadata: dict[str, Any]) -> dict[str, int]:
    """Count the records in the files that the source says it has read."""
    counts: dict[str, int] = defaultdict(int)
    for part in metadata["sources"]["records"]["log"]:
        for line in (directory / part["path"]).read_text().splitlines():
            name = unquote(urlsplit(json.loads(line)["path"]).path).rpartition("/")[2]
            for account, count in fed.files[name].items():
                counts[account] += count
    return dict(counts)


def _compare(
    expected: dict[Any, Any], found: dict[Any, Any], about: str, problems: Problems
) -> None:
    for key in expected.keys() | found.keys():
        if expected.get(key) != found.get(key):
            problems.add(about, f"{key}: {found.get(key)} instead of {expected.get(key)}")


def main() -> int:
    """Print what is wrong; the exit status is 0 if nothing is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("events", type=Path)
    parser.add_argument("log", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("savepoint", nargs="?")
    args = parser.parse_args()
    fed = Fed.read(args.events, args.log)
    problems = verify_output(fed, args.out)
    if args.savepoint:
        problems += verify_savepoint(fed, args.savepoint, complete=True)
    print("\n".join(problems) or f"{fed.total} records, all right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
