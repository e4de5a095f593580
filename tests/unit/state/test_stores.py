from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from turnback.core.errors import StateError
from turnback.state.stores import Changes, HashMapStore, RocksStore, prefix_end


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
    for file in (tmp_path / "s").iterdir():
        if file.is_file():
            file.write_bytes(b"rubbish" * 1000)
    with pytest.raises(StateError, match="cannot open"):
        make(tmp_path / "s")


@pytest.mark.parametrize("prefix, end", [(b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None)])
def test_after_is_the_first_key_behind_a_prefix(prefix, end):
    assert prefix_end(prefix) == end


@pytest.mark.slow
@pytest.mark.parametrize("name", ["HashMapStore", "RocksStore"])
def test_a_killed_process_leaves_a_whole_batch(name, tmp_path):
    """Batches of 50 keys, all with the batch's number: after a kill they agree with the marker."""
    script = f"""
        import sys
        from pathlib import Path
        from turnback.state.stores import Changes, {name}
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
        from turnback.core.errors import StateError
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
    monkeypatch.setattr("turnback.state.stores._BLOCK_CACHE", 3 << 20)
    for _ in range(2):
        store = RocksStore(tmp_path / "s")
        assert store._db.property_value("rocksdb.block-cache-capacity") == str(3 << 20)
        store.close()
    log = (tmp_path / "s" / "LOG").read_text()
    assert "filter_policy: bloomfilter" in log


def test_unsorted_files_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setattr("turnback.state.stores._MAX_UNSORTED", 4)
    for n in range(30):
        store = RocksStore(tmp_path / "s")
        put(store, {b"key-%06d" % i: b"%d" % n for i in range(200)})
        store.close()
    store = RocksStore(tmp_path / "s")
    assert store._unsorted() <= 5
    assert {value for _, value in store.scan(b"key-")} == {b"29"}
    store.close()
