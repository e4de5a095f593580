from __future__ import annotations

import pytest
from msgspec.structs import replace
from savepoint_support import LOG, METADATA, state_schema

from turnback.checkpoint.manifest import SourcePosition
from turnback.errors import (
    AlreadyExistsError,
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    NotFoundError,
    StillNeededError,
    StorageError,
)
from turnback.snapshot.directory import SavepointDirectory
from turnback.snapshot.metadata import SavedState, StatePart, file_name
from turnback.storage.envelope import digest
from turnback.storage.local import LocalStorage
from turnback.storage.open import MemoryStorage
from verification import verify_savepoint

PART, LOGGED = "state/op/state/u1.parquet", "sources/u2"


def written(storage):
    """A whole savepoint of two files."""
    storage.put(PART, b"part")
    storage.put(LOGGED, b"log")
    metadata = replace(
        METADATA,
        states=(SavedState(state_schema(), 1, (StatePart(PART, 4, digest(b"part"), 1, 0, 0),)),),
        sources={"src": SourcePosition(None, (replace(LOG, length=3, digest=digest(b"log")),))},
    )
    directory = SavepointDirectory(storage)
    directory.write_metadata(metadata)
    return directory, metadata


@pytest.fixture(params=["local", "memory"])
def storage(request, tmp_path):
    if request.param == "local":
        return LocalStorage(tmp_path / "sp")
    return MemoryStorage(request.node.name)


@pytest.mark.parametrize(
    "form", ["{}", "{}/", "{}/_metadata.json", "file://{}", "file://{}/_metadata.json"]
)
def test_it_is_found_by_its_directory_and_by_its_metadata(tmp_path, form):
    _, metadata = written(LocalStorage(tmp_path / "sp"))
    assert SavepointDirectory.locate(form.format(tmp_path / "sp")).load() == metadata


def test_it_is_found_by_path_objects_and_from_inside(tmp_path, monkeypatch):
    _, metadata = written(LocalStorage(tmp_path / "a b"))
    assert SavepointDirectory.locate(tmp_path / "a b").load() == metadata
    assert SavepointDirectory.locate(tmp_path / "a b" / "_metadata.json").load() == metadata
    assert SavepointDirectory.locate(f"file://{tmp_path}/a%20b/_metadata.json").load() == metadata
    monkeypatch.chdir(tmp_path / "a b")
    assert SavepointDirectory.locate("_metadata.json").load() == metadata
    assert SavepointDirectory.locate(".").load() == metadata


def test_uris_keep_their_scheme():
    written(MemoryStorage("sp-uri"))
    assert SavepointDirectory.locate("memory://sp-uri/_metadata.json").uri == "memory://sp-uri"
    found = SavepointDirectory.locate("s3://bucket/a/_metadata.json", {"region": "us-east-1"})
    assert found.uri == "s3://bucket/a"


def test_it_can_be_moved_as_a_whole(tmp_path):
    _, metadata = written(LocalStorage(tmp_path / "sp"))
    (tmp_path / "sp").rename(tmp_path / "elsewhere")
    moved = SavepointDirectory.locate(tmp_path / "elsewhere")
    assert moved.load() == metadata
    assert verify_savepoint(moved) == []


def test_nothing_there(storage):
    with pytest.raises(CheckpointNotFoundError, match=r"no savepoint at .*does not exist"):
        SavepointDirectory(storage).load()


def test_a_partial_savepoint_is_none(storage):
    storage.put(PART, b"part")
    for use in ("load", "delete"):
        with pytest.raises(CheckpointNotFoundError, match=r"partial savepoint.*interrupted"):
            getattr(SavepointDirectory(storage), use)()
    assert storage.list() == [PART]


def test_a_file_is_not_a_savepoint(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match=r"file is not a savepoint: use its directory"):
        SavepointDirectory.locate(tmp_path / "file")
    with pytest.raises(ConfigurationError, match=r"not a savepoint"):
        SavepointDirectory.locate(tmp_path / "file" / "_metadata.json")


def test_damaged_metadata_is_named(storage):
    directory, _ = written(storage)
    storage.put("_metadata.json", storage.get("_metadata.json")[:-5])
    with pytest.raises(CorruptFileError, match=r"_metadata.json is damaged"):
        directory.load()
    with pytest.raises(CorruptFileError):
        directory.delete()
    assert len(storage.list()) == 3


# -- writing


def test_a_second_savepoint_finds_no_room(storage):
    directory, metadata = written(storage)
    with pytest.raises(AlreadyExistsError, match=r"already contains a savepoint.*its own"):
        directory.write_metadata(replace(metadata, id="other"))
    assert directory.load() == metadata


class ReplyLost:
    """A storage whose first write happens, and fails."""

    def __init__(self, inner):
        self.inner, self.uri, self.failed = inner, inner.uri, False

    def put_if_absent(self, path, data):
        self.inner.put_if_absent(path, data)
        if not self.failed:
            self.failed = True
            raise StorageError("no answer")

    def __getattr__(self, name):
        return getattr(self.inner, name)


def test_a_lost_reply_is_not_taken_for_a_lost_race(request):
    storage = ReplyLost(MemoryStorage(request.node.name))
    _, metadata = written(storage)
    assert storage.failed
    assert SavepointDirectory(storage).load() == metadata


# -- verify


def test_an_intact_savepoint_has_no_problems(storage):
    directory, _ = written(storage)
    storage.put("state/op/state/stray", b"x")
    assert verify_savepoint(directory) == []


def test_every_problem_is_told(storage):
    directory, _ = written(storage)
    storage.put(PART, b"paRt")
    storage.delete(LOGGED)
    reasons = {problem.path: problem.reason for problem in verify_savepoint(directory)}
    assert set(reasons) == {PART, LOGGED}
    assert "checksum" in reasons[PART]
    assert f"{LOGGED} is missing" in reasons[LOGGED]
    storage.put(PART, b"part!")
    assert "5 bytes found" in next(p.reason for p in verify_savepoint(directory) if p.path == PART)


def test_a_file_behind_a_link_is_not_read(tmp_path):
    storage = LocalStorage(tmp_path / "sp")
    directory, _ = written(storage)
    (tmp_path / "secret").write_bytes(b"part")
    (tmp_path / "sp" / PART).unlink()
    (tmp_path / "sp" / PART).symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError):
        verify_savepoint(directory)


# -- delete


def test_delete_removes_what_is_named_and_nothing_else(storage):
    directory, _ = written(storage)
    storage.put("state/op/state/mine.txt", b"x")
    storage.put("README", b"x")
    directory.delete()
    assert storage.list() == ["README", "state/op/state/mine.txt"]


def test_delete_begins_with_the_metadata(request):
    inner = MemoryStorage(request.node.name)

    class Stops:
        uri, deleted = inner.uri, []

        def delete(self, path):
            self.deleted.append(path)
            inner.delete(path)
            raise StorageError("stopped")

        def __getattr__(self, name):
            return getattr(inner, name)

    written(inner)
    with pytest.raises(StorageError, match="stopped"):
        SavepointDirectory(Stops()).delete()
    assert Stops.deleted == ["_metadata.json"]
    with pytest.raises(CheckpointNotFoundError):
        SavepointDirectory(inner).load()


def test_a_file_that_is_gone_already_does_not_stop_it(storage):
    directory, _ = written(storage)
    storage.delete(PART)
    directory.delete()
    assert storage.list() == []
    with pytest.raises(NotFoundError):
        storage.get(LOGGED)


class TestWriting:
    """What keeps a directory from holding a mixture of two savepoints."""

    @pytest.fixture
    def directory(self, storage):
        return SavepointDirectory(storage)

    def test_a_new_directory_becomes_one(self, directory):
        assert directory.begin("1") is None
        directory.complete(METADATA)
        assert directory.load() == METADATA
        assert "_writing" not in directory.storage.list()

    def test_files_of_others_are_left_alone(self, directory):
        directory.storage.put("state/mine", b"x")
        with pytest.raises(ConfigurationError, match="not empty"):
            directory.begin("1")
        assert directory.storage.list() == ["state/mine"]

    def test_one_begun_by_a_driver_that_died_is_begun_anew(self, directory, storage):
        directory.begin(METADATA.id)
        half = f"state/{file_name(directory.writer, 'half')}"
        storage.put(half, b"x")
        with pytest.raises(ConfigurationError, match="not empty"):
            SavepointDirectory(storage).begin("2")
        successor = SavepointDirectory(storage)
        assert successor.begin(METADATA.id) is None
        assert half in storage.list()  # whoever wrote it may be alive, and about to complete it
        successor.complete(METADATA)
        assert storage.list() == ["_metadata.json"]

    def test_one_begun_before_names_told_writers_apart(self, directory, storage):
        storage.put("_writing", f"{METADATA.id} {'0' * 32}".encode())
        storage.put("state/half", b"x")
        assert directory.begin(METADATA.id) is None
        directory.complete(replace(METADATA, states=(), sources={}))
        assert storage.list() == ["_metadata.json"]

    def test_one_completed_by_a_driver_that_died_is_found(self, directory):
        directory.begin(METADATA.id)
        directory.write_metadata(METADATA)
        assert directory.begin(METADATA.id) == METADATA
        with pytest.raises(ConfigurationError, match="not empty"):
            directory.begin("another")

    def test_giving_up_leaves_nothing(self, directory):
        directory.begin("1")
        directory.storage.put(f"state/{file_name(directory.writer, 'half')}", b"x")
        directory.abandon()
        assert directory.storage.list() == []

    def test_files_of_tasks_that_were_tried_twice_are_swept(self, directory):
        directory.begin(METADATA.id)
        tried = f"state/op/state/{file_name(directory.writer, 'tried-before.parquet')}"
        for path in [*METADATA.files(), tried]:
            directory.storage.put(path, b"x")
        directory.complete(METADATA)
        assert set(directory.storage.list()) == {*METADATA.files(), "_metadata.json"}

    def test_a_driver_that_was_taken_for_dead_spoils_nothing(self, directory, storage):
        directory.begin(METADATA.id)
        storage.put(f"state/{file_name(directory.writer, 'old')}", b"x")
        successor = SavepointDirectory(storage)
        successor.begin(METADATA.id)
        new = f"state/{file_name(successor.writer, 'new')}"
        storage.put(new, b"x")
        directory.abandon()
        assert new in storage.list()
        successor.complete(METADATA)
        assert directory.complete(replace(METADATA, epoch=3)) == METADATA
        assert successor.load() == METADATA

    def test_what_may_be_complete_is_not_deleted(self, directory, storage, monkeypatch):
        """The storage does not say whether the metadata was written."""

        def lost(self, path, data):
            raise StorageError("no answer")

        directory.begin(METADATA.id)
        part = f"state/op/state/{file_name(directory.writer, 'part')}"
        storage.put(part, b"x")
        state = SavedState(state_schema(), 1, (StatePart(part, 1, digest(b"x"), 1, 0, 0),))
        with monkeypatch.context() as patch:
            patch.setattr(type(storage), "put_if_absent", lost)
            with pytest.raises(StorageError, match="no answer"):
                directory.complete(replace(METADATA, states=(state,), sources={}))
        directory.abandon()
        assert part in storage.list()

    def test_one_that_another_driver_is_still_writing_is_not_deleted(self, directory, storage):
        directory.begin(METADATA.id)
        other = SavepointDirectory(storage)
        other.begin(METADATA.id)
        storage.put(f"{PART}", b"x")
        other.write_metadata(METADATA)
        with pytest.raises(StillNeededError, match="may still be writing"):
            other.delete()
        assert other.load() == METADATA


def test_a_directory_with_links_in_it_is_no_savepoint(tmp_path):
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(CheckpointNotFoundError, match="not a savepoint"):
        SavepointDirectory.locate(tmp_path).load()
