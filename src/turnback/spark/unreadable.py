"""Files of a source that Spark cannot read, told with their source."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from turnback.core.errors import SourceError
from turnback.plan.malformed import plain_path

_FILE = re.compile(r"\[FAILED_READ_FILE[^\]]*\].*? file (?P<path>\S+?)\.?(?:\s|$)")
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+: )?(?P<why>.+)$", re.MULTILINE)


def unreadable_file(
    error: BaseException, new_files: Callable[[], Mapping[str, Iterable[str]]]
) -> SourceError | None:
    """What to say of an error of Spark that is about an input file; None if it is not.

    Args:
        error: What Spark raised.
        new_files: Returns what the epoch reads: new entries of sources' lists of files, by name.
    """
    match = _FILE.search(str(error))
    if match is None:
        return None
    path = plain_path(match["path"])
    names = (name for name, entries in new_files().items() if path in map(_path, entries))
    uid = next(names, "?").partition("#")[0]
    causes = _CAUSE.findall(str(error))
    why = causes[-1].strip() if causes else "Spark does not say why"
    return SourceError(
        f"source {uid!r}: its file {path} cannot be read: {why}. Mend or remove the file"
    )


def _path(entry: str) -> str:
    return plain_path(json.loads(entry)["path"])
