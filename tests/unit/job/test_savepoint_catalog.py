import pytest

from coordinator_fakes import HookedStorage, memory
from turnback.errors import (
    AlreadyExistsError,
    ConfigurationError,
    CorruptFileError,
    FormatVersionError,
    NotFoundError,
    StorageError,
)
from turnback.job.catalog import SavepointCatalog, SavepointEntry
from turnback.storage.envelope import seal


def entry(id_: str, checkpoint: int, created_ms: int = 0, **options) -> SavepointEntry:
    return SavepointEntry(
        id=id_,
        path=f"/sp/{id_}",
        created_ms=created_ms,
        checkpoint=checkpoint,
        epoch=checkpoint,
        **options,
    )


def test_what_is_recorded_comes_back() -> None:
    storage = memory()
    full = entry("a", 3, 50, label="x", note="y", scheduled=True, bytes=9)
    SavepointCatalog(storage).add(full)
    assert storage.list() == ["savepoints/a.json"]
    assert SavepointCatalog(storage).list() == [full]
    assert SavepointCatalog(storage).get("a") == full


def test_order_follows_the_checkpoints_not_the_clock() -> None:
    catalog = SavepointCatalog(memory())
    for item in (entry("c", 9, 10), entry("a", 30, 5), entry("b", 7, 20)):
        catalog.add(item)
    assert [e.id for e in catalog.list()] == ["b", "c", "a"]
    assert catalog.latest().id == "a"
    assert catalog.latest(4) is None
    assert catalog.latest(5).id == catalog.latest(100).id == "a"
    catalog.forget("a")
    assert catalog.latest(10).id == "c"


def test_an_empty_catalog() -> None:
    catalog = SavepointCatalog(memory())
    assert (catalog.list(), catalog.latest(), catalog.latest(1)) == ([], None, None)
    catalog.forget("missing")
    with pytest.raises(NotFoundError):
        catalog.get("missing")


def test_the_same_record_twice_is_one_and_another_is_refused() -> None:
    storage = HookedStorage(memory())
    catalog = SavepointCatalog(storage)

    def lose(operation: str, path: str) -> None:
        storage.heal()
        raise StorageError("no answer")

    storage.after = lose
    catalog.add(entry("a", 1))
    catalog.add(entry("a", 1))
    with pytest.raises(AlreadyExistsError):
        catalog.add(entry("a", 2))
    assert catalog.list() == [entry("a", 1)]


@pytest.mark.parametrize("bad", ["../job", "a/b", "/x", "", "..", "a.json"])
def test_no_id_leads_anywhere_else(bad: str) -> None:
    storage = HookedStorage(memory())
    catalog = SavepointCatalog(storage)
    for action in (lambda: entry(bad, 1), lambda: catalog.get(bad), lambda: catalog.forget(bad)):
        with pytest.raises(ConfigurationError, match="not the id of a savepoint"):
            action()
    assert storage.operations == []


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"rubbish", CorruptFileError),
        (seal("savepoint-record", 8, b"{}"), FormatVersionError),
        (seal("savepoint-record", 1, b"{}"), CorruptFileError),
    ],
)
def test_a_bad_record_is_left_out_but_never_guessed_around(data, error, caplog) -> None:
    storage = memory()
    catalog = SavepointCatalog(storage)
    catalog.add(entry("a", 1))
    storage.put("savepoints/bad.json", data)
    storage.put("savepoints/a/_metadata.json", b"a savepoint may be below this directory")
    assert catalog.list() == [entry("a", 1)]
    assert "savepoints/bad.json" in caplog.text
    for action in (catalog.latest, lambda: catalog.latest(10)):
        with pytest.raises(error, match=r"savepoints/bad.json.*specify one by its directory"):
            action()
    catalog.forget("bad")
    assert catalog.latest().id == "a"


def test_a_renamed_record_is_noticed() -> None:
    storage = memory()
    catalog = SavepointCatalog(storage)
    catalog.add(entry("a", 1))
    storage.put("savepoints/b.json", storage.get("savepoints/a.json"))
    with pytest.raises(CorruptFileError, match="copied or renamed"):
        catalog.get("b")
