"""Names users choose, ids, and the file names made from them."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b
from urllib.parse import unquote_to_bytes

from turnback.errors import ConfigurationError, PlanError, TurnbackError

_MAX_NAME = 200
# File systems allow 255 bytes; some room is left for what others add to a segment.
_MAX_SEGMENT = 180
_CUT_SEGMENT = 140
_UNSAFE = re.compile(rb"[^A-Za-z0-9._-]")
_CUT = re.compile(r"%.?$")
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


def check_uid(uid: str) -> str:
    """Return the uid of an operator, or raise `PlanError` if it cannot be one."""
    return _check_name("uid", uid, PlanError)


def check_job_name(name: str) -> str:
    """Return the name of a job, or raise `ConfigurationError` if it cannot be one."""
    return _check_name("job name", name, ConfigurationError)


def check_state_name(name: str) -> str:
    """Return the name of a state, or raise `PlanError` if it cannot be one."""
    return _check_name("state name", name, PlanError)


def _check_name(what: str, name: str, error: type[TurnbackError]) -> str:
    if not isinstance(name, str):
        raise error(f"a {what} must be a string, got {name!r}")
    if not name.strip():
        raise error(f"a {what} must not be empty, got {name!r}")
    if len(name) > _MAX_NAME:
        raise error(
            f"the {what} {name[:40]!r}... has {len(name)} characters, but at most "
            f"{_MAX_NAME} are allowed"
        )
    check_printable(what, name, error)
    return name


def check_printable(what: str, text: str, error: type[TurnbackError], allowed: str = "") -> None:
    """Raise an error if a text holds control characters other than those allowed."""
    for char in text:
        if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in allowed:
            raise error(f"the {what} {text!r} contains {char!r}, which is not printable; remove it")


def is_id(text: object) -> bool:
    """Return whether this can be the id of a file: letters, digits, '-' and '_', nothing else."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def check_id(id_: str, what: str) -> str:
    """Return the id, or refuse what could lead to another path than its own."""
    if not is_id(id_):
        raise ConfigurationError(
            f"{id_!r} is not the id of a {what}: ids are 1 to 80 letters, digits, '-' or '_'; "
            "copy it as it was printed"
        )
    return id_


def path_segment(name: str) -> str:
    """Return a file name for any name: one segment, never hidden, different for different names.

    Everything but ``[A-Za-z0-9._-]`` is percent-encoded, and so are leading dots;
    `segment_name` reads it back. A name that would be too long for a file system keeps its
    beginning, followed by ``~`` and a hash: still unique, but readable in one direction only.
    """
    if not name:
        raise ConfigurationError("an empty name cannot become a file name")
    raw = name.encode("utf-8", "surrogatepass")
    dots = len(raw) - len(raw.lstrip(b"."))
    rest = _UNSAFE.sub(lambda m: b"%%%02X" % m[0][0], raw[dots:])
    segment = "%2E" * dots + rest.decode("ascii")
    if len(segment) <= _MAX_SEGMENT:
        return segment
    digest = blake2b(raw, digest_size=16).hexdigest()
    return f"{_CUT.sub('', segment[:_CUT_SEGMENT])}~{digest}"


def segment_name(segment: str) -> str:
    """Return the name that `path_segment` made the segment from.

    Raises:
        ConfigurationError: The segment holds only the beginning of a long name, or is not ours.
    """
    if "~" not in segment:
        try:
            name = unquote_to_bytes(segment).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            name = ""
        if name and path_segment(name) == segment:
            return name
    raise ConfigurationError(f"{segment!r} does not contain a complete name")
