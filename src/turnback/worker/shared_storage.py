"""Whether this machine sees the storage that the driver sees."""

from __future__ import annotations

import socket

from turnback.errors import NotFoundError, StorageNotSharedError
from turnback.state.files import StorageRef, storage_of

_seen: set[tuple[str, str]] = set()


def require_shared_storage(storage: StorageRef, fence: str, nonce: str) -> None:
    """Check that the driver's fence is in the storage; once per process and driver.

    Without this, a task on a machine that has its own directory at the same path would write files
    there that the driver cannot see, and no checkpoint that names them could be restored.

    Args:
        storage: The storage of the job.
        fence: The path of the fence of this attempt.
        nonce: What only the fences of this driver hold; empty if there is no driver.

    Raises:
        StorageNotSharedError: The fence is not there.
        StorageError: The storage cannot be read.
    """
    key = (storage.uri, nonce)
    if storage.inline or not nonce or key in _seen:
        return
    try:
        found = storage_of(storage).get(fence)
    except NotFoundError:
        found = b""
    if nonce.encode() not in found:
        raise StorageNotSharedError(
            f"{socket.gethostname()} does not share the storage of the job with the driver: "
            f"{storage.uri} is another directory there. Checkpoints can only be restored from a "
            "storage that the driver and all executors share: mount a shared file system at the "
            "same path on every machine, or use an object store or HDFS (turnback run --root "
            "s3://bucket/prefix)"
        )
    _seen.add(key)
