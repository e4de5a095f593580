"""When a job counts as stalled and who is told, as people configure it."""

from __future__ import annotations

import pytest

from turnback.config.configuration import Configuration
from turnback.config.watchdog import AlertSettings, WatchdogSettings
from turnback.errors import ConfigurationError


def load(**pairs: str) -> Configuration:
    keys = {key.replace("__", ".").replace("_", "-"): value for key, value in pairs.items()}
    return Configuration.load(keys, environ={}, directory="/nowhere")


def test_the_defaults() -> None:
    assert WatchdogSettings() == WatchdogSettings(60_000, 900_000, 900_000, 1_800_000)
    assert not AlertSettings().enabled
    assert AlertSettings().to_configuration() == {}


def test_limits_can_be_set_and_switched_off() -> None:
    configuration = load(watchdog__no_epoch="90 s", watchdog__growing_lag="Off")
    settings = WatchdogSettings.from_configuration(configuration.raw)
    assert (settings.no_epoch_ms, settings.growing_lag_ms) == (90_000, None)
    assert configuration.raw["watchdog.growing-lag"] == "off"
    assert configuration.value("watchdog.growing-lag") is None
    assert settings.no_checkpoint_ms == 900_000


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("watchdog.no-epoch", "-5 s", r"watchdog\.no-epoch: '-5 s' is not a duration"),
        ("watchdog.no-epoch", -5, "is negative"),
        ("watchdog.no-epoch", "soon", "is not a duration"),
        ("watchdog.no-epoch", "10 ms", "must be at least 1000 ms; `off` disables it"),
        ("watchdog.no-heartbeat", "2 s", "must be at least 3000 ms"),
        ("watchdog.no-epoc", "1 s", "did you mean 'watchdog.no-epoch'"),
        ("alerts.command", " ", r"alerts\.command is empty"),
        ("alerts.command", "page 'me", r"alerts\.command cannot be split into words: No closing"),
        ("alerts.webhook", "hooks.example.com/s3cr3t", "must begin with http"),
        ("alerts.webhook", "ftp://example.com/s3cr3t", "must begin with http"),
        ("alerts.webhook", "https://", "must begin with http"),
        ("alerts.webhook", "https://x:99999/s3cr3t", "must begin with http"),
        ("alerts.webhook", "https://x/s3cr3t and more", "must begin with http"),
    ],
)
def test_mistakes(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        Configuration.load({key: value}, environ={}, directory="/nowhere")
    assert "s3cr3t" not in str(caught.value)


def test_the_address_of_a_webhook_is_a_secret() -> None:
    address = "https://hooks.example.com/services/s3cr3t"
    configuration = load(alerts__webhook=address)
    settings = AlertSettings.from_configuration(configuration.raw)
    assert settings.to_configuration() == {"alerts.webhook": address}
    (entry,) = (e for e in configuration.entries() if e.key == "alerts.webhook")
    assert entry.value_text == "****"
    assert "s3cr3t" not in repr(configuration)
