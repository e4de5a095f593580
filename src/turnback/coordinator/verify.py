from collections.abc import Iterator

import msgspec

from turnback.coordinator.log import CheckpointLog, slot_path
from turnback.coordinator.manifest import Manifest
from turnback.core.errors import CorruptFileError, NotFoundError
from turnback.storage.base import Storage
from turnback.storage.digest import check


class Problem(msgspec.Struct, frozen=True):
    """Something that keeps checkpoints from being restored.

    Attributes:
        path: The file.
        reason: What is wrong with it.
        checkpoints: Numbers of the checkpoints that need it.
    """

    path: str
    reason: str
    checkpoints: tuple[int, ...]


def verify(storage: Storage, manifest: Manifest | None = None) -> list[Problem]:
    """Read every file of one checkpoint, or of all, and compare it with what was recorded.

    Args:
        storage: The job directory.
        manifest: The checkpoint; all of them if left out.

    Raises:
        StorageError: The storage does not answer, so nothing can be said.
    """
    if manifest is not None:
        return _check_files(storage, (manifest,))
    scan = CheckpointLog(storage).scan()
    problems = [
        Problem(slot_path(number), str(error), (number,))
        for number, error in scan.unreadable.items()
    ]
    return problems + _check_files(storage, scan.manifests)


def _check_files(storage: Storage, manifests: tuple[Manifest, ...]) -> list[Problem]:
    needed: dict[tuple[str, int, str, bytes | None], list[int]] = {}
    for manifest in manifests:
        for file in _files(manifest):
            users = needed.setdefault(file, [])
            if manifest.number not in users:
                users.append(manifest.number)
    problems = []
    for (path, length, digest, inline), users in needed.items():
        try:
            data = storage.get(path) if inline is None else inline
            check(data, length, digest, f"{storage.uri}/{path}")
        except NotFoundError:
            problems.append(Problem(path, f"{storage.uri}/{path} is missing", tuple(users)))
        except CorruptFileError as error:
            problems.append(Problem(path, str(error), tuple(users)))
    return problems


def _files(manifest: Manifest) -> Iterator[tuple[str, int, str, bytes | None]]:
    for file in manifest.state:
        yield file.path, file.length, file.digest, file.inline
    for source in manifest.sources.values():
        for entry in source.log:
            yield entry.path, entry.length, entry.digest, None
