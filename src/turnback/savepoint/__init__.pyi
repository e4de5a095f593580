from .canonical import reorder
from .claims import (
    Allowed,
    Claims,
    Program,
    Renames,
    SnapshotInfo,
    StateId,
    StoredState,
    claim,
    present,
    source_uid,
)
from .directory import FileProblem, SavepointDirectory
from .draft import Draft
from .evolution import Incompatible, Migration, Outcome, Same, evolve_state
from .lookup import check_state
from .losses import refuse_losses
from .metadata import (
    END_OF_TIME,
    FILES,
    METADATA,
    SOURCES,
    FileEntry,
    Origin,
    SavedState,
    SavepointMetadata,
    StatePart,
    file_name,
)
from .parts import PartsWriter, read_parts, state_directory, write_parts
from .preflight import (
    CheckReport,
    CheckRow,
    Subject,
    Verdict,
    check,
    known_states,
    program_of,
)
from .table import ROWS, StateTable
from .views import view_names

__all__ = [
    "END_OF_TIME",
    "FILES",
    "METADATA",
    "ROWS",
    "SOURCES",
    "Allowed",
    "CheckReport",
    "CheckRow",
    "Claims",
    "Draft",
    "FileEntry",
    "FileProblem",
    "Incompatible",
    "Migration",
    "Origin",
    "Outcome",
    "PartsWriter",
    "Program",
    "Renames",
    "Same",
    "SavedState",
    "SavepointDirectory",
    "SavepointMetadata",
    "SnapshotInfo",
    "StateId",
    "StatePart",
    "StateTable",
    "StoredState",
    "Subject",
    "Verdict",
    "check",
    "check_state",
    "claim",
    "evolve_state",
    "file_name",
    "known_states",
    "present",
    "program_of",
    "read_parts",
    "refuse_losses",
    "reorder",
    "source_uid",
    "state_directory",
    "view_names",
    "write_parts",
]
