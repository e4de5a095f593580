from __future__ import annotations

import pytest

from turnback.snapshot.metadata import StatePart
from turnback.snapshot.snapshot import READS, spans, spans_of


def part(rows=10, length=10, groups=(0, 127)):
    return StatePart("p", length, "xxh3:0", rows, *groups)


@pytest.mark.parametrize(("groups", "pieces"), [(128, 1), (128, 7), (4, 9), (1, 1), (128, 0)])
def test_spans_cover_all_groups_once(groups, pieces):
    found = spans(groups, pieces)
    assert [g for first, last in found for g in range(first, last + 1)] == list(range(groups))
    assert len(found) == max(1, min(groups, pieces))


def test_much_state_is_cut_by_rows_or_by_bytes():
    assert len(spans_of(128, [part(rows=95)], rows=10, size=1000)) == 10
    assert len(spans_of(128, [part(length=4001)], rows=10, size=1000)) == 5
    assert spans_of(128, [], rows=10, size=1000) == [(0, 127)]


def test_no_file_is_read_by_more_than_a_few_tasks():
    whole = [part(rows=10**9)]
    assert len(spans_of(128, whole, rows=10, size=10)) == READS
    halves = [part(rows=10**9, groups=(0, 63)), part(rows=10**9, groups=(64, 127))]
    assert len(spans_of(128, halves, rows=10, size=10)) == 2 * READS
