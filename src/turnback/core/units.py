"""Durations and sizes: read from a configuration, written for a configuration or for people."""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal

from turnback.errors import ConfigurationError

_DURATION_UNITS = {
    name: Decimal(ms)
    for names, ms in (
        ("ns nano nanosecond", "0.000001"),
        ("us µs micro microsecond", "0.001"),
        ("ms milli millisecond", "1"),
        ("s sec second", "1000"),
        ("m min minute", "60000"),
        ("h hour", "3600000"),
        ("d day", "86400000"),
    )
    for name in names.split()
}
_SIZE_UNITS = {
    name: Decimal(1 << bits)
    for names, bits in (
        ("b byte", 0),
        ("k kb kib kibibyte", 10),
        ("m mb mib mebibyte", 20),
        ("g gb gib gibibyte", 30),
        ("t tb tib tebibyte", 40),
    )
    for name in names.split()
}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([^\W\d_]*)\s*")
_MAX = 2**63 - 1
_STEPS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_SIZE_STEPS = (("tb", 1 << 40), ("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10), ("b", 1))
_SIZE_NAMES = ("KiB", "MiB", "GiB", "TiB", "PiB")


def parse_duration(value: int | str | timedelta, name: str = "duration") -> int:
    """Return a duration in whole milliseconds.

    Args:
        value: Milliseconds, a `timedelta`, or text such as ``"10 s"``, ``"5 min"``, ``"1 h"``;
            text without a unit is milliseconds, as in Flink.
        name: The option this is the value of, for the error message.

    Raises:
        ConfigurationError: It is no duration, negative, or finer than a millisecond.
    """
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(milliseconds=1))
        return _checked(Decimal(whole) + (Decimal("0.5") if rest else 0), value, name)
    if isinstance(value, int) and not isinstance(value, bool):
        return _checked(Decimal(value), value, name)
    if isinstance(value, str):
        ms = _quantity(value, _DURATION_UNITS, "ms")
        if ms is not None:
            return _checked(ms, value, name)
    raise ConfigurationError(
        f"{name}: {value!r} is not a duration; use milliseconds, or a number and a unit (ms, s, "
        "min, h, d), for example '10 s'"
    )


def parse_size(value: int | str, name: str = "size") -> int:
    """Return a size in bytes.

    Args:
        value: Bytes, or text such as ``"64 mb"``; units count in steps of 1024, as in Flink.
        name: The option this is the value of, for the error message.

    Raises:
        ConfigurationError: It is no size, negative, or not a whole number of bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX:
        return value
    if isinstance(value, str):
        size = _quantity(value, _SIZE_UNITS, "b")
        if size is not None and size == int(size) and size <= _MAX:
            return int(size)
    raise ConfigurationError(
        f"{name}: {value!r} is not a size; use bytes, or a number and a unit (b, kb, mb, gb, "
        "tb), for example '64 mb'"
    )


def format_duration(ms: int) -> str:
    """Return milliseconds as people write them: ``"1 h 30 min"``, ``"1.5 s"``, ``"250 ms"``."""
    if ms < 0:
        return "-" + format_duration(-ms)
    if 1_000 <= ms < 60_000:
        return f"{ms / 1000:g} s"
    parts = []
    for unit, step in _STEPS:
        count, ms = divmod(ms, step)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 ms"


def round_duration(ms: int) -> str:
    """Return a duration without digits that nobody reads: ``"12.3 s"``, ``"1 min 1 s"``."""
    if ms >= 60_000:
        ms -= ms % 1_000
    elif ms >= 10_000:
        ms -= ms % 100
    return format_duration(ms)


def format_age(ms: int) -> str:
    """Return a duration in the largest unit that fits, rounded down: ``"3 h"``, ``"0 s"``."""
    for unit, step in _STEPS:
        if ms >= step and unit != "ms":
            return f"{ms // step} {unit}"
    return "0 s"


def format_size(size: int) -> str:
    """Return a size with a unit: ``"1.5 MiB"``."""
    if abs(size) < 1024:
        return f"{size} B"
    amount = size / 1024
    power = 0
    # What rounds to 1024.0 belongs to the next unit.
    while abs(amount) >= 1023.95 and power < len(_SIZE_NAMES) - 1:
        amount = amount / 1024
        power = power + 1
    return f"{amount:.1f} {_SIZE_NAMES[power]}"


def duration_setting(ms: int) -> str:
    """Return a duration as one number and unit that `parse_duration` reads: ``"90 min"``."""
    return _in_whole_units(ms, _STEPS)


def size_setting(size: int) -> str:
    """Return a size as one number and unit that `parse_size` reads: ``"64 mb"``."""
    return _in_whole_units(size, _SIZE_STEPS)


def _in_whole_units(amount: int, steps: Sequence[tuple[str, int]]) -> str:
    unit, step = next((s for s in steps if amount and amount % s[1] == 0), steps[-1])
    return f"{amount // step} {unit}"


def _quantity(text: str, units: Mapping[str, Decimal], default: str) -> Decimal | None:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    unit = match[2].lower() or default
    factor = units.get(unit[:-1] if len(unit) > 2 and unit.endswith("s") else unit)
    return None if factor is None else Decimal(match[1]) * factor


def _checked(ms: Decimal, value: object, name: str) -> int:
    if ms < 0:
        raise ConfigurationError(f"{name}: {value!r} is negative")
    if ms != int(ms):
        raise ConfigurationError(f"{name}: {value!r} is not a whole number of milliseconds")
    if ms > _MAX:
        raise ConfigurationError(f"{name}: {value!r} does not fit in 64 bits")
    return int(ms)


def describe_exit(code: int) -> str:
    """Describe the return code of a process, as `subprocess` gives it."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit status {code}"
