"""Savepoints: state that outlives the job, in files that anything can read."""

from turnback.savepoint.directory import FileProblem, SavepointDirectory
from turnback.savepoint.metadata import (
    METADATA,
    FileEntry,
    Origin,
    SavedState,
    SavepointMetadata,
    SavepointType,
    StatePart,
)
from turnback.savepoint.parts import read_parts, state_directory, write_parts
from turnback.savepoint.table import ROWS, StateTable

__all__ = [
    "METADATA",
    "ROWS",
    "FileEntry",
    "FileProblem",
    "Origin",
    "SavedState",
    "SavepointDirectory",
    "SavepointMetadata",
    "SavepointType",
    "StatePart",
    "StateTable",
    "read_parts",
    "state_directory",
    "write_parts",
]
