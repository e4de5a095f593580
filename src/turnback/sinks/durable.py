"""Directories that are still there after the machine dies."""

import os
from pathlib import Path


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_upwards(path: Path, top: Path) -> None:
    """Make the names in a directory and in all above it, up to and with `top`, durable.

    All of them, even those another task made: that task may not have come to its own sync yet.
    """
    sync_directory(path)
    while path != top:
        path = path.parent
        sync_directory(path)


def make_directories(path: Path) -> None:
    """Create a directory and its parents; the names of new ones are durable on return."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
