"""From a URI to the storage behind it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from turnback.core.errors import ConfigurationError
from turnback.storage.base import Storage
from turnback.storage.local import LocalStorage
from turnback.storage.memory import MemoryStorage
from turnback.storage.s3 import S3Storage

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def open_storage(uri: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Storage:
    """Return the storage at a path or URI; nothing is created or contacted yet.

    Args:
        uri: A path, 'file:///path', 'memory://name' or 's3://bucket/prefix' ('s3a' is the same).
        options: Settings of the storage; only S3 has any, see `S3Storage`.

    Raises:
        ConfigurationError: The URI or an option cannot be used.
    """
    if not isinstance(uri, str):
        return LocalStorage(uri)
    if not uri:
        raise ConfigurationError("the storage location is empty: give a directory or a URI")
    # Hadoop prints file:/path, and people paste it.
    match = _SCHEME.fullmatch(re.sub(r"^file:/(?!/)", "file:///", uri))
    if match is None:
        return LocalStorage(Path(uri).expanduser())
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigurationError(f"{uri} names a host: write file:///path, with three slashes")
        return LocalStorage(unquote(rest))
    if scheme == "memory":
        return MemoryStorage(rest)
    if scheme in ("s3", "s3a"):
        return S3Storage(f"s3://{rest}", options)
    raise ConfigurationError(
        f"{uri}: unknown storage scheme {scheme!r}; known are a plain path, file://, memory:// "
        "and s3://"
    )
