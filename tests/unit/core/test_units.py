from datetime import timedelta

import pytest

from turnback.core.units import (
    duration_setting,
    format_age,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    round_duration,
    size_setting,
)
from turnback.errors import ConfigurationError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (1500, 1500),
        ("250", 250),
        ("10 s", 10_000),
        ("10s", 10_000),
        (" 5  min ", 300_000),
        ("5 m", 300_000),
        ("1 h", 3_600_000),
        ("2 days", 172_800_000),
        ("1 d", 86_400_000),
        ("3 seconds", 3_000),
        ("1 Hour", 3_600_000),
        ("7 ms", 7),
        ("7 milliseconds", 7),
        ("7 millis", 7),
        ("1.5 h", 5_400_000),
        ("5000 us", 5),
        ("5000 µs", 5),
        ("3000000 ns", 3),
        (timedelta(minutes=2, milliseconds=1), 120_001),
    ],
)
def test_durations(value: int | str | timedelta, ms: int) -> None:
    assert parse_duration(value) == ms


@pytest.mark.parametrize(
    "value",
    ["", "s", "10 lightyears", "ten s", "10 s 5", "-5 s", -1, True, 1.5, None, "1 us", "1,5 s",
     timedelta(microseconds=1), timedelta(seconds=-1), "1e3 s", "99999999999999 d", "1_0",
     "\u0661\u0660 s"],
)  # fmt: skip
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^restart-delay: "):
        parse_duration(value, "restart-delay")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (17, 17),
        ("1024", 1024),
        ("64 mb", 64 << 20),
        ("64MB", 64 << 20),
        ("1 g", 1 << 30),
        ("1 gibibytes", 1 << 30),
        ("2 kb", 2048),
        ("3 bytes", 3),
        ("1 tb", 1 << 40),
        ("0.5 kb", 512),
    ],
)
def test_sizes(value: int | str, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "mb", "-1", -1, "1 pb", True, 1.5, None, "0.3 b", "1 min"])
def test_what_is_no_size(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^threshold: .* is not a size"):
        parse_size(value, "threshold")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (1_500, "1.5 s"),
        (59_999, "59.999 s"),
        (60_000, "1 min"),
        (5_400_000, "1 h 30 min"),
        (86_400_001, "1 d 1 ms"),
        (-1_500, "-1.5 s"),
    ],
)
def test_format(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0 ms"), (12, "12 ms"), (1_234, "1.234 s"), (12_345, "12.3 s"), (61_999, "1 min 1 s")],
)
def test_durations_without_digits_that_nobody_reads(ms: int, text: str) -> None:
    assert round_duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(-1, "0 s"), (999, "0 s"), (1_000, "1 s"), (59_999, "59 s"), (3_600_000, "1 h"),
     (90_000_000, "1 d")],
)  # fmt: skip
def test_ages(ms: int, text: str) -> None:
    assert format_age(ms) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_048_575, "1.0 MiB"),
        (1_572_864, "1.5 MiB"),
        (3 << 40, "3.0 TiB"),
        (5000 << 50, "5000.0 PiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (10_000, "10 s"), (5_400_000, "90 min"), (1_001, "1001 ms")]
)
def test_durations_for_a_configuration(ms: int, text: str) -> None:
    assert duration_setting(ms) == text
    assert parse_duration(text) == ms


@pytest.mark.parametrize(("size", "text"), [(0, "0 b"), (64 << 20, "64 mb"), (1000, "1000 b")])
def test_sizes_for_a_configuration(size: int, text: str) -> None:
    assert size_setting(size) == text
    assert parse_size(text) == size
