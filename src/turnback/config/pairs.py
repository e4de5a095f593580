from __future__ import annotations

from collections.abc import Iterable

from turnback.core.errors import ConfigurationError


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """Read what ``-D`` is given on the command line.

    Args:
        pairs: Texts of the form ``key=value``; the value may hold further equals signs.

    Raises:
        ConfigurationError: One has another form, or a key comes twice with different values.
    """
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not key:
            shown = key if equals or len(key) < 80 else f"{key[:77]}..."
            raise ConfigurationError(
                f"-D {shown}: write key=value, for example -D parallelism.default=4"
            )
        if found.get(key, value) != value:
            raise ConfigurationError(f"-D {key} is given twice with different values: keep one")
        found[key] = value
    return found
