import pytest

from turnback.config.checkpointing import (
    CheckpointingMode,
    CheckpointSettings,
    CheckpointStorage,
    ExternalizedCheckpointRetention,
)
from turnback.config.option import spellings
from turnback.errors import ConfigurationError


def test_the_defaults_are_flinks() -> None:
    settings = CheckpointSettings()
    assert not settings.enabled
    assert settings.commits_every_epoch
    assert settings.mode is CheckpointingMode.EXACTLY_ONCE
    assert settings.timeout_ms == 10 * 60 * 1000
    assert settings.min_pause_ms == 0
    assert settings.max_concurrent == 1
    assert settings.tolerable_failures == 0
    assert settings.num_retained == 1
    assert not CheckpointSettings(interval_ms=1_000).commits_every_epoch


def test_a_pause_means_one_at_a_time() -> None:
    assert CheckpointSettings(interval_ms=100, max_concurrent=5).max_concurrent == 5
    assert CheckpointSettings(interval_ms=100, max_concurrent=5, min_pause_ms=1).max_concurrent == 1


@pytest.mark.parametrize(
    "options",
    [
        {"interval_ms": 0},
        {"interval_ms": -1},
        {"interval_ms": 9},
        {"interval_ms": 1.5},
        {"interval_ms": True},
        {"timeout_ms": 0},
        {"min_pause_ms": -1},
        {"max_concurrent": 0},
        {"tolerable_failures": -1},
        {"num_retained": 0},
    ],
)
def test_what_cannot_work_is_refused_by_its_key(options: dict) -> None:
    with pytest.raises(ConfigurationError, match=r"execution\.checkpointing\.[a-z-]+( is |: )"):
        CheckpointSettings(**options)


def test_every_key_is_read() -> None:
    settings = CheckpointSettings.from_configuration(
        {
            "execution.checkpointing.interval": "10 s",
            "execution.checkpointing.mode": "AT_LEAST_ONCE",
            "execution.checkpointing.timeout": "2 min",
            "execution.checkpointing.min-pause": 0,
            "execution.checkpointing.max-concurrent-checkpoints": "3",
            "execution.checkpointing.tolerable-failed-checkpoints": 4,
            "state.checkpoints.num-retained": 5,
            "execution.checkpointing.num-retained": "5",
            "execution.checkpointing.externalized-checkpoint-retention": "DELETE_ON_CANCELLATION",
            "execution.checkpointing.incremental": "true",
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": "/x",
            "some.other.key": "ignored",
        }
    )
    assert settings == CheckpointSettings(
        interval_ms=10_000,
        mode=CheckpointingMode.AT_LEAST_ONCE,
        timeout_ms=120_000,
        max_concurrent=3,
        tolerable_failures=4,
        num_retained=5,
        retention=ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION,
        storage=CheckpointStorage.FILESYSTEM,
        directory="/x",
    )
    assert len(spellings(CheckpointSettings.options())) == 15


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execution.checkpointing.interval", "soon"),
        ("execution.checkpointing.mode", "twice"),
        ("execution.checkpointing.incremental", "maybe"),
        ("state.checkpoints.num-retained", "many"),
        ("execution.checkpointing.storage", "tape"),
    ],
)
def test_a_bad_value_is_named_with_its_key(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}.*{value}"):
        CheckpointSettings.from_configuration({key: value})


def test_two_spellings_that_disagree_are_an_error() -> None:
    both = {"state.checkpoints.num-retained": 1, "execution.checkpointing.num-retained": 2}
    with pytest.raises(ConfigurationError, match="different values"):
        CheckpointSettings.from_configuration(both)
