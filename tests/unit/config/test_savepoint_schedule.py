from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from turnback.config.checkpointing import (
    SavepointFormat,
    SavepointSettings,
)
from turnback.config.option import spellings
from turnback.errors import ConfigurationError
from turnback.job.catalog import SavepointEntry, surplus

HOUR = 3_600_000
BERLIN = ZoneInfo("Europe/Berlin")


def scheduled(**options) -> SavepointSettings:
    return SavepointSettings(directory="/sp", **options)


def ms(*when: int, zone=UTC, fold: int = 0) -> int:
    return round(datetime(*when, tzinfo=zone, fold=fold).timestamp() * 1000)


def test_an_interval_counts_from_the_last() -> None:
    schedule = scheduled(interval_ms=6 * HOUR)
    assert schedule.next_after(HOUR) == 7 * HOUR
    assert not schedule.is_due(HOUR, 7 * HOUR - 1)
    assert schedule.is_due(HOUR, 7 * HOUR)


def test_a_cron_expression_counts_in_its_time_zone() -> None:
    daily = scheduled(cron="0 3 * * *")
    assert daily.next_after(ms(2026, 7, 1, 2, 59)) == ms(2026, 7, 1, 3)
    assert daily.next_after(ms(2026, 7, 1, 3)) == ms(2026, 7, 2, 3)
    assert daily.next_after(ms(2026, 7, 1, 3) - 1) == ms(2026, 7, 1, 3)
    berlin = scheduled(cron="0 3 * * *", timezone="Europe/Berlin")
    assert berlin.next_after(ms(2026, 7, 1)) == ms(2026, 7, 1, 1)
    assert berlin.next_after(ms(2026, 1, 1)) == ms(2026, 1, 1, 2)


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/30 * * * *", "0 */2 * * *"])
def test_changes_of_the_clocks_never_lead_back(cron: str) -> None:
    schedule = scheduled(cron=cron, timezone="Europe/Berlin")
    for day in ((2026, 3, 28), (2026, 10, 24)):
        start = ms(*day, 12)
        for at in range(start, start + 24 * HOUR, 600_000):
            assert at < schedule.next_after(at) <= at + 27 * HOUR
    repeated = ms(2026, 10, 25, 2, 10, zone=BERLIN, fold=1)
    assert schedule.next_after(repeated) > repeated


@pytest.mark.parametrize("schedule", [scheduled(interval_ms=HOUR), scheduled(cron="0 * * * *")])
def test_missed_runs_are_made_up_once(schedule) -> None:
    now = ms(2026, 7, 10, 12, 10)
    assert schedule.is_due(ms(2026, 7, 1), now)
    assert not schedule.is_due(now, now)
    assert not schedule.is_due(now, now + 1_000)


@pytest.mark.parametrize("schedule", [scheduled(interval_ms=HOUR), scheduled(cron="0 * * * *")])
def test_a_clock_that_jumps_about_makes_no_storm(schedule) -> None:
    base = last = ms(2026, 7, 10, 12)
    taken = 0
    for second in range(7_200):
        now = base + second * 1_000 - (second % 2) * 48 * HOUR
        if schedule.is_due(last, now):
            taken, last = taken + 1, now
    assert taken == 1
    assert not schedule.is_due(10**15, base)
    assert schedule.next_after(10**18) > base
    assert schedule.next_after(-5) > 0


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "x",
        "* * * *",
        "* * * * * *",
        "61 * * * *",
        "0 0 30 2 *",
        "*/0 * * * *",
        "@daily",
        "0 0 * 2 MON#6",
        "L/2 * * * *",
        "0 0 * * 1#2/2",
        "5-1 * * * *",
    ],
)
def test_bad_expressions_are_shown_with_an_example(cron: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        scheduled(cron=cron)
    assert repr(cron) in str(caught.value)
    assert "for example '0 3 * * *'" in str(caught.value)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "a\0b"])
def test_bad_time_zones(zone: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not a time zone; use for example"):
        SavepointSettings(timezone=zone)


def taken(*what: str) -> list[SavepointEntry]:
    return [
        SavepointEntry(
            id=name,
            path="/x",
            created_ms=1_000 - at,
            checkpoint=at,
            epoch=at,
            label="nightly",
            scheduled=name.startswith("s"),
        )
        for at, name in enumerate(what)
    ]


@pytest.mark.parametrize(
    ("what", "keep", "gone"),
    [
        ("s1 s2 s3 s4", 3, "s1"),
        ("s1 u1 s2 u2 s3 s4 u3", 2, "s1 s2"),
        ("s1 s2 s3", 3, ""),
        ("u1 u2 u3 u4", 1, ""),
        ("s1 s2", 1, "s1"),
        ("s1 s2", 0, "s1"),
        ("s1", -4, ""),
        ("", 1, ""),
    ],
)
def test_only_old_scheduled_savepoints_are_surplus(what: str, keep: int, gone: str) -> None:
    assert [entry.id for entry in surplus(taken(*what.split()), keep)] == gone.split()


def test_the_defaults() -> None:
    settings = SavepointSettings.from_configuration({"parallelism.default": 3})
    assert settings == SavepointSettings(None, None, None, "UTC", 3, True)
    assert settings.format is SavepointFormat.CANONICAL
    assert not settings.is_scheduled


def test_every_key_is_read() -> None:
    common = {
        "state.savepoints.dir": "/sp",
        "execution.checkpointing.savepoint-dir": "/sp",
        "savepoints.schedule.timezone": "Europe/Berlin",
        "savepoints.schedule.keep": "7",
        "savepoints.on-stop": "false",
        "savepoints.format": "NATIVE",
    }
    either = {"savepoints.schedule.interval": "6 h"}
    settings = SavepointSettings.from_configuration(common | either)
    assert settings == SavepointSettings(
        directory="/sp",
        interval_ms=6 * HOUR,
        timezone="Europe/Berlin",
        keep=7,
        on_stop=False,
        format=SavepointFormat.NATIVE,
    )
    assert settings.is_scheduled
    assert settings.next_after(0) == 6 * HOUR
    other = {"savepoints.schedule.cron": "0 3 * * *"}
    settings = SavepointSettings.from_configuration(common | other)
    assert (settings.cron, settings.timezone) == ("0 3 * * *", "Europe/Berlin")
    assert set(common | either | other) == set(spellings(SavepointSettings.options()))


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"savepoints.schedule.interval": "often"}, r"schedule\.interval: 'often'"),
        ({"savepoints.schedule.interval": "10 ms"}, r"schedule\.interval is 10 ms"),
        ({"savepoints.schedule.cron": "daily"}, r"schedule\.cron is 'daily'"),
        (
            {"savepoints.schedule.cron": "0 3 * * *", "savepoints.schedule.interval": "1 h"},
            "are both set: keep one",
        ),
        ({"savepoints.schedule.keep": 0}, r"schedule\.keep is 0"),
        ({"savepoints.schedule.keep": "few"}, r"schedule\.keep is 'few'"),
        ({"savepoints.on-stop": "perhaps"}, r"on-stop is 'perhaps'"),
        ({"savepoints.format": "xml"}, "must be one of canonical, native"),
        ({"state.savepoints.dir": ""}, "is empty"),
        ({"execution.checkpointing.savepoint-dir": "/other"}, "different values"),
    ],
)
def test_mistakes_name_their_key(configuration: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SavepointSettings.from_configuration({"state.savepoints.dir": "/sp"} | configuration)


def test_a_schedule_needs_a_directory() -> None:
    with pytest.raises(ConfigurationError, match=r"set state\.savepoints\.dir"):
        SavepointSettings(interval_ms=HOUR)
