"""A minute of what `make soak` does for half an hour."""

from __future__ import annotations

import os

import pytest

from soak.__main__ import soak

pytestmark = pytest.mark.exhaustive


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_doubled_whatever_is_killed() -> None:
    seed = os.environ.get("SEED")
    summary = soak(minutes=1, seed=int(seed) if seed else None)
    assert summary.violations == []
    assert summary.kills.total() >= 2  # about five, but machines may be busy
    assert summary.records_fed > 0
