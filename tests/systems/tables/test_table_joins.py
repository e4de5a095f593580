"""Tables that are written every few checkpoints: few large files, each row once."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from table_support import A, B, C, DeltaPlace, Job, posts

from turnback.connectors.registry import sink_from_description
from turnback.connectors.tables import DeltaSink, IcebergSink
from turnback.connectors.tables import compaction as table_join
from turnback.connectors.tables.files import TableTransaction
from turnback.connectors.tables.sink import Mark, commit_marks, found_merge
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import version_of
from turnback.sinks.ownership import SinkIdentity


@pytest.fixture
def many(place: Any) -> Job:
    return Job(place, partition_by=["day"], write_every=4)


def epochs(job: Job, first: int, last: int, **changes: Any) -> list[bytes]:
    """What two tasks wrote in some epochs, for two partitions of the table."""
    return [
        job.write((f"e{e}", e, "mon"), (f"e{e}", e, "tue"), epoch=e, partition=p, **changes)
        for e in range(first, last + 1)
        for p in (0, 1)
    ]


def rows(first: int, last: int) -> list[tuple[Any, ...]]:
    return sorted((f"e{e}", e, d) for e in range(first, last + 1) for d in ("mon", "tue") * 2)


def test_files_of_many_epochs_become_one_for_each_partition(many: Job) -> None:
    committer = many.start()
    prepared = epochs(many, 1, 8)
    assert len(many.files()) == 32
    before = many.place.versions()
    committer.commit(prepared)
    assert many.rows() == rows(1, 8)
    assert len(many.place.referenced()) == 2
    assert many.files() == many.place.referenced()
    assert many.notes() == []
    assert many.place.versions() == before + 1
    assert many.place.remembered()[-1] == version_of(3, 8)


def test_rows_keep_their_order_within_a_task(place: Any) -> None:
    job = Job(place, write_every=2)
    committer = job.start()
    committer.commit([job.write(*((f"{e}", n, None) for n in range(3)), epoch=e) for e in (1, 2)])
    (file,) = job.place.root.rglob("part-*.parquet")
    assert pq.read_table(file)["n"].to_pylist() == [0, 1, 2] * 2


def test_is_due_by_checkpoints_or_by_bytes(place: Any) -> None:
    job = Job(place, write_every=3)
    committer = job.start()
    prepared = epochs(job, 1, 1)
    assert [committer.is_due(prepared) for _ in range(3)] == [False, False, True]
    committer.commit(prepared)
    assert not committer.is_due(prepared)
    size = sum(f.length for t in prepared for f in decoded(job, t).files)
    sized = Job(place, write_every=100, write_bytes=size).start(4)
    assert not sized.is_due(prepared[:1])
    assert sized.is_due(prepared)


def decoded(job: Job, data: bytes) -> TableTransaction:
    return TableTransaction.decode(job.sink.kind, data, job.context())


def test_large_files_and_single_ones_are_not_written_again(
    many: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = many.start()
    single = many.write(A, epoch=1)
    committer.commit([single])
    assert many.place.referenced() == {decoded(many, single).files[0].path.split("/")[-1]}
    large = epochs(many, 2, 3)
    least = min(file.length for one in large for file in decoded(many, one).files)
    monkeypatch.setattr(table_join, "TARGET_BYTES", least * 2)
    names = {file.path.split("/")[-1] for one in large for file in decoded(many, one).files}
    committer.commit(large)
    assert names < many.place.referenced()
    assert many.files() == many.place.referenced()
    assert many.notes() == []


def test_joined_files_have_a_limit(many: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = many.start()
    prepared = epochs(many, 1, 6)
    monkeypatch.setattr(
        table_join, "TARGET_BYTES", 3 * max(f.length for f in decoded(many, prepared[0]).files)
    )
    committer.commit(prepared)
    assert many.rows() == rows(1, 6)
    assert 2 < len(many.place.referenced()) <= 12


def test_a_driver_that_died_while_joining_leaves_nothing(many: Job) -> None:
    many.start()
    prepared = epochs(many, 1, 4)
    dead = many.sink.committer(many.context(3))
    assert joiner(dead).join([decoded(many, one) for one in prepared]) is not None
    many.start(4, prepared)
    assert many.rows() == rows(1, 4)
    assert many.files() == many.place.referenced()
    assert many.notes() == []


def test_a_driver_that_died_after_the_commit_is_not_repeated(
    many: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = many.start()
    prepared = epochs(many, 1, 4)
    twice = many.sink.committer(many.context(3))
    joiner(twice).join([decoded(many, one) for one in prepared])  # it had failed before
    with monkeypatch.context() as patch:
        patch.setattr(table_join.FileMerger, "settle", died)
        with pytest.raises(KeyboardInterrupt):
            committer.commit(prepared)
    assert many.rows() == rows(1, 4)
    many.start(4, prepared)
    assert many.rows() == rows(1, 4)
    assert many.files() == many.place.referenced()
    assert many.notes() == []


def joiner(committer: Any) -> table_join.FileMerger:
    return committer._joiner(committer._identity)


def died(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_paused_driver_cannot_publish_what_it_joined(many: Job) -> None:
    """It wakes up after its successor has published the same rows."""
    paused = many.start()
    prepared = epochs(many, 1, 4)
    append = paused._target.append

    def late(*arguments: Any) -> None:
        many.start(4, prepared)
        append(*arguments)

    paused._target.append = late
    with suppress(SinkError):  # the files it has joined are gone
        paused.commit(prepared)
    assert many.rows() == rows(1, 4)
    many.start(5)
    assert many.files() == many.place.referenced()
    assert many.notes() == []


def test_turned_back_while_joining(many: Job) -> None:
    """What was joined for a checkpoint that the job does not go on from is dropped."""
    many.start()
    prepared = epochs(many, 1, 4)
    dead = many.sink.committer(many.context(3))
    joiner(dead).join([decoded(many, one) for one in prepared])
    many.start(4, prepared[:2])
    assert many.rows() == rows(1, 1)
    assert many.files() == many.place.referenced()


def test_others_may_write_meanwhile(many: Job) -> None:
    committer = many.start()
    prepared = epochs(many, 1, 4)
    look, calls = committer._target.look, []

    def looked() -> None:
        look()
        calls.append("look")
        if len(calls) == 1:
            many.place.append(posts(("other", 0, "wed")))

    committer._target.look = looked
    committer.commit(prepared)
    assert many.rows() == sorted([*rows(1, 4), ("other", 0, "wed")], key=repr)
    assert many.files() <= many.place.referenced()


def test_without_the_option_again(many: Job) -> None:
    """What waited is written by a program that has the option no more, and the other way round."""
    many.start()
    prepared = epochs(many, 1, 2)
    joiner(many.sink.committer(many.context(3))).join([decoded(many, one) for one in prepared])
    plain = Job(many.place, partition_by=["day"])
    plain.start(4, prepared)
    assert plain.rows() == rows(1, 2)
    assert plain.files() == plain.place.referenced()
    later = epochs(plain, 3, 4, attempt=4)
    many.start(5, later)
    assert many.rows() == rows(1, 4)


def test_an_upsert_of_several_checkpoints_is_one_merge(place: Any) -> None:
    job = Job(place, mode="upsert", key=["post"], write_every=3)
    committer = job.start()
    before = place.versions()
    prepared = [job.write(("a", e, "mon"), (f"e{e}", e, "tue"), epoch=e) for e in (1, 2, 3)]
    assert [committer.is_due(prepared) for _ in range(3)] == [False, False, True]
    committer.commit(prepared)
    assert job.rows() == [("a", 3, "mon"), ("e1", 1, "tue"), ("e2", 2, "tue"), ("e3", 3, "tue")]
    assert place.versions() <= before + 2  # PyIceberg updates and inserts in two snapshots
    assert not list(place.root.rglob(".turnback/**/*.parquet"))


def test_a_promised_file_that_is_gone_is_named(many: Job) -> None:
    committer = many.start()
    prepared = epochs(many, 1, 2)
    path = decoded(many, prepared[1]).files[0].path
    (many.place.root / path).unlink()
    with pytest.raises(SinkError, match=f"1 rows of epoch 1 are lost.*{path}"):
        committer.commit(prepared)
    assert many.rows() == []


def test_readers_can_skip_joined_files(tmp_path: Any) -> None:
    job = Job(DeltaPlace(tmp_path), write_every=2)
    job.start().commit([job.write(A, epoch=1), job.write(B, epoch=2), job.write(C, epoch=3)])
    actions = DeltaTable(str(job.place.root)).get_add_actions(flatten=True)
    (add,) = pa.table(actions).to_pylist()
    assert (add["num_records"], add["min.n"], add["max.n"], add["null_count.n"]) == (3, 1, 3, 1)
    assert (add["min.post"], add["max.post"], add["null_count.day"]) == ("a", "c", 1)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"write_every": 0}, "write_every must be a number of checkpoints from 1 to 1000, not 0"),
        ({"write_every": "10"}, "write_every must be a number of checkpoints"),
        ({"write_every": True}, "write_every must be a number of checkpoints"),
        ({"write_every": 2.5}, "write_every must be a number of checkpoints"),
        ({"write_every": 1001}, "1 to 1000, not 1001"),
        ({"write_every": 2, "write_bytes": "lots"}, "write_bytes: 'lots' is not a size"),
        ({"write_every": 2, "write_bytes": 0}, "write_bytes must be a size above 0"),
        ({"write_every": 2, "write_bytes": -1}, "write_bytes: -1 is not a size"),
        ({"write_bytes": "1 mb"}, "write_bytes needs write_every"),
    ],
)
def test_options_that_cannot_be_used(tmp_path: Any, arguments: Any, reason: str) -> None:
    for make in (lambda: DeltaSink(tmp_path, **arguments), lambda: iceberg(**arguments)):
        with pytest.raises(ConfigurationError, match=reason):
            make()


def iceberg(**arguments: Any) -> IcebergSink:
    return IcebergSink("prod", "db.posts", **arguments)


def test_a_sink_is_rebuilt_as_it_was(tmp_path: Any) -> None:
    for sink in (
        DeltaSink(tmp_path, write_every=7, write_bytes="1 mb"),
        iceberg(write_every=7, write_bytes="1 mb"),
    ):
        again: Any = sink_from_description(sink.describe())
        assert (again.write_every, again.write_bytes) == (7, 1024 * 1024)
        assert again.needs_checkpoints


def test_a_join_is_found_only_if_the_history_tells() -> None:
    def commit(app: str, number: int, join: str) -> dict[str, str]:
        return commit_marks(app, Mark(SinkIdentity("job", "", "id", "out"), number), join)

    one, two, plain = commit("app", 10, "j1"), commit("app", 20, "j2"), commit("app", 30, "")
    history = [plain, {}, commit("other", 15, "x"), two, one]
    assert found_merge(history, "app", 20) == "j2"
    assert found_merge(history, "app", 15) == "j2"
    assert found_merge(history, "app", 10) == "j1"
    assert found_merge(history, "app", 5) is None
    assert found_merge([plain], "app", 20) is None
