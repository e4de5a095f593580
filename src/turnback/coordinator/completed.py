from dataclasses import dataclass

from turnback.coordinator.manifest import Manifest


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint that is durable and whose sink work is committed.

    Attributes:
        manifest: What it consists of.
        waited_ms: Time from the trigger until writing began.
        manifest_ms: Time to make the manifest durable.
        commit_ms: Time the sinks took to commit.
        bytes_written: Bytes of the files that no earlier checkpoint of this attempt held.
        files_written: Number of those files.
        full_bytes: Bytes of all files it references.
        files: Number of all files it references.
        sync_ms: How long the slowest task of the epoch took to snapshot its state.
        tasks: Tasks that acknowledged the epoch.
    """

    manifest: Manifest
    waited_ms: int = 0
    manifest_ms: int = 0
    commit_ms: int = 0
    bytes_written: int = 0
    files_written: int = 0
    full_bytes: int = 0
    files: int = 0
    sync_ms: int = 0
    tasks: int = 0

    @property
    def number(self) -> int:
        """The slot it is in."""
        return self.manifest.number

    @property
    def epoch(self) -> int:
        """The epoch it is a cut of."""
        return self.manifest.epoch

    @property
    def duration_ms(self) -> int:
        """Time from the trigger until it was complete."""
        return self.waited_ms + self.manifest_ms + self.commit_ms
