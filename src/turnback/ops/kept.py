"""Reading a checkpoint while its job goes on and drops it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from turnback.coordinator.log import CheckpointLog
from turnback.core.errors import CheckpointNotFoundError, NotFoundError

if TYPE_CHECKING:
    from turnback.runtime.snapshot import Snapshot


@contextmanager
def while_kept(*snapshots: Snapshot) -> Iterator[None]:
    """Tell a checkpoint that was dropped meanwhile from one with a file missing.

    Raises:
        CheckpointNotFoundError: One of them is not kept any more.
        NotFoundError: It is, and a file of it is missing: it is damaged.
    """
    try:
        yield
    except NotFoundError:
        for snapshot in snapshots:
            if _is_dropped(snapshot):
                raise CheckpointNotFoundError(
                    f"{snapshot.name} of job {snapshot.job!r} is not kept any more, because newer "
                    "checkpoints have been taken. Choose a newer one, take a savepoint, or keep "
                    "more with execution.checkpointing.num-retained"
                ) from None
        raise


def _is_dropped(snapshot: Snapshot) -> bool:
    from turnback.runtime.storageref import storage_of

    if snapshot.manifest is None:
        return False
    try:
        CheckpointLog(storage_of(snapshot.storage)).get(snapshot.manifest.number)
    except CheckpointNotFoundError:
        return True
    return False
