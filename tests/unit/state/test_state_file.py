from __future__ import annotations

import msgspec

from turnback.state.files import StateFile, in_order, merged_lineage


def file(first, last, lineage=()):
    return StateFile("p", 1, "d", 1, first, last, 0, 9, ("op",), lineage=lineage)


def test_it_travels_as_json_and_messagepack():
    one = msgspec.structs.replace(file(1, 2, (("1-n", 2),)), inline=b"\0\xff")
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(one), type=StateFile) == one


def test_line_at_knows_only_epochs_in_the_file():
    one = file(3, 9, (("1", 4), ("3", 9)))
    assert [one.line_at(e) for e in (2, 3, 4, 5, 9, 10)] == [None, "1", "1", "3", "3", None]
    assert file(3, 9).line_at(4) is None


def test_numbers_of_attempts_in_files_of_older_versions_prove_nothing():
    """Two drivers may have had the same number, so a store is trusted by its path alone."""
    old = b"""{"path": "p", "length": 1, "digest": "d", "rows": 1, "first_epoch": 3,
        "last_epoch": 9, "first_group": 0, "last_group": 9, "operators": ["op"],
        "lineage": [[1, 4], [3, 9]]}"""
    assert msgspec.json.decode(old, type=StateFile) == file(3, 9)


def test_lineages_join_without_growing_per_epoch():
    files = [file(e, e, (("1" if e < 5 else "2", e),)) for e in range(1, 9)]
    both = (("1", 4), ("2", 8))
    assert merged_lineage(files) == both
    assert merged_lineage([file(1, 4, (("1", 4),)), file(5, 8, both)]) == both
    assert merged_lineage(files, complete=True) == (("2", 8),)


def test_order_is_by_last_then_first_epoch():
    files = [file(9, 9), file(1, 9), file(5, 8)]
    assert [(f.first_epoch, f.last_epoch) for f in in_order(files)] == [(5, 8), (1, 9), (9, 9)]
