"""Source positions between Spark's scratch directory and the manifest."""

from __future__ import annotations

import json

import pytest

from turnback.checkpoint.manifest import LogFile, SourcePosition
from turnback.driver.positions import Positions
from turnback.errors import CheckpointError, CorruptFileError
from turnback.spark.session import Scratch
from turnback.storage.open import MemoryStorage


@pytest.fixture
def storage(request):
    return MemoryStorage(request.node.name)


@pytest.fixture
def scratch():
    made = Scratch({"files": "0", "rate": "1", "new": "2"})
    yield made
    made.remove()
    assert not made.path.exists()


def entry(name, batch):
    return json.dumps({"path": f"file:///{name}", "timestamp": 1, "batchId": batch})


class TestScratch:
    def test_a_fresh_start_is_left_to_spark(self, scratch):
        scratch.seed({}, {})
        assert list(scratch.path.iterdir()) == []

    def test_seeded_as_batch_0_in_the_programs_order(self, scratch):
        scratch.seed({"rate": "7", "files": '{"logOffset":41}'}, {"files": [entry("a", 41)]})
        lines = (scratch.path / "offsets" / "0").read_text().split("\n")
        assert lines[0] == "v1"
        assert lines[2:] == ['{"logOffset":0}', "7", "-"]  # Spark compares the text
        assert (scratch.path / "commits" / "0").read_text().startswith("v1\n")
        assert json.loads((scratch.path / "metadata").read_text())["id"]
        version, seen = (scratch.path / "sources" / "0" / "0").read_text().split("\n")
        assert version == "v1"
        assert json.loads(seen) == {"path": "file:///a", "timestamp": 1, "batchId": 0}
        assert scratch.offsets(0) == {"files": '{"logOffset":0}', "rate": "7", "new": None}

    def test_what_turnback_adds_to_entries_is_not_given_to_spark(self, scratch):
        sized = json.dumps({**json.loads(entry("a", 3)), "size": 7})
        scratch.seed({"files": '{"logOffset":3}'}, {"files": [sized]})
        _, seen = (scratch.path / "sources" / "0" / "0").read_text().split("\n")
        assert seen == entry("a", 0)

    def test_a_format_of_another_spark_is_refused(self, scratch):
        scratch._write("offsets/3", "v2\n{}\n1\n2\n3")
        with pytest.raises(CheckpointError, match=r"batch 3 has 3 positions in format 'v2'"):
            scratch.offsets(3)
        scratch._write("offsets/3", "v1\n{}\n1\n2")
        with pytest.raises(CheckpointError, match=r"2 positions.*expected 3"):
            scratch.offsets(3)

    def test_the_list_of_files_seen_with_and_without_compaction(self, scratch):
        assert scratch.log_entries("rate", -1, 5) is None
        scratch._write("sources/0/0", f"v1\n{entry('a', 0)}")
        scratch._write("sources/0/2", f"v1\n{entry('b', 2)}\n{entry('c', 2)}")
        whole = "\n".join([entry("a", 0), entry("b", 2), entry("c", 2), entry("d", 9)])
        scratch._write("sources/0/9.compact", f"v1\n{whole}")
        assert scratch.log_entries("files", -1, 2) == [entry("a", 0), entry("b", 2), entry("c", 2)]
        assert scratch.log_entries("files", 2, 9) == [entry("d", 9)]


class TestPositions:
    def advance(self, positions, number, entries):
        offsets = {"files": json.dumps({"logOffset": number}), "rate": str(number)}
        read = lambda leaf, after, upto: entries if leaf == "files" else None  # noqa: E731
        return positions.advance(offsets, read)

    def read(self, storage, position: SourcePosition):
        return [e for log in position.log for e in storage.get(log.path).decode().split("\n")]

    def test_everything_seen_is_there_in_few_files(self, storage):
        positions, seen = Positions(storage, 3), []
        for number in range(200):
            seen.append(entry(f"f{number}", number))
            found = self.advance(positions, number, seen[-1:])
            assert self.read(storage, found["files"]) == seen
            assert len(found["files"].log) <= 9
        assert found["rate"] == SourcePosition("199")
        assert all(log.path.startswith("offsets/3/") for log in found["files"].log)
        written = sum(len(storage.get(p)) for p in storage.list("offsets"))
        assert written < 10 * sum(map(len, seen))  # each entry is rewritten rarely

    def test_an_epoch_without_new_files_writes_nothing(self, storage):
        positions = Positions(storage, 1)
        before = self.advance(positions, 0, [entry("a", 0)])
        files = storage.list()
        assert self.advance(positions, 0, [])["files"].log == before["files"].log
        assert storage.list() == files

    def test_a_restored_list_goes_on(self, storage):
        before = self.advance(Positions(storage, 1), 4, [entry("a", 4), entry("b", 4)])
        again = Positions(storage, 2)
        assert again.restore(before) == {"files": [entry("a", 4), entry("b", 4)]}
        asked = []

        def read(leaf, after, upto):
            asked.append((leaf, after, upto))
            return [entry("c", 1)] if leaf == "files" else None

        after = again.advance({"files": '{"logOffset":1}', "rate": "9"}, read)
        assert asked == [("files", 0, 1)]  # number 0 is what was seeded
        names = [json.loads(e)["path"] for e in self.read(storage, after["files"])]
        assert names == ["file:///a", "file:///b", "file:///c"]

    def test_a_damaged_list_is_named(self, storage):
        before = self.advance(Positions(storage, 1), 0, [entry("a", 0)])
        (log,) = before["files"].log
        storage.put(log.path, storage.get(log.path).replace(b"a", b"b"))
        with pytest.raises(CorruptFileError, match=log.path):
            Positions(storage, 2).restore(before)

    def test_a_source_that_was_never_read(self, storage):
        found = Positions(storage, 1).advance({"files": None}, lambda *_: [])
        assert found == {"files": SourcePosition(None)}
        assert LogFile("n", "p", 1, "d") not in found["files"].log
