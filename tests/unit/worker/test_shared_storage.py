"""A worker notices that it has another directory than the driver."""

from __future__ import annotations

import pytest

from turnback.errors import StorageNotSharedError
from turnback.state.files import StorageRef
from turnback.storage.local import LocalStorage
from turnback.worker.shared_storage import require_shared_storage

FENCE = "checkpoints/chk-1.json"


def test_the_fence_of_the_driver_is_found(tmp_path):
    LocalStorage(tmp_path).put(FENCE, b'{"nonce": "n1"}')
    require_shared_storage(StorageRef(tmp_path.as_uri()), FENCE, "n1")


def test_it_is_looked_for_once(tmp_path):
    LocalStorage(tmp_path).put(FENCE, b'{"nonce": "n1"}')
    require_shared_storage(StorageRef(tmp_path.as_uri()), FENCE, "n1")
    LocalStorage(tmp_path).delete(FENCE)
    require_shared_storage(StorageRef(tmp_path.as_uri()), FENCE, "n1")


@pytest.mark.parametrize("there", [None, b'{"nonce": "of another job"}'])
def test_another_directory_is_refused(tmp_path, there):
    if there is not None:
        LocalStorage(tmp_path).put(FENCE, there)
    with pytest.raises(StorageNotSharedError, match="does not share the storage of the job"):
        require_shared_storage(StorageRef(tmp_path.as_uri()), FENCE, "n2")


def test_state_in_the_memory_of_the_driver_needs_no_directory(tmp_path):
    require_shared_storage(StorageRef(tmp_path.as_uri(), inline=True), FENCE, "n3")
