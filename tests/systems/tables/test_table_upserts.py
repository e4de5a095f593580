"""Rows that replace those with the same key, in tables of every format."""

import pyarrow as pa
import pytest
from table_support import A, B, C, Job, posts

from turnback.connectors.tables.compaction import ConflictError
from turnback.errors import ConfigurationError, NullKeyError
from turnback.sinks.base import version_of


@pytest.fixture
def upserts(place):
    return Job(place, mode="upsert", key=["post"])


def test_rows_with_a_known_key_are_replaced(upserts):
    committer = upserts.start()
    committer.commit([upserts.write(A, B)])
    committer.commit([upserts.write(("a", 9, "wed"), C, epoch=8)])
    assert upserts.rows() == [("a", 9, "wed"), B, C]


def test_the_last_element_of_a_key_counts(upserts):
    committer = upserts.start()
    first = upserts.write(("a", 1, None), ("b", 1, None), ("a", 2, None))
    second = upserts.write(("a", 3, None), ("a", 4, None), epoch=8)
    committer.commit([first, second])
    assert upserts.rows() == [("a", 4, None), ("b", 1, None)]


def test_an_old_upsert_that_comes_again_changes_nothing(upserts):
    committer = upserts.start()
    old, new = upserts.write(("a", 1, None)), upserts.write(("a", 2, None), epoch=8)
    committer.commit([old])
    committer.commit([new])
    committer.commit([old])
    upserts.start(4, [old]).commit([old])
    assert upserts.rows() == [("a", 2, None)]


def test_upserts_leave_nothing_staged(upserts):
    committer = upserts.start()
    committer.commit([upserts.write(A)])
    upserts.write(B, epoch=8)
    upserts.start(4)
    hidden = upserts.place.root / ".turnback"
    assert [path.name for path in hidden.rglob("*") if path.is_file()] == [".owner"]


def test_a_null_key_is_refused(upserts):
    upserts.start()
    with pytest.raises(NullKeyError, match="the key column 'post' is null"):
        upserts.write((None, 1, None))


def test_a_change_of_mode_is_refused_while_output_is_promised(upserts):
    upserts.start()
    promised = upserts.write(A)
    with pytest.raises(ConfigurationError, match="in the other mode"):
        Job(upserts.place).start(4, [promised])
    upserts.start(5, [promised])
    assert upserts.rows() == [A]


def test_a_merge_between_look_and_write_is_noticed(upserts):
    upserts.start(3)
    zombie, successor = (upserts.sink.target(upserts.context(attempt)) for attempt in (3, 4))
    for target in (zombie, successor):
        target.look()
    successor.merge(posts(("a", 2, None)), upserts.mark(version_of(4, 1)))
    with pytest.raises(ConflictError):
        zombie.merge(posts(("a", 1, None)), upserts.mark(version_of(3, 7)))
    assert upserts.rows() == [("a", 2, None)]


def test_a_merge_that_changes_nothing_still_counts(upserts):
    committer = upserts.start()
    committer.commit([upserts.write(A)])
    zombie = upserts.sink.target(upserts.context(3))
    zombie.look()
    committer.commit([upserts.write(A, epoch=8)])
    assert max(upserts.place.remembered()) == version_of(3, 8)
    with pytest.raises(ConflictError):
        zombie.merge(posts(A), upserts.mark(version_of(3, 7)))


def test_columns_that_only_the_table_has_when_rows_are_replaced(upserts):
    names = ["day", "extra", "n", "post"]
    schema = pa.schema([(n, pa.int64() if n == "n" else pa.string()) for n in names])
    upserts.place.create(schema)
    upserts.place.append(pa.table([["mon"], ["kept"], [1], ["a"]], schema=schema))
    if upserts.place.format == "iceberg":
        with pytest.raises(ConfigurationError, match="would lose its values"):
            upserts.start()
        return
    upserts.start().commit([upserts.write(("a", 2, "tue"), B)])
    assert upserts.rows() == [("a", 2, "tue"), B]
    assert sorted(upserts.place.read()["extra"].to_pylist(), key=str) == [None, "kept"]


# -- a control


def test_without_the_number_old_output_comes_back(upserts, monkeypatch):
    """Nothing but the number in the table keeps a repeated commit from being made again."""
    committer = upserts.start()
    old, new = upserts.write(("a", 1, None)), upserts.write(("a", 2, None), epoch=8)
    kept = {path: path.read_bytes() for path in upserts.place.root.rglob("*") if staged(path)}
    committer.commit([old])
    committer.commit([new])
    for path, data in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    target = type(upserts.sink.target(upserts.context()))
    monkeypatch.setattr(target, "remembered", lambda self, identity: None)
    committer.commit([old])
    assert upserts.rows() == [("a", 1, None)]


def staged(path):
    return ".turnback" in path.parts and path.suffix in (".parquet", ".inprogress")
