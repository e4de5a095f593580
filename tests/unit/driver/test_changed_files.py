"""Files that were changed after they were read, found by Spark's list of files seen."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from turnback.checkpoint.manifest import SourcePosition
from turnback.driver.positions import Positions
from turnback.driver.source_monitor import FilesWatch, SeenFiles
from turnback.errors import PlanError
from turnback.plan.sources import (
    ChangedFilesPolicy,
    WatchedFiles,
    changed_files_text,
    unwatched_files,
    watched_files,
)
from turnback.storage.open import MemoryStorage

MS = 1_700_000_000_123


def entry(path: Path, changed_ms: int, batch: int = 0) -> str:
    return json.dumps({"path": path.as_uri(), "timestamp": changed_ms, "batchId": batch})


class Watched:
    """A directory, of which files have been read batch by batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.storage = MemoryStorage(f"watched{directory}")
        self.positions = Positions(self.storage, 1, sized=["in"])
        self.log = ()
        self.told: list[list[str]] = []
        files = WatchedFiles(str(directory), ChangedFilesPolicy.WARN)
        self.watch = FilesWatch(files, SeenFiles(self.storage), lambda: self.log, self.told.append)

    def write(self, name: str, changed_ms: int = MS, text: str = "x") -> Path:
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(0, changed_ms * 1_000_000))
        return path

    def read(
        self, batch: int, *entries: str, meanwhile: Callable[[], object] | None = None
    ) -> None:
        offsets = {"in": json.dumps({"logOffset": batch})}
        read = lambda leaf, after, upto: list(entries)  # noqa: E731
        self.positions.new_entries(offsets, read)
        if meanwhile is not None:
            meanwhile()
        self.log = self.positions.advance(offsets, read)["in"].log

    def look(self) -> list[str]:
        del self.told[:]
        self.watch.look(self.log)
        return [Path(path).name for told in self.told for path in told]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    (tmp_path / "in").mkdir()
    return Watched(tmp_path / "in")


def test_what_is_replaced_or_appended_to_is_told_once(watched: Watched) -> None:
    names = ["a.json", "b with % and ä.json", "day=1/c.json", "d.json"]
    paths = [watched.write(name) for name in names]
    watched.read(0, *(entry(path, MS) for path in paths))
    watched.write("not-read-yet.json", MS + 5)
    assert watched.look() == []
    watched.write("a.json", MS - 5)  # an older one was moved there
    watched.write("b with % and ä.json", MS + 1)
    watched.write("day=1/c.json", MS + 1)
    assert sorted(watched.look()) == ["a.json", "b with % and ä.json", "c.json"]
    assert watched.look() == []
    (watched.directory / "d.json").unlink()
    assert watched.look() == []


def test_a_list_that_is_merged_on_the_way_is_followed(watched: Watched) -> None:
    for number in range(40):
        path = watched.write(f"{number}.json")
        watched.read(number, entry(path, MS, number))
        assert watched.look() == []
    watched.write("0.json", MS + 1)
    watched.write("39.json", MS + 1)
    assert watched.look() == ["0.json", "39.json"]


def test_what_is_known_is_not_read_again(watched: Watched) -> None:
    watched.read(0, *(entry(watched.write(f"{n}.json"), MS) for n in range(100)))
    watched.look()
    for part in watched.log:
        watched.storage.delete(part.path)
    watched.write("7.json", MS + 1)
    assert watched.look() == ["7.json"]


def test_times_in_whole_seconds_are_compared_as_such(watched: Watched) -> None:
    path = watched.write("a.json", 1_700_000_000_999)
    watched.read(0, entry(path, 1_700_000_000_000))
    assert watched.look() == []
    watched.write("a.json", 1_700_000_001_000)
    assert watched.look() == ["a.json"]


@pytest.mark.parametrize("later_ms", [0, 900])
def test_a_change_that_the_time_does_not_tell_is_told_by_the_size(
    watched: Watched, later_ms: int
) -> None:
    """A copy keeps the time of its original, and 900 ms are nothing in whole seconds."""
    whole_ms = 1_700_000_000_000
    path = watched.write("a.json", whole_ms, "first")
    watched.read(0, entry(path, whole_ms))
    assert watched.look() == []
    watched.write("a.json", whole_ms + later_ms, "second")
    assert watched.look() == ["a.json"]
    assert watched.look() == []


def test_what_is_appended_while_it_is_read_is_told(watched: Watched) -> None:
    path = watched.write("a.json")
    other = watched.write("b.json")
    grow = lambda: watched.write("a.json", text="xx")  # noqa: E731
    watched.read(0, entry(path, MS), entry(other, MS), meanwhile=grow)
    assert watched.look() == ["a.json"]


def test_without_sizes_as_in_older_positions_only_times_are_compared(watched: Watched) -> None:
    old = Positions(watched.storage, 1)
    watched.positions = old
    watched.read(0, *(entry(watched.write(name), MS) for name in ("a.json", "b.json")))
    newer = Positions(watched.storage, 2, sized=["in"])
    newer.restore({"in": SourcePosition('{"logOffset": 0}', watched.log)})
    watched.positions = newer
    watched.read(1, entry(watched.write("c.json"), MS, 1))
    assert watched.look() == []
    watched.write("a.json", text="another size")
    watched.write("b.json", MS + 1)
    watched.write("c.json", text="another size")
    assert watched.look() == ["b.json", "c.json"]


def test_a_file_that_is_gone_before_it_is_read_has_no_size(watched: Watched) -> None:
    path = watched.write("a.json")
    path.unlink()
    watched.read(0, entry(path, MS))
    watched.write("a.json", text="it is back")
    assert watched.look() == []


def test_a_single_file(watched: Watched) -> None:
    path = watched.write("a.json")
    watched.read(0, entry(path, MS))
    watched.watch._watched = WatchedFiles(str(path), ChangedFilesPolicy.WARN)
    assert watched.look() == []
    watched.write("a.json", MS + 1)
    assert watched.look() == ["a.json"]


def test_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    warn = ChangedFilesPolicy.WARN
    assert watched_files("in/../in", "warn") == WatchedFiles(str(tmp_path / "in"), warn)
    assert watched_files("file:///a%20b", "warn") == WatchedFiles("/a b", warn)
    assert watched_files("in", "ignore") is None
    assert watched_files("s3://bucket/in", "warn") is None
    with pytest.raises(PlanError, match="only detected in local files"):
        watched_files("s3://bucket/in", "fail")
    with pytest.raises(PlanError, match="takes one of 'warn', 'fail', 'ignore', got 'error'"):
        watched_files("in", "error")


def test_files_elsewhere_are_told_not_to_be_looked_at() -> None:
    assert unwatched_files("s3://bucket/in", "warn") == "s3://bucket/in"
    assert unwatched_files("s3://bucket/in", "ignore") == ""
    assert unwatched_files("in", "warn") == unwatched_files("file:///in", "warn") == ""


def test_only_some_are_named() -> None:
    text = changed_files_text("in", [f"/in/{n}" for n in range(1_005)])
    assert text.startswith("source 'in': 1,005 files were changed after being read")
    assert text.endswith("/in/0, /in/1, /in/2 and 1,002 more")
