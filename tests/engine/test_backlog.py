"""A backlog is worked off in the memory that one epoch takes, however large it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("backlog.py")
RECORDS, SIZE, PER_FILE = 600, 20_000, 50
LIMIT = 2 * PER_FILE * (SIZE + 30)
"""Bytes of two files."""


def work_off(place: Path, records: int, limit: int) -> tuple[int, int]:
    """The most memory in kB, and the number of epochs."""
    files = place / "in"
    files.mkdir(parents=True)
    for first in range(0, records, PER_FILE):
        lines = (
            json.dumps({"n": n % 50, "text": f"{n:0{SIZE}}"})
            for n in range(first, first + PER_FILE)
        )
        (files / f"{first:08}.json").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, PROGRAM, place, files, str(records), str(limit)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    peak, epochs = map(int, done.stdout.split())
    return peak, epochs


@pytest.fixture
def small(tmp_path):
    return work_off(tmp_path / "small", RECORDS, LIMIT)


@pytest.mark.exhaustive
def test_ten_times_the_backlog_needs_no_more_memory(tmp_path, small):
    large, epochs = work_off(tmp_path / "large", 10 * RECORDS, LIMIT)
    assert epochs >= 60 > small[1] >= 6
    assert large < small[0] + 20_000, (small, large)


def test_it_is_the_limit_that_does_it(tmp_path, small):
    large, epochs = work_off(tmp_path / "large", 10 * RECORDS, 0)
    assert epochs < 6
    assert large > small[0] + 40_000, (small, large)
