"""Whether a lag grows, and when it is gone."""

from __future__ import annotations

import pytest

from turnback.driver.source_monitor import LagTrend, catch_up_s


def test_a_trend_needs_some_time():
    trend = LagTrend()
    assert [trend.add(at, 100 - at) for at in (0, 5, 9)] == [None, None, None]
    assert trend.add(10, 90) == pytest.approx(-1)


def test_a_trend_forgets():
    trend = LagTrend()
    for at in range(0, 60, 5):
        trend.add(at, 1_000 + 10 * at)
    changes = [trend.add(at, 1_600 - 20 * (at - 60)) for at in range(60, 125, 5)]
    assert changes[0] == pytest.approx(10)
    assert changes[-1] == pytest.approx(-20)


def test_a_trend_sees_through_the_steps_of_epochs():
    trend = LagTrend()  # 50 records a second come, and an epoch takes 1,000 every ten seconds
    change = None
    for at in range(61):
        change = trend.add(at, 10_000 + 50 * at - 1_000 * (at // 10))
    assert change == pytest.approx(-50, rel=0.2)


def test_a_gap_begins_the_trend_anew():
    trend = LagTrend()
    assert [trend.add(0, 10), trend.add(20, None), trend.add(21, 10)] == [None, None, None]


@pytest.mark.parametrize(
    ("records", "change", "seconds"),
    [
        (0, None, 0.0),
        (0, 5.0, 0.0),
        (100, -5.0, 20.0),
        (100, 0.0, None),
        (100, 5.0, None),
        (100, None, None),
        (None, None, None),
        (10**9, -0.001, None),
    ],
)
def test_when_a_lag_is_gone(records, change, seconds):
    assert catch_up_s(records, change) == seconds
