import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage_contract import StorageContract
from turnback.errors import AlreadyExistsError, ConfigurationError, StorageError
from turnback.storage.base import Storage
from turnback.storage.open import MemoryStorage, open_storage


@pytest.fixture
def storage() -> Storage:
    return MemoryStorage(uuid.uuid4().hex)


class TestMemoryStorage(StorageContract):
    pass


def test_one_name_is_one_set_of_files() -> None:
    name = uuid.uuid4().hex
    MemoryStorage(name).put("a", b"1")
    assert open_storage(f"memory://{name}").get("a") == b"1"
    assert MemoryStorage(name + "x").list() == []


def test_a_path_behind_the_name_is_a_directory_inside(storage: Storage) -> None:
    inside = open_storage(f"{storage.uri}/jobs/a")
    assert inside.uri == f"{storage.uri}/jobs/a"
    inside.put("x/1", b"one")
    assert storage.list() == ["jobs/a/x/1"]
    assert storage.folders("jobs") == ["a"]
    assert inside.list() == ["x/1"]
    assert inside.sizes("x") == {"x/1": 3}
    storage.put("jobs/a/x/2", b"")
    assert inside.list("x") == ["x/1", "x/2"]
    inside.delete("x/1")
    assert storage.list() == ["jobs/a/x/2"]
    storage.put("jobs/b", b"")
    with pytest.raises(StorageError, match="cannot be a directory"):
        open_storage(f"{storage.uri}/jobs/b").put("x", b"")


@pytest.mark.parametrize("name", ["", "/", "/a", "a/../b", "a//b", "a/."])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="memory://"):
        MemoryStorage(name)


def test_a_stored_value_does_not_follow_the_buffer_it_came_from(storage: Storage) -> None:
    buffer = bytearray(b"before")
    storage.put("a", buffer)  # type: ignore[arg-type]
    buffer[:] = b"after!"
    assert storage.get("a") == b"before"


def test_it_refuses_to_be_sent_to_another_process(storage: Storage) -> None:
    with pytest.raises(ConfigurationError, match=r"memory://.*one process"):
        pickle.dumps(storage)


def test_one_of_many_threads_wins(storage: Storage) -> None:
    def race(writer: int) -> int:
        won = 0
        for slot in range(200):
            try:
                storage.put_if_absent(f"s/{slot}", b"%d" % writer)
                won += 1
            except AlreadyExistsError:
                pass
        return won

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(race, range(8))) == 200
    assert len(storage.list("s")) == 200
