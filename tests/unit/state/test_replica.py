from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import closing

import msgspec
import pytest

from turnback.errors import (
    ConfigurationError,
    CorruptFileError,
    IncompatibleStateError,
    NotFoundError,
    StateError,
)
from turnback.functions.descriptors import ListStateDescriptor, ValueStateDescriptor
from turnback.state import delta as delta_module
from turnback.state import replica as home_module
from turnback.state.replica import open_replica
from turnback.state.stores import Changes
from turnback.values.typeinfo import Types

COUNT = ValueStateDescriptor("count", Types.LONG())
KEYS = [f"k{i}" for i in range(20)]


def bump(h):
    h["count"].update((h["count"].value() or 0) + 1)


def read(h):
    return h["count"].value()


def bump_all(j, epochs=1):
    for _ in range(epochs):
        j.run([(k, bump) for k in KEYS])


def counts(j):
    return set(j.run([(k, read) for k in KEYS]))


def forget(j):
    """Look at the state from another machine."""
    j.root = j.root.with_name(j.root.name + "-other")


def test_a_store_left_in_place_is_used_as_it_is(job):
    j = job(COUNT)
    bump_all(j)
    assert counts(j) == {1}
    assert counts(j) == {1}
    assert j.found == ["home", "rebuilt", "home"]


def test_a_missing_store_is_rebuilt_from_all_files(job):
    j = job(COUNT)
    bump_all(j, 3)
    forget(j)
    assert counts(j) == {3}
    assert j.found[-1] == "rebuilt"


def test_a_store_behind_is_caught_up_even_inside_a_merged_file(job):
    j = job(COUNT)
    bump_all(j, 3)
    there = j.root
    forget(j)
    bump_all(j, 3)
    base, rest = j.files[:1], j.files[1:]
    j.merge(rest, final=False)
    assert [f.last_epoch for f in base + j.files] == [1, 1, 6]
    j.root = there  # was left at epoch 2
    assert counts(j) == {6}
    assert j.found[-1] == "caught-up"


def test_a_store_older_than_a_complete_file_is_rebuilt(job):
    """A complete file has no tombstones: applying it would leave removed keys alive."""
    j = job(COUNT)
    bump_all(j, 2)
    there = j.root
    forget(j)
    j.run([(KEYS[0], lambda h: h["count"].clear())])
    j.merge(j.files, final=True)
    j.root = there
    assert j.run([(KEYS[0], read), (KEYS[1], read)]) == [None, 2]
    assert j.found[-1] == "rebuilt"


def test_a_store_of_another_lineage_is_rebuilt(job):
    j = job(COUNT)
    bump_all(j, 2)
    snapshot = list(j.files)
    bump_all(j, 3)
    counts(j)
    j.files, j.epoch, j.line = snapshot, 2, "2-n"  # turned back
    j.run([("other", bump)])
    assert counts(j) == {2}
    bump_all(j, 5)
    assert counts(j) == {7}
    assert j.run([("other", read)]) == [1]


def test_a_store_of_another_lineage_is_rebuilt_even_when_files_were_merged(job):
    j = job(COUNT)
    bump_all(j, 2)
    snapshot = list(j.files)
    bump_all(j, 3)
    counts(j)  # the store is at epoch 5 of attempt 1
    there = j.root
    forget(j)
    j.files, j.epoch, j.line = snapshot, 2, "2-n"
    for _ in range(6):
        j.run([("other", bump)])
    j.merge(j.files[1:], final=False)
    j.root = there
    assert counts(j) == {2}
    assert j.found[-1] == "rebuilt"


@pytest.mark.parametrize("merged", [False, True])
def test_two_drivers_with_the_same_numbers_do_not_share_a_past(job, merged):
    """A copied job directory goes on with the numbers of the original, on the same machines."""
    original, copy = job(COUNT), job(COUNT)
    bump_all(original)
    copy.files, copy.blobs, copy.epoch = list(original.files), original.blobs, original.epoch
    copy.root, copy.made = original.root, 1000
    original.line, copy.line = "2-original", "2-copy"
    for _ in range(3):
        copy.run([(key, lambda h: h["count"].update(1_000_000)) for key in KEYS])
        bump_all(original)
    if merged:
        original.merge(original.files[1:], final=False)
    assert counts(original) == {4}
    assert counts(copy) == {1_000_000}
    assert copy.found[-1] == "rebuilt"


def test_a_store_is_caught_up_to_a_complete_file_of_its_own_past_or_rebuilt(job):
    j = job(COUNT)
    bump_all(j, 2)
    j.line = "2-n"
    bump_all(j)
    assert counts(j) == {3}
    complete = j.merge(j.files, final=True)
    assert complete.lineage == (("2-n", 3),)
    assert counts(j) == {3}
    assert j.found[-1] == "home"


def test_a_store_without_lineage_is_trusted_only_at_a_file_it_has_seen(job):
    j = job(COUNT)
    bump_all(j, 3)
    counts(j)
    j.files = [msgspec.structs.replace(f, lineage=()) for f in j.files]
    forget(j)
    counts(j)
    assert counts(j) == {3}
    assert j.found[-1] == "home"
    j.merge(j.files, final=False)
    assert counts(j) == {3}
    assert j.found[-1] == "rebuilt"


def test_other_groups_or_states_are_another_store(job):
    j = job(COUNT)
    bump_all(j)
    counts(j)
    j.descriptors.append(ValueStateDescriptor("more", str))
    assert counts(j) == {1}
    assert j.found[-1] == "rebuilt"
    j.max_parallelism, j.files = 32, []
    assert counts(j) == {None}


def test_a_job_with_no_files_never_sees_an_old_store(job):
    j = job(COUNT)
    bump_all(j)
    counts(j)
    j.files = []
    assert counts(j) == {None}


@pytest.mark.parametrize("harm", ["cut", "flip", "swap"])
def test_a_damaged_file_is_named_and_nothing_is_served(job, harm):
    j = job(COUNT)
    bump_all(j, 3)
    forget(j)
    bad, other = j.files[1].path, j.files[2].path
    data = j.blobs[bad]
    j.blobs[bad] = {
        "cut": data[:-1],
        "flip": data[:50] + bytes([data[50] ^ 1]) + data[51:],
        "swap": j.blobs[other],
    }[harm]
    with pytest.raises(CorruptFileError, match=bad):
        counts(j)
    j.blobs[bad] = data
    assert counts(j) == {3}


def test_a_store_whose_marker_is_damaged_is_rebuilt(job):
    j = job(COUNT)
    bump_all(j)
    backend, _ = j.backend()
    with closing(j.home(backend)) as held:
        intact = held.store.marker()
    for place in range(len(intact)):
        marker = bytearray(intact)
        marker[place] ^= 0xFF
        with closing(j.home(backend)) as held:
            held.store.write(Changes([], [], []), bytes(marker))
        assert counts(j) == {1}


def test_a_missing_file_is_an_error(job):
    j = job(COUNT)
    bump_all(j)

    def read_nothing(file):
        raise NotFoundError(file.path)

    backend, _ = j.backend()
    with pytest.raises(NotFoundError):
        open_replica(j.kind, j.root / "x", j.files, read_nothing, backend.schemas(), (0, 15))


@pytest.mark.parametrize(
    "other", [ValueStateDescriptor("count", str), ListStateDescriptor("count", Types.LONG())]
)
def test_state_of_another_type_is_refused(job, other):
    j = job(COUNT)
    bump_all(j)
    j.descriptors = [other]
    with pytest.raises(IncompatibleStateError, match=r"'count' of operator 'op'.*stored.*wanted"):
        counts(j)


def test_rows_of_states_nobody_wants_are_left_out(job):
    j = job(COUNT, ValueStateDescriptor("old", str))
    bump_all(j)
    j.run([("a", lambda h: h["old"].update("x"))])
    j.descriptors.pop()
    assert counts(j) == {1}
    backend, _ = j.backend()
    with closing(j.home(backend)) as home:
        assert len(list(home.store.scan(b""))) == len(KEYS) + 1


def test_rows_of_operators_that_do_not_count_in_a_file_are_left_out(job):
    j = job(COUNT)
    bump_all(j, 2)
    j.files[1] = msgspec.structs.replace(j.files[1], operators=())
    forget(j)
    assert counts(j) == {1}


def test_a_locked_store_is_left_alone_and_a_private_one_removed(job):
    j = job(COUNT)
    bump_all(j)
    backend, _ = j.backend()
    with closing(j.home(backend)) as held:
        assert counts(j) == {1}
        assert j.found[-1] == "rebuilt"
        assert held.store.marker() is not None
    assert counts(j) == {1}
    assert j.found[-1] == "home"
    assert sorted(p.name for p in j.root.iterdir()) == ["0-of-1", "0-of-1.lock"]


@pytest.mark.slow
def test_a_private_store_whose_owner_died_is_swept(job):
    j = job(COUNT)
    bump_all(j)
    script = f"""
        import os
        from pathlib import Path
        from turnback.state.replica import open_replica
        held = open_replica({j.kind!r}, Path({str(j.root / "0-of-1")!r}), [], None, [], (0, 15))
        other = open_replica({j.kind!r}, Path({str(j.root / "0-of-1")!r}), [], None, [], (0, 15))
        print(len(list(Path({str(j.root)!r}).glob("*private*"))), flush=True)
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == "2\n"
    assert counts(j) == {1}
    assert [p for p in j.root.iterdir() if "private" in p.name and p.is_dir()] == []


def test_rubbish_in_place_of_a_store_is_rebuilt(job):
    j = job(COUNT)
    bump_all(j)
    counts(j)
    for file in (j.root / "0-of-1").iterdir():
        if file.is_file():
            file.write_bytes(b"rubbish" * 1000)
    assert counts(j) == {1}
    assert j.found[-1] == "rebuilt"


def test_a_kill_in_the_middle_of_a_large_file_leads_to_a_rebuild(job, monkeypatch):
    j = job(COUNT)
    bump_all(j)
    counts(j)
    monkeypatch.setattr(delta_module, "BATCH_ROWS", 5)
    bump_all(j)

    real, calls = home_module.Applier.changes, []

    def dies(self, batch):
        calls.append(batch)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, batch)

    monkeypatch.setattr(home_module.Applier, "changes", dies)
    with pytest.raises(KeyboardInterrupt):
        counts(j)
    monkeypatch.setattr(home_module.Applier, "changes", real)
    j.files = j.files[:1]  # and the job is turned back before it was finished
    assert counts(j) == {1}
    assert j.found[-1] == "rebuilt"


def test_a_kill_between_two_files_of_one_epoch_leads_to_a_rebuild(job, monkeypatch):
    """After a rescale, an epoch of one partition is in the files of several older ones."""
    j = job(COUNT, parallelism=2)
    bump_all(j)
    assert [f.last_epoch for f in j.files] == [1, 1]
    j.parallelism = 1
    read_file, calls = j.read, []

    def dies(file):
        calls.append(file)
        if len(calls) == 2:
            raise NotFoundError("the machine is gone")
        return read_file(file)

    monkeypatch.setattr(j, "read", dies)
    with pytest.raises(NotFoundError):
        counts(j)
    monkeypatch.undo()
    assert counts(j) == {1}


def test_a_store_that_failed_is_rebuilt_next_time(job):
    j = job(COUNT)
    bump_all(j)
    backend, handles = j.backend()
    home = j.home(backend)
    backend.begin(home.store, 2)
    home.store._get = _fails(home.store)
    backend.key = KEYS[0]
    with pytest.raises(StateError, match="cannot read"):
        handles["count"].value()
    home.close()
    assert counts(j) == {1}
    assert j.found[-1] == "rebuilt"


def _fails(store):
    import lmdb

    def get(key):
        raise lmdb.Error("broken")

    return get


def test_a_store_of_another_boot_is_not_trusted_in_memory(job, monkeypatch):
    j = job(COUNT)
    bump_all(j)
    counts(j)
    monkeypatch.setattr(home_module, "_boot_id", lambda: "another")
    assert counts(j) == {1}
    assert j.found[-1] == ("rebuilt" if j.kind == "hashmap" else "home")


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="hashmap and rocksdb"):
        open_replica("redis", tmp_path / "x", [], lambda f: b"", [], (0, 1))


def test_inline_files_need_no_reading(job):
    j = job(COUNT)
    bump_all(j)
    j.files = [msgspec.structs.replace(f, inline=j.blobs.pop(f.path)) for f in j.files]
    assert counts(j) == {1}


def test_a_store_filled_under_another_layout_is_rebuilt(job, tmp_path):
    j = job(COUNT)
    bump_all(j)
    backend, _ = j.backend()
    for layout, found in (("op:2", "rebuilt"), ("op:2", "home"), ("op:3", "rebuilt")):
        home = open_replica(
            j.kind, tmp_path / "home", j.files, j.read, backend.schemas(), (0, 15), layout=layout
        )
        with closing(home):
            assert home.opening == found
