import pickle

import pytest

from turnback.config.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategies,
    choose_restart,
)
from turnback.errors import ConfigurationError


def test_none_gives_up_at_once() -> None:
    assert RestartStrategies.no_restart().create()(0) is None


def test_fixed_delay_counts_restarts() -> None:
    strategy = RestartStrategies.fixed_delay_restart(3, "10 s").create()
    assert [strategy(n * 10**9) for n in range(5)] == [10_000] * 3 + [None] * 2


def test_fixed_delay_without_limit() -> None:
    strategy = FixedDelayRestart(None, 5).create()
    assert {strategy(0) for _ in range(1_000)} == {5}


def test_two_jobs_do_not_share_their_failures() -> None:
    configuration = RestartStrategies.fixed_delay_restart(1, 0)
    first, second = configuration.create(), configuration.create()
    assert first(0) == 0
    assert first(0) is None
    assert second(0) == 0


def test_failure_rate_looks_at_one_interval() -> None:
    strategy = RestartStrategies.failure_rate_restart(2, "1 min", "1 s").create()
    assert strategy(0) == 1_000
    assert strategy(30_000) == 1_000
    assert strategy(60_001) == 1_000
    assert strategy(90_000) is None


def test_exponential_delay_grows_and_starts_again_after_a_good_time() -> None:
    configuration = RestartStrategies.exponential_delay_restart("1 s", "5 s", 2.0, "1 min", 0.0)
    strategy = configuration.create()
    now, delays = 0, []
    for _ in range(5):
        delays.append(strategy(now))
        now += delays[-1] + 10
    assert delays == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert strategy(now + 60_000) == 1_000


def test_jitter_stays_within_its_bounds() -> None:
    configuration = ExponentialDelayRestart(1_000, 10_000, 2.0, 60_000, 0.1)
    assert configuration.create(jitter=lambda: 0.0)(0) == 900
    assert configuration.create(jitter=lambda: 1.0)(0) == 1_100
    capped = ExponentialDelayRestart(1_000, 1_000, 2.0, 60_000, 0.5)
    assert capped.create(jitter=lambda: 1.0)(0) == 1_000


def test_configuration_wins_over_the_default() -> None:
    configured = {"restart-strategy.type": "failure-rate"}
    assert choose_restart(configured, checkpointing=False) == FailureRateRestart()
    fall_back = RestartStrategies.fall_back_restart()
    assert fall_back.to_configuration() == {}
    assert choose_restart({}, checkpointing=False) == NoRestart()
    assert choose_restart({}, checkpointing=True) == FixedDelayRestart(None, 1_000)
    with pytest.raises(ConfigurationError):
        fall_back.create()


def test_configuration_keys() -> None:
    def chosen(**keys: object) -> object:
        options = {f"restart-strategy.{key}": value for key, value in keys.items()}
        return choose_restart(options, checkpointing=True)

    assert chosen(type="none") == NoRestart()
    assert chosen(type="disable") == NoRestart()
    assert choose_restart({"restart-strategy": "off"}, checkpointing=True) == NoRestart()
    assert chosen(
        **{
            "type": "fixed-delay",
            "fixed-delay.attempts": "7",
            "fixed-delay.delay": "3 s",
        }
    ) == FixedDelayRestart(7, 3_000)
    assert chosen(
        **{
            "type": "failurerate",
            "failure-rate.max-failures-per-interval": 4,
            "failure-rate.failure-rate-interval": "5 min",
            "failure-rate.delay": "2 s",
        }
    ) == FailureRateRestart(4, 300_000, 2_000)
    assert chosen(
        **{
            "type": "exponential-delay",
            "exponential-delay.initial-backoff": "10 s",
            "exponential-delay.max-backoff": "2 min",
            "exponential-delay.backoff-multiplier": "1.4",
            "exponential-delay.reset-backoff-threshold": "10 min",
            "exponential-delay.jitter-factor": "0.2",
        }
    ) == ExponentialDelayRestart(10_000, 120_000, 1.4, 600_000, 0.2)


@pytest.mark.parametrize(
    "options",
    [
        {"restart-strategy.type": "sometimes"},
        {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "x"},
        {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": -1},
        {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "x"},
        {
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.backoff-multiplier": 0.5,
        },
        {
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.jitter-factor": 2,
        },
    ],
)
def test_bad_configuration_is_refused(options: dict) -> None:
    with pytest.raises(ConfigurationError, match="restart-strategy"):
        choose_restart(options, checkpointing=True)


def test_configurations_are_values() -> None:
    one = RestartStrategies.exponential_delay_restart(1, 2, 3.0, 4, 0.5)
    assert pickle.loads(pickle.dumps(one)) == one
    assert len({one, RestartStrategies.exponential_delay_restart(1, 2, 3.0, 4, 0.5)}) == 1
