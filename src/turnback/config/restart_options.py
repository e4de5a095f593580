"""The configuration keys of the restart strategies."""

from __future__ import annotations

from typing import Any

from turnback.config.option import Option, Parser, count, duration, factor, spellings
from turnback.core.errors import ConfigurationError
from turnback.core.units import duration_setting

RESTART_TYPE = "restart-strategy.type"
RESTART_KINDS = ("fixed-delay", "failure-rate", "exponential-delay")
"""The strategies that have keys of their own, below ``restart-strategy.<kind>.``"""

_UNLIMITED = "unlimited"
_NONE = ("none", "off", "disable")
_JOINED = {kind.replace("-", ""): kind for kind in RESTART_KINDS}


def restart_kind(key: str) -> str | None:
    """The strategy a key is about, `None` for keys that are about none or all of them."""
    group, _, rest = key.partition(".")
    kind = rest.partition(".")[0]
    return kind if group == "restart-strategy" and kind in RESTART_KINDS else None


def _type(key: str, value: Any) -> str:
    name = str(value).strip().lower().replace("_", "-").replace("delayed", "delay")
    if name in _NONE:
        return "none"
    kind = _JOINED.get(name, name)
    if kind not in RESTART_KINDS:
        allowed = ", ".join(("none", *RESTART_KINDS))
        raise ConfigurationError(f"{key} is {value!r}: it must be one of {allowed}")
    return kind


def _attempts(key: str, value: Any) -> int | None:
    if str(value).strip().lower() == _UNLIMITED:
        return None
    try:
        return int(count(0)(key, value))
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}, or {_UNLIMITED}") from None


def _attempts_text(attempts: int | None) -> str:
    return _UNLIMITED if attempts is None else str(attempts)


def _time(kind: str, name: str, field: str, default: str, doc: str, least: int = 0) -> Option:
    key = f"restart-strategy.{kind}.{name}"
    return Option(key, duration(least), doc, default, field, write=duration_setting)


def _number(kind: str, name: str, field: str, default: str, doc: str, parse: Parser) -> Option:
    return Option(f"restart-strategy.{kind}.{name}", parse, doc, default, field)


RESTART_OPTIONS = (
    Option(
        RESTART_TYPE,
        _type,
        "What follows a failure: `none`, `fixed-delay`, `failure-rate` or `exponential-delay`. "
        "When nothing is set, a job with checkpoints restarts every second without limit, one "
        "without them does not restart.",
        field="kind",
        aliases=("restart-strategy",),
    ),
    Option(
        "restart-strategy.fixed-delay.attempts",
        _attempts,
        f"How often the job is restarted before it fails for good, or `{_UNLIMITED}`.",
        default="1",
        field="attempts",
        write=_attempts_text,
    ),
    _time("fixed-delay", "delay", "delay_ms", "1 s", "Time before each restart."),
    _number(
        "failure-rate",
        "max-failures-per-interval",
        "max_failures",
        "1",
        "How many failures one interval may see; one more, and the job fails for good.",
        count(1),
    ),
    _time(
        "failure-rate",
        "failure-rate-interval",
        "interval_ms",
        "1 min",
        "The interval in which failures are counted.",
        1,
    ),
    _time("failure-rate", "delay", "delay_ms", "1 s", "Time before each restart."),
    _time(
        "exponential-delay",
        "initial-backoff",
        "initial_ms",
        "1 s",
        "Time before the first restart.",
        1,
    ),
    _time("exponential-delay", "max-backoff", "max_ms", "1 min", "Most time before a restart.", 1),
    _number(
        "exponential-delay",
        "backoff-multiplier",
        "multiplier",
        "1.5",
        "By how much the time grows from one restart to the next.",
        factor(1),
    ),
    _time(
        "exponential-delay",
        "reset-backoff-threshold",
        "reset_threshold_ms",
        "1 h",
        "A job that ran well for so long starts with the initial time again.",
        1,
    ),
    _number(
        "exponential-delay",
        "jitter-factor",
        "jitter",
        "0.1",
        "How much of each time is left to chance, so that jobs do not restart in step.",
        factor(0, 1),
    ),
)
"""Every configuration key of the restart strategies."""

RESTART_KEYS = spellings(RESTART_OPTIONS)
"""All their names."""
