from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from turnback.errors import StateError
from turnback.state import rocks_store
from turnback.state.rocks_store import RocksStore
from turnback.state.stores import Changes, HashMapStore, prefix_end


@pytest.fixture(params=[HashMapStore, RocksStore])
def make(request):
    return request.param


def put(store, entries, marker=b"m", clears=()):
    store.write(Changes(list(clears), list(entries), list(entries.values())), marker)


def test_what_was_written_is_there_after_a_reopening(make, tmp_path):
    store = make(tmp_path / "s")
    assert store.marker() is None
    assert list(store.scan(b"")) == []
    put(store, {b"key-000001": b"1", b"key-000002": b""}, b"m1")
    store.settle()
    assert store.get(b"key-000001") == b"1"
    store.close()
    store = make(tmp_path / "s")
    assert (store.marker(), store.get(b"key-000002"), store.get(b"other")) == (b"m1", b"", None)
    put(store, {b"key-000001": None}, b"m2")
    assert (store.marker(), store.get(b"key-000001")) == (b"m2", None)
    store.close()


def test_scan_gives_exactly_what_is_below_the_prefix_in_order(make, tmp_path):
    store = make(tmp_path / "s")
    keys = [b"a\xff\xff", b"a\xff\xff\x00", b"a\xff\xff\xff", b"a\xff\xfe", b"b", b"\xff\xff"]
    put(store, {key: b"v" + key for key in keys})
    assert [k for k, _ in store.scan(b"a\xff\xff")] == [
        b"a\xff\xff",
        b"a\xff\xff\x00",
        b"a\xff\xff\xff",
    ]
    assert list(store.scan(b"\xff")) == [(b"\xff\xff", b"v\xff\xff")]
    assert list(store.scan(b"c")) == []
    store.close()


def test_many_are_got_as_one_by_one(make, tmp_path):
    store = make(tmp_path / "s")
    put(store, {b"key-000001": b"1", b"key-000002": b"", b"key-000003": b"3"})
    asked = [b"key-000003", b"missing", b"key-000002", b"key-000001", b"key-000003"]
    assert store.get_many(asked) == [b"3", None, b"", b"1", b"3"] == list(map(store.get, asked))
    assert store.get_many([]) == []
    store.close()


def test_clears_come_before_puts_and_touch_nothing_else(make, tmp_path):
    store = make(tmp_path / "s")
    put(store, {b"a1": b"1", b"a2": b"2", b"b1": b"3"})
    put(store, {b"a2": b"new"}, clears=[b"a", b"none"])
    assert list(store.scan(b"a")) == [(b"a2", b"new")]
    assert store.get(b"b1") == b"3"
    store.close()


@pytest.mark.slow
def test_a_value_of_64_mib_comes_back_exactly(make, tmp_path):
    big = os.urandom(1 << 20) * 64
    store = make(tmp_path / "s")
    put(store, {b"big": big, b"small": b"s"})
    store.close()
    store = make(tmp_path / "s")
    assert store.get(b"big") == big
    assert [len(value) for _, value in store.scan(b"big")] == [len(big)]
    store.close()


def test_the_memory_store_grows_as_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("turnback.state.stores._SMALLEST_MAP", 1 << 20)
    store = HashMapStore(tmp_path / "s")
    for i in range(5):
        put(store, {b"%d-%d" % (i, n): b"v" * 1000 for n in range(2000)}, b"%d" % i)
    assert len(list(store.scan(b""))) == 10_001
    store.close()
    store = HashMapStore(tmp_path / "s")
    assert store.marker() == b"4"
    put(store, {b"x": b"v" * (20 << 20)})
    store.close()


def test_a_store_of_rubbish_refuses_to_open(make, tmp_path):
    store = make(tmp_path / "s")
    put(store, {b"k" * 9: b"v"})
    store.close()
    files = [*(tmp_path / "s").iterdir(), *rocks_store.metadata_directory(tmp_path / "s").glob("*")]
    # Metadata that does not name its tables is swept by whatever store is made next, anywhere.
    left = ("NUMBER", rocks_store._TABLES)
    for file in files:
        if file.is_file() and file.name not in left:
            file.write_bytes(b"rubbish" * 1000)
    with pytest.raises(StateError, match="cannot open"):
        make(tmp_path / "s")


@pytest.mark.parametrize("prefix, end", [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None)])
def test_after_is_the_first_key_behind_a_prefix(prefix, end):
    assert prefix_end(prefix) == end


def test_entries_that_are_loaded(make, tmp_path):
    """Sorted or not, many or few, over others and under others, in the order of the calls."""
    keys = [b"key-%06d" % i for i in range(5_000)]
    store = make(tmp_path / "s")
    store.load(Changes([], keys[::-1], [b"1"] * 5_000), b"unfinished")
    assert store.marker() == b"unfinished"
    store.load(Changes([], keys[:3_000], [b"2"] * 3_000), b"unfinished")
    store.load(Changes([], keys[:10], [b"3"] * 10), b"unfinished")
    store.load(Changes([b"key-004"], keys[:5], [None] * 5), b"finished")
    store.write(Changes([], keys[20:21], [b"4"]), b"later")
    expected = {key: b"2" if key < b"key-003" else b"1" for key in keys if key < b"key-004"}
    expected |= dict.fromkeys(keys[5:10], b"3") | {keys[20]: b"4"}
    for key in keys[:5]:
        del expected[key]
    for _ in range(2):
        assert dict(store.scan(b"key")) == expected
        assert store.marker() == b"later"
        store.close()
        assert not [*(tmp_path / "s").glob("*.load")]
        store = make(tmp_path / "s")
    store.close()


def test_a_process_that_dies_while_it_loads_leaves_no_marker(tmp_path):
    script = """
        import os, sys
        from pathlib import Path
        from turnback.state.rocks_store import RocksStore
        from turnback.state.stores import Changes
        store = RocksStore(Path(sys.argv[1]))
        write, store.write = store.write, lambda changes, marker: os._exit(9)
        store.load(Changes([], [b"key-%06d" % i for i in range(5_000)], [b"1"] * 5_000), b"done")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "s")]
    assert subprocess.run(command, check=False).returncode == 9
    store = RocksStore(tmp_path / "s")
    assert len([*store.scan(b"key")]) == 5_000, "what was loaded is there at once"
    assert store.marker() is None
    store.close()


def test_a_table_that_cannot_be_loaded(tmp_path):
    store = RocksStore(tmp_path / "s")
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(StateError, match="cannot load the RocksDB store"):
        store.load(Changes([], [b"key-%06d" % i for i in range(5_000)], [b"1"] * 5_000), b"m")
    assert store.broken


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HashMapStore", "RocksStore"])
def test_a_killed_process_leaves_a_whole_batch(name, tmp_path):
    """Batches of 50 keys, all with the batch's number: after a kill they agree with the marker."""
    script = f"""
        import sys
        from pathlib import Path
        from turnback.state.rocks_store import RocksStore
        from turnback.state.stores import Changes, HashMapStore
        store = {name}(Path(sys.argv[1]))
        for n in range(10**9):
            value = b"%d" % n
            keys = [b"key-%06d" % i for i in range(50)]
            store.write(Changes([], keys, [value + b" " * 2000] * 50), value)
            if n % 10 == 0:
                store.settle()
            if n == 60:
                print("far enough", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "far enough\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = {"HashMapStore": HashMapStore, "RocksStore": RocksStore}[name](tmp_path / "s")
    marker = store.marker()
    assert marker is not None
    assert {value.rstrip() for _, value in store.scan(b"key-")} == {marker}
    assert len(list(store.scan(b"key-"))) == 50
    store.close()


@pytest.mark.slow
def test_a_full_memory_is_told_and_leaves_the_store_as_it_was(tmp_path):
    script = """
        import resource, sys
        from pathlib import Path
        from turnback.errors import StateError
        from turnback.state.stores import HashMapStore
        from turnback.state.stores import Changes
        store = HashMapStore(Path(sys.argv[1]))
        store.write(Changes([], [b"key-000001"], [b"1"]), b"m1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            store.write(Changes([], [b"key-000001"], [b"2" * (4 << 20)]), b"m2")
        except StateError as e:
            print(store.broken, e)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "True cannot write the memory store" in done.stdout
    assert "use the rocksdb backend" in done.stdout
    store = HashMapStore(tmp_path / "s")
    assert (store.marker(), store.get(b"key-000001")) == (b"m1", b"1")
    store.close()


def test_options_hold_for_a_store_that_is_there_already(tmp_path, monkeypatch):
    monkeypatch.setattr("turnback.state.rocks_store._BLOCK_CACHE", 3 << 20)
    for _ in range(2):
        store = RocksStore(tmp_path / "s")
        assert store._db.property_value("rocksdb.block-cache-capacity") == str(3 << 20)
        store.close()
    log = (rocks_store.metadata_directory(tmp_path / "s") / "LOG").read_text()
    assert "filter_policy: bloomfilter" in log


def filled(path):
    store = RocksStore(path)
    put(store, {b"key-%06d" % i: b"v" * 100 for i in range(2000)})
    store.settle()
    store.close()


def entries(path):
    store = RocksStore(path)
    count = sum(1 for _ in store.scan(b"key-"))
    store.close()
    return count


class TestMetadataInSharedMemory:
    """A store is whole or empty, whatever becomes of one of its halves."""

    def test_only_tables_are_on_disk(self, tmp_path):
        filled(tmp_path / "s")
        kinds = {path.suffix for path in (tmp_path / "s").iterdir()}
        assert kinds == {".sst", ""}
        assert {path.name for path in (tmp_path / "s").iterdir() if not path.suffix} == {"NUMBER"}
        assert entries(tmp_path / "s") == 2000

    def test_shared_memory_is_lost_as_after_a_reboot(self, tmp_path):
        filled(tmp_path / "s")
        shutil.rmtree(rocks_store.metadata_directory(tmp_path / "s"))
        assert entries(tmp_path / "s") == 0
        assert not list((tmp_path / "s").glob("*.sst"))

    def test_the_tables_are_lost(self, tmp_path):
        filled(tmp_path / "s")
        shutil.rmtree(tmp_path / "s")
        assert entries(tmp_path / "s") == 0

    def test_a_machine_with_other_shared_memory_has_used_the_directory(self, tmp_path, monkeypatch):
        filled(tmp_path / "s")
        (tmp_path / "other").mkdir()
        with monkeypatch.context() as other:
            other.setattr(rocks_store, "SHARED_MEMORY", tmp_path / "other")
            assert entries(tmp_path / "s") == 0
            filled(tmp_path / "s")
        assert entries(tmp_path / "s") == 0

    def test_a_copy_of_the_directory(self, tmp_path):
        filled(tmp_path / "s")
        shutil.copytree(tmp_path / "s", tmp_path / "copy")
        assert entries(tmp_path / "copy") == 0
        assert entries(tmp_path / "s") == 2000

    @pytest.mark.parametrize("why", ["none", "full", "of another user"])
    def test_it_cannot_be_used(self, why, tmp_path, monkeypatch):
        filled(tmp_path / "before")
        if why == "none":
            monkeypatch.setattr(rocks_store, "SHARED_MEMORY", tmp_path / "nowhere")
        elif why == "full":
            monkeypatch.setattr(rocks_store, "_LEAST_ROOM", 1 << 62)
        else:
            monkeypatch.setattr(rocks_store.os, "getuid", lambda: 12345)
        filled(tmp_path / "s")
        assert (tmp_path / "s" / "CURRENT").exists()
        assert entries(tmp_path / "s") == 2000
        assert entries(tmp_path / "before") == (2000 if why == "full" else 0)

    def test_a_store_of_an_earlier_version_is_rebuilt(self, tmp_path, monkeypatch):
        with monkeypatch.context() as before:
            before.setattr(rocks_store, "SHARED_MEMORY", tmp_path / "nowhere")
            filled(tmp_path / "s")
        assert entries(tmp_path / "s") == 0

    def test_nothing_is_left_of_stores_that_are_gone(self, tmp_path):
        filled(tmp_path / "s")
        filled(tmp_path / "t")
        rocks_store.remove_store(tmp_path / "t")
        assert not rocks_store.metadata_directory(tmp_path / "t").exists()
        shutil.rmtree(tmp_path / "s")
        filled(tmp_path / "u")
        assert not rocks_store.metadata_directory(tmp_path / "s").exists()
        assert rocks_store.metadata_directory(tmp_path / "u").exists()


def test_unsorted_files_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr("turnback.state.rocks_store._MAX_UNSORTED", 4)
    for n in range(30):
        store = RocksStore(tmp_path / "s")
        put(store, {b"key-%06d" % i: b"%d" % n for i in range(200)})
        store.close()
    store = RocksStore(tmp_path / "s")
    assert store._unsorted() <= 5
    assert {value for _, value in store.scan(b"key-")} == {b"29"}
    store.close()
