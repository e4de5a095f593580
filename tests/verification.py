from os import PathLike

from turnback.checkpoint.log import CheckpointLog, slot_path
from turnback.checkpoint.manifest import Manifest
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.snapshot import FileProblem, Snapshot, verify_files
from turnback.state.files import StorageRef
from turnback.storage.base import Storage


def verify(storage: Storage, manifest: Manifest | None = None) -> list[FileProblem]:
    """Verify one checkpoint of a job, or all of them, with the slots of those unreadable."""
    where = StorageRef(storage.uri)
    if manifest is not None:
        return verify_files(storage, Snapshot(manifest, where).files())
    scan = CheckpointLog(storage).scan()
    problems = [
        FileProblem(slot_path(number), str(error)) for number, error in scan.unreadable.items()
    ]
    needed = (file for manifest in scan.manifests for file in Snapshot(manifest, where).files())
    return problems + verify_files(storage, list(dict.fromkeys(needed)))


def verify_savepoint(savepoint: SavepointDirectory | str | PathLike[str]) -> list[FileProblem]:
    if not isinstance(savepoint, SavepointDirectory):
        savepoint = SavepointDirectory.locate(savepoint)
    return verify_files(savepoint.storage, savepoint.load().entries())
