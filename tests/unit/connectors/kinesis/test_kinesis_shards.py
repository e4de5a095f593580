from __future__ import annotations

from turnback.connectors.kinesis.client import EARLIEST, Shard, new_shards

ENDED = {"at": ["AFTER_SEQUENCE_NUMBER", "5"], "count": 3, "seen": 1, "ended": True}
OPEN = {"at": ["AFTER_SEQUENCE_NUMBER", "5"], "count": 3, "seen": 1}
A, B = Shard("a", ()), Shard("b", ())
CHILD = Shard("child", ("a",))
MERGED = Shard("merged", ("a", "b"))


def begins(known, *listed):
    return sorted(new_shards(known, listed, EARLIEST, 7))


def test_shards_without_parents_begin_at_once():
    assert new_shards({}, [A, CHILD], EARLIEST, 7) == {
        "a": {"at": ["TRIM_HORIZON", None], "count": 0, "seen": 7}
    }


def test_a_child_begins_when_its_parent_has_ended():
    assert begins({"a": OPEN}, A, CHILD) == []
    assert begins({"a": ENDED}, A, CHILD) == ["child"]
    assert begins({"a": ENDED, "child": OPEN}, A, CHILD) == []


def test_a_merged_shard_waits_for_both():
    assert begins({"a": ENDED, "b": OPEN}, A, B, MERGED) == []
    assert begins({"a": ENDED}, A, B, MERGED) == ["b"]
    assert begins({"a": ENDED, "b": ENDED}, A, B, MERGED) == ["merged"]


def test_a_parent_that_kinesis_has_forgotten_holds_nobody_back():
    assert begins({}, B, MERGED) == ["b"]
    assert begins({"b": ENDED}, B, MERGED) == ["merged"]
