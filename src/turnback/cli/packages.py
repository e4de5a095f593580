"""Looks at what is installed, for `turnback doctor`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from turnback.cli.finding import Finding

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)(?:;\s*(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_BOUND = re.compile(r"(>=|<=|<|>|==|!=)\s*([0-9][0-9.]*)")
_FOR_DEVELOPERS = "dev"


def look_at_python() -> Finding:
    """Python itself."""
    # An older one could not read this file: pip refuses to install it there.
    return Finding("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def look_at_java() -> Finding:
    """The Java that Spark would use."""
    from turnback.core.errors import ConfigurationError, SparkUnavailableError

    try:
        from turnback.spark.session import check_java

        return Finding("java", "ok", f"Java {check_java()}")
    except ImportError as error:
        return Finding("java", "fail", f"not looked at: {error}", "install pyspark first")
    except (ConfigurationError, SparkUnavailableError, OSError) as error:
        return Finding("java", "fail", str(error), "see https://adoptium.net")


def look_at_packages() -> Iterator[Finding]:
    """Spark on its own line, everything else that is needed on another, then the extras."""
    needed, extras = _requirements()
    problems = {name: _problem(name, bounds) for name, bounds in needed.items()}
    spark = problems.pop("pyspark", None)
    bounds = needed.get("pyspark", "")
    yield Finding(
        "pyspark",
        "fail" if spark else "ok",
        spark or _version("pyspark") or "",
        f"pip install 'pyspark{bounds}'" if spark else "",
    )
    bad = [text for text in problems.values() if text]
    if bad:
        yield Finding("packages", "fail", "; ".join(bad), "pip install --upgrade turnback")
    else:
        yield Finding("packages", "ok", f"all {len(problems)} there")
    yield _look_at_extras(extras)


def has_package(name: str) -> bool:
    """Whether a package is installed."""
    return _version(name) is not None


def _look_at_extras(extras: dict[str, dict[str, str]]) -> Finding:
    missing = {e: [n for n, b in needs.items() if _problem(n, b)] for e, needs in extras.items()}
    there = [extra for extra, names in missing.items() if not names]
    absent = [extra for extra, names in missing.items() if names]
    found = ", ".join(sorted(there)) or "none"
    if absent:
        found += f" (not installed: {', '.join(sorted(absent))})"
    return Finding("extras", "ok", found)


def _requirements() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """What is always needed and what each extra needs: names and bounds of versions."""
    from importlib.metadata import requires

    always: dict[str, str] = {}
    extras: dict[str, dict[str, str]] = {}
    for line in requires("turnback") or []:
        match = _REQUIREMENT.fullmatch(line)
        if match is None:
            continue
        name, bounds, marker = match[1], match[2].strip(), match[3] or ""
        extra = _EXTRA.search(marker)
        if extra is None:
            always[name] = bounds
        elif extra[1] != _FOR_DEVELOPERS:
            extras.setdefault(extra[1], {})[name] = bounds
    return always, extras


def _problem(name: str, bounds: str) -> str | None:
    found = _version(name)
    if found is None:
        return f"{name} is not installed"
    for operator, bound in _BOUND.findall(bounds):
        if not _holds(_numbers(found), operator, _numbers(bound)):
            return f"{name} is {found}, but {bounds} is needed"
    return None


def _holds(found: tuple[int, ...], operator: str, bound: tuple[int, ...]) -> bool:
    width = max(len(found), len(bound))
    left, right = (numbers + (0,) * (width - len(numbers)) for numbers in (found, bound))
    order = (left > right) - (left < right)
    return {
        ">=": order >= 0,
        "<=": order <= 0,
        "<": order < 0,
        ">": order > 0,
        "==": order == 0,
        "!=": order != 0,
    }[operator]


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None
