"""HDFS as a storage, on a real NameNode and DataNode."""

import pytest

from services.hdfs import HdfsCluster
from storage_contract import StorageContract
from turnback.storage.base import Storage
from turnback.storage.open import open_storage


@pytest.fixture
def uri(hdfs: HdfsCluster) -> str:
    return hdfs.root()


@pytest.fixture
def storage(uri: str) -> Storage:
    return open_storage(uri)


class TestHdfsStorage(StorageContract):
    pass
