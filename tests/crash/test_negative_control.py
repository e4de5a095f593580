"""The verifier must be able to fail: a deliberately broken order of commits, and doctored rows."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crash.conftest import MakePlace
from crash.verify import Truth, examine

Rows = list[dict[str, object]]


@pytest.mark.timeout(900)
def test_committing_before_the_manifest_makes_duplicates(place: MakePlace) -> None:
    job = place(6)
    broken = {"TURNBACK_FAULT_COMMIT_FIRST": "1"}
    driver = job.start(ahead=True, **broken)
    killed = job.start(**broken, TURNBACK_KILL_AT="before-manifest:3")
    assert killed.wait() == -signal.SIGKILL, killed.errors
    # By its records of what it has published the sink would notice, and refuse to start.
    records = [path for path in job.base.rglob("published-*") if path.is_file()]
    assert records
    for record in records:
        record.unlink()
    driver.go()
    assert driver.wait() == 0, driver.errors
    found = job.examine()
    assert any(row.startswith("sequence (") for row in found.duplicates), found
    assert any(row.startswith("tally (") for row in found.duplicates), found
    # State was rolled back all the same: rows are repeated, none is wrong or missing.
    assert found.missing == []
    assert found.unexpected == []


def nothing(rows: Rows) -> Rows:
    return rows


def lost_at_the_end(rows: Rows) -> Rows:
    return rows[:-1]


def lost_inside(rows: Rows) -> Rows:
    return rows[1:]


def twice(rows: Rows) -> Rows:
    return [*rows, rows[3]]


def stale_state(rows: Rows) -> Rows:
    return [{**row, "previous": -1} for row in rows]


@pytest.mark.parametrize("sink", ["sequence", "tally"])
@pytest.mark.parametrize(
    ("doctor", "whole", "partial"),
    [
        (nothing, [], []),
        (lost_at_the_end, ["missing"], []),
        (lost_inside, ["missing", "gaps"], ["gaps"]),
        (twice, ["duplicates"], ["duplicates"]),
        (stale_state, ["unexpected", "missing"], ["unexpected"]),
    ],
)
def test_the_verifier_notices(
    tmp_path: Path,
    sink: str,
    doctor: Callable[[Rows], Rows],
    whole: list[str],
    partial: list[str],
) -> None:
    elements = [{"key": "a", "seq": n, "team": "t"} for n in range(5)]
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "1.json").write_text("\n".join(map(json.dumps, elements)))
    rows: dict[str, Rows] = {
        "sequence": [{**e, "previous": n - 1, "count": n + 1} for n, e in enumerate(elements)],
        "tally": [{**e, "previous": n - 1, "n": n + 1} for n, e in enumerate(elements)],
    }
    rows[sink] = doctor(rows[sink])
    write(tmp_path / "output", rows)
    truth = Truth(tmp_path / "input")
    for is_partial, expected in ((False, whole), (True, partial)):
        found = examine(truth, tmp_path / "output", partial=is_partial)
        kinds = {"duplicates", "unexpected", "missing", "gaps"}
        assert {kind for kind in kinds if getattr(found, kind)} == set(expected)
        assert bool(found) == bool(expected)


def write(output: Path, rows: dict[str, Rows]) -> None:
    for sink in rows:
        hidden = output / sink / ".turnback"
        hidden.mkdir(parents=True)
        (hidden / "part-1.json.inprogress").write_text("not to be read")
    pq.write_table(pa.Table.from_pylist(rows["sequence"]), output / "sequence" / "part-1.parquet")
    lines = map(json.dumps, rows["tally"])
    (output / "tally" / "part-1.json").write_text("\n".join(lines))
