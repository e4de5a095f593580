from collections.abc import Mapping
from dataclasses import dataclass, field

from turnback.coordinator.manifest import OperatorInfo, SourcePosition
from turnback.state.file import StateFile
from turnback.state.schema import StateSchema


@dataclass(frozen=True)
class EpochCut:
    """Everything a checkpoint of one confirmed epoch consists of.

    Attributes:
        epoch: The epoch; greater than that of any cut before.
        sources: Position of every source after the epoch, by source uid.
        state: All live state files after the epoch.
        schemas: What is in them.
        operators: The operators of the program.
        transactions: What sinks prepared in this very epoch, by sink uid.
        watermarks: Greatest watermarks by name.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        tasks: Tasks that acknowledged the epoch.
    """

    epoch: int
    sources: Mapping[str, SourcePosition]
    state: tuple[StateFile, ...] = ()
    schemas: tuple[StateSchema, ...] = ()
    operators: tuple[OperatorInfo, ...] = ()
    transactions: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    watermarks: Mapping[str, int] = field(default_factory=dict)
    sync_ms: int = 0
    tasks: int = 0

    def paths(self) -> frozenset[str]:
        """Return the paths of all files the cut needs."""
        found = {file.path for file in self.state if file.inline is None}
        for source in self.sources.values():
            found.update(entry.path for entry in source.log)
        return frozenset(found)
