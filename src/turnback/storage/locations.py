"""Locations as people write them, and whether two of them are the same."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from turnback.core.ids import check_job_name, path_segment
from turnback.errors import ConfigurationError

_METADATA = "/_metadata.json"
_SAME_SCHEME = {"s3a": "s3", "abfs": "abfss"}
"""Hadoop's names of schemes, and ours."""


def display_path(location: str) -> str:
    """Return a location for people: a plain path if it is on this machine, else the URI."""
    scheme, _, rest = location.partition(":")
    if scheme.lower() == "file" and rest.startswith("/"):
        return unquote("/" + rest.lstrip("/"))
    return location


def normalized(location: str) -> str:
    """Return a location without what differs by spelling alone, for people; links stay.

    To tell whether two locations are the same, compare what `resolved` gives.
    """
    text = display_path(location.strip()).removesuffix(_METADATA)
    scheme, separator, rest = text.partition("://")
    if separator:
        text = f"{storage_scheme(scheme)}://{rest}"
    return text.rstrip("/") or text


def storage_scheme(scheme: str) -> str:
    """Return the one name of a scheme that is written in several ways."""
    name = scheme.lower()
    return _SAME_SCHEME.get(name, name)


def resolved(location: str) -> str:
    """Return where a location really is: an absolute path without links, or a URI."""
    text = normalized(location)
    return text if "://" in text else os.path.realpath(Path(text).expanduser())


def canonical_directory(directory: str) -> str:
    """Return the URI of a storage, the same by whatever links it was reached."""
    url = urlsplit(directory)
    if url.scheme != "file":
        return directory
    return Path(os.path.realpath(unquote(url.path))).as_uri()


def is_in_memory(location: str) -> bool:
    """Return whether a location lives and dies with the process that uses it."""
    return location.lower().startswith("memory://")


def is_on_file_system(location: str) -> bool:
    """Return whether a location is a directory that this machine has mounted."""
    return "://" not in display_path(location)


def is_below(directory: str, root: str) -> bool:
    """Return whether the directory of a job is below a root, however both are written."""
    parent = resolved(directory).rpartition("/")[0]
    return (parent or "/") == resolved(root)


def is_directory_of(segment: str, job: str) -> bool:
    """Return whether the directory of a job has this name; False if no job can be called so."""
    try:
        return path_segment(check_job_name(job)) == segment
    except ConfigurationError:
        return False


def last_segment(location: str) -> str:
    """Return the name of a directory."""
    return normalized(location).rpartition("/")[2]
