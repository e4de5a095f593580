"""Looks at directories, object stores and ports, for `turnback doctor`."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path

from turnback.cli.finding import Finding
from turnback.cli.text import size
from turnback.core.errors import ConfigurationError, StorageError

_LITTLE = 1 << 30
_TOO_LITTLE = 100 << 20
# Long enough for a slow store, short enough for a person who waits.
_QUICK = {"timeout": "10 s", "connect_timeout": "3 s", "retry_timeout": "10 s", "max_retries": "1"}


def look_at_place(name: str, uri: str, options: Mapping[str, str]) -> Finding:
    """A directory or object store: can it be written, read and deleted from?"""
    try:
        local = _local_path(uri)
        if local is not None and not local.exists():
            return _look_at_missing(name, local)
        _probe(uri, options)
    except (StorageError, ConfigurationError) as error:
        advice = "check the path, the permissions and the free space"
        if uri.lower().startswith("s3"):
            advice = "check address and credentials: turnback config s3"
        return Finding(name, "fail", f"{uri}: {error}", advice)
    if local is None:
        return Finding(name, "ok", f"{uri} can be written and read")
    return look_at_space(name, local, f"{local} can be written and read")


def look_at_space(name: str, path: Path, found: str = "") -> Finding:
    """How much room a directory has."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(name, "fail", f"{path}: {error.strerror}", "make the directory")
    text = f"{found or path}, {size(free)} free"
    if free < _TOO_LITTLE:
        return Finding(name, "fail", text, "make room: nothing can be written")
    if free < _LITTLE:
        return Finding(name, "warn", text, "make room: state and checkpoints need it")
    return Finding(name, "ok", text)


def look_at_temporary(local_dir: str | None) -> list[Finding]:
    """Where tasks keep state while they run."""
    findings = [look_at_space("temporary files", Path(tempfile.gettempdir()))]
    if local_dir is not None:
        where = Path(local_dir)
        findings.append(look_at_space("state.backend.local-dir", _nearest(where), str(where)))
    shared = Path("/dev/shm")
    if os.name == "posix" and shared.is_dir():
        findings.append(look_at_space("shared memory", shared))
    return findings


def look_at_port(address: str, port: int) -> Finding:
    """Whether the dashboard could be started."""
    where = f"{address}:{port}"
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(found[4])
    except OSError as error:
        advice = "if that is not the dashboard, choose another port: turnback ui --port"
        return Finding("dashboard", "warn", f"{where}: {error.strerror or error}", advice)
    return Finding("dashboard", "ok", f"{where} is free")


def _look_at_missing(name: str, path: Path) -> Finding:
    """A directory that is not there yet: can it be made?"""
    parent = _nearest(path)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        advice = f"make it, or allow to write into {parent}"
        return Finding(name, "fail", f"{path} is not there and cannot be made", advice)
    return look_at_space(name, parent, f"{path} is not there yet and can be made")


def _nearest(path: Path) -> Path:
    """The directory itself, or the nearest one above it that is there."""
    here = path.expanduser().absolute()
    return next((p for p in (here, *here.parents) if p.exists()), here)


def _local_path(uri: str) -> Path | None:
    from urllib.parse import unquote, urlsplit

    from turnback.storage.local import LocalStorage
    from turnback.storage.open import open_storage

    storage = open_storage(uri) if uri.lower().startswith("file:") or "://" not in uri else None
    if isinstance(storage, LocalStorage):
        return Path(unquote(urlsplit(storage.uri).path))
    return None


def _probe(uri: str, options: Mapping[str, str]) -> None:
    from turnback.storage.open import open_storage

    quick = _QUICK if uri.lower().startswith("s3") else {}
    storage = open_storage(uri, {**options, **quick})
    path, data = f"_doctor-{uuid.uuid4().hex}", b"turnback doctor"
    storage.put_if_absent(path, data)
    try:
        if storage.get(path) != data:
            raise StorageError(f"{path} holds other bytes than were written")
    finally:
        storage.delete(path)
