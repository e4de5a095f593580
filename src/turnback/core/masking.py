"""What counts as a secret, and stars in its place. Nothing else decides that.

Names decide first: those of settings, script arguments, URL parameters and the like. Passwords in
URLs and tokens of HTTP headers are found by their place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASKED = "****"

_WORDS = (
    r"passw(?:or)?d|passphrase|secret|token|credential|signature|webhook"
    r"|(?:access|account|api|private|shared|encryption|storage)[._-]?key"
    r"|(?<![a-z])(?:pass|pwd|sig|sas)(?![a-z])"
)
_NAME = re.compile(_WORDS, re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?P<before>\b[a-z][a-z0-9+.-]*://[^\s/:@?#'\"]*:)[^\s/?#'\"]+@", re.I)
_ASSIGNED = re.compile(
    # password=x, --token=x, ;password=x, password="x y", and in JSON "password": "x"
    rf"(?P<name>[\w.-]*(?:{_WORDS})[\w.-]*)(?P<equals>[\"']?\s*:\s*(?=[\"'])|\s*=\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s&;,\"'\])}]+)",
    re.IGNORECASE,
)
_LITERAL = re.compile(
    rf"(?P<before>[\w.-]*(?:{_WORDS})[\w.-]*[\"']?\]?\s*(?:=(?!=)|:|,)\s*)(?:\"[^\"\n]+\"|'[^'\n]+')",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<before>\bauthorization[\"']?\s*[:=]\s*[\"']?(?:basic|bearer)\s+|\bbearer\s+(?=\S{16}))"
    r"[^\s\"',]+",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether what has this name, such as a setting or an argument, is a secret."""
    return _NAME.search(name) is not None


def mask_text(text: str) -> str:
    """A text with stars for every secret that can be told from the text itself."""
    if "=" not in text and ":" not in text and "earer" not in text.lower():
        return text
    text = _URL_PASSWORD.sub(rf"\g<before>{MASKED}@", text)
    text = _ASSIGNED.sub(rf"\g<name>\g<equals>{MASKED}", text)
    return _HEADER.sub(rf"\g<before>{MASKED}", text)


def mask_code(text: str) -> str:
    """The text of a program, with stars for the secrets that are written in it as literals."""
    text = _URL_PASSWORD.sub(rf"\g<before>{MASKED}@", text)
    return _LITERAL.sub(rf'\g<before>"{MASKED}"', text)


def mask_value(name: str, value: str) -> str:
    """The value of a setting, with stars in place of secrets."""
    return MASKED if is_secret_name(name) else mask_text(value)


def mask_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments of a program, with stars in place of secrets.

    A secret is the value of `--token=VALUE` or `token=VALUE`, what follows `--token`, and a
    password within a URL.
    """
    masked: list[str] = []
    secret_follows = False
    for argument in arguments:
        if secret_follows and not argument.startswith("-"):
            masked.append(MASKED)
            secret_follows = False
            continue
        name, equals, _ = argument.partition("=")
        option = argument.startswith("-")
        secret_follows = option and not equals and is_secret_name(argument)
        if equals and is_secret_name(name) and "://" not in name:
            masked.append(f"{name}={MASKED}")
        else:
            masked.append(mask_text(argument))
    return tuple(masked)
