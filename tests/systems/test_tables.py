"""What every sink for a table format promises, against the formats' own libraries and readers."""

import threading
from datetime import UTC, date, datetime
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from table_support import PLACES, POSTS, Job

from turnback import Types
from turnback.core.errors import ConfigurationError, NullKeyError, SinkError
from turnback.sinks.base import version_of
from turnback.sinks.table_committer import ConflictError
from turnback.sinks.table_files import TableFile, TableTransaction
from turnback.types.columns import Batch

A, B, C = ("a", 1, "mon"), ("b", None, "tue"), ("c", 3, None)


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    return PLACES[request.param](tmp_path)


@pytest.fixture
def job(place):
    return Job(place)


def posts(*rows):
    return pa.Table.from_batches([Batch(POSTS, list(rows)).arrow])


def decoded(job, data):
    return TableTransaction.decode(job.sink.kind, data, job.context())


# -- once, and only after the commit


def test_nothing_is_visible_before_the_commit(job):
    committer = job.start()
    transaction = job.write(A, B, C)
    assert job.rows() == []
    assert job.place.referenced() == set()
    committer.commit([transaction])
    assert job.rows() == [A, B, C]


def test_no_rows_no_file_no_transaction(job):
    job.start()
    assert job.writer().prepare() is None
    assert job.files() == set()


def test_a_commit_that_comes_again_changes_nothing(job):
    committer = job.start()
    transactions = [job.write(A), job.write(B, partition=1)]
    committer.commit(transactions)
    before = job.place.versions()
    committer.commit(transactions)
    job.start(4, transactions).commit(transactions)
    assert job.rows() == [A, B]
    assert job.place.versions() == before


def test_epochs_of_one_checkpoint_are_one_version(job):
    committer = job.start()
    before = job.place.versions()
    committer.commit([job.write(A, epoch=7), job.write(B, epoch=8), job.write(C, epoch=9)])
    assert job.rows() == [A, B, C]
    assert job.place.versions() == before + 1
    assert job.place.remembered() == [version_of(3, 9)]


def test_what_comes_with_committed_epochs_is_committed(job):
    committer = job.start()
    first = job.write(A)
    committer.commit([first])
    committer.commit([first, job.write(B, epoch=8)])
    assert job.rows() == [A, B]


def test_a_job_that_was_turned_back_writes_its_epochs_again(job):
    job.start(3).commit([job.write(A, epoch=100)])
    again = job.write(B, attempt=4, epoch=51)
    committer = job.start(4)
    committer.commit([again])
    committer.commit([again])
    assert job.rows() == [A, B]


def test_two_sinks_of_a_job_have_markers_of_their_own(job):
    job.start()
    for uid in ("one", "two"):
        committer = job.sink.committer(job.context(uid=uid))
        committer.commit([job.write(A, uid=uid)])
    assert job.rows() == [A, A]


def test_the_version_of_the_table_is_told(job):
    committer = job.start()
    committer.commit([job.write(A)])
    told = committer.target_version()
    job.place.append(posts(B))
    table = job.place.table()
    if job.place.format == "delta":
        table.load_as_version(int(told))
        assert table.to_pyarrow_table().num_rows == 1
    else:
        assert table.scan(snapshot_id=int(told)).to_arrow().num_rows == 1


# -- other drivers and other tasks


def test_a_driver_that_was_replaced_commits_nothing(job):
    zombie = job.start(3)
    promised = job.write(A)
    job.start(4).commit([job.write(B, attempt=4, epoch=7)])
    zombie.commit([promised])
    assert job.rows() == [B]


def test_a_driver_that_was_replaced_before_its_successor_wrote_commits_nothing(job):
    zombie = job.start(3)
    promised = job.write(A)
    job.start(4)  # it does not know the transaction, and removes its files
    zombie.commit([promised])
    assert job.rows() == []
    assert job.files() == set()


def test_a_commit_between_look_and_write_is_noticed(job):
    job.start(3)
    zombie, successor = (job.sink.target(job.context(attempt)) for attempt in (3, 4))
    assert zombie.published() == successor.published() == 0
    file = decoded(job, job.write(A)).files
    successor.append(file, version_of(3, 7))
    with pytest.raises(ConflictError):
        zombie.append(file, version_of(3, 7))
    assert job.rows() == [A]


def test_a_fence_between_look_and_write_is_noticed(job):
    job.start(3)
    zombie, successor = (job.sink.target(job.context(attempt)) for attempt in (3, 4))
    assert zombie.published() == successor.published() == 0
    successor.mark(version_of(4, 0) - 1)
    with pytest.raises(ConflictError):
        zombie.append(decoded(job, job.write(A)).files, version_of(3, 7))
    assert job.rows() == []


def test_what_a_losing_task_wrote_is_removed(job):
    committer = job.start()
    winner = job.write(A)
    job.write(A, task_attempt_id=41)
    assert len(job.files()) == 2
    committer.discard_others([winner])
    assert len(job.files()) == 1
    committer.commit([winner])
    committer.discard_others([])
    assert job.rows() == [A]
    assert job.files() == job.place.referenced()
    assert job.notes() == []


def test_what_dead_attempts_wrote_is_removed_and_nothing_else(job):
    committer = job.start()
    done, promised = job.write(A), job.write(B, epoch=8)
    committer.commit([done])
    job.write(C, epoch=9)
    job.write(C, epoch=9, uid="another")
    job.place.append(posts(C))
    job.start(4, [promised])
    assert job.rows() == [A, B, C]
    assert len(job.files() - job.place.referenced()) == 1  # of the other sink
    assert len(job.notes()) == 1


def test_a_newer_attempts_files_stay(job):
    zombie = job.start(3)
    job.start(4)
    newer = job.write(A, attempt=4)
    zombie.discard_others([])
    zombie.recover([])
    job.start(4, [newer])
    assert job.rows() == [A]


def test_aborted_output_is_gone(job):
    committer = job.start()
    writer = job.writer()
    writer.abort()
    transaction = job.write(A)
    committer.abort([transaction])
    committer.abort([transaction])
    assert job.files() == set()
    assert job.notes() == []


def test_another_program_writes_at_the_same_time(job):
    committer = job.start()
    committer.commit([job.write(("ours", 0, None), epoch=1)])
    failures = []

    def others():
        for n in range(10):
            try:
                job.place.append(posts(("theirs", n, "mon")))
            except Exception as error:  # noqa: BLE001 - shown by the test
                failures.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    for n in range(1, 11):
        committer.commit([job.write(("ours", n, None), epoch=1 + n)])
    thread.join()
    written = 10 - len(failures)  # the library of the others may give up
    assert written > 0
    rows = job.rows()
    assert sorted(row[1] for row in rows if row[0] == "ours") == list(range(11))
    assert len(rows) == 11 + written


def test_a_file_that_is_gone_is_a_loud_error(job):
    job.start()
    transaction = job.write(A, B)
    for path in job.place.root.rglob("part-*.parquet"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(SinkError, match="'out' of job 'likes': 2 rows of epoch 7 are lost"):
            job.start(4, [transaction])
    assert job.rows() == []


@pytest.mark.parametrize(
    "path", ["../part-0.parquet", "data/theirs.parquet", "_delta_log/0.json", "/etc/passwd"]
)
def test_a_transaction_that_names_files_of_others_is_refused(job, path):
    committer = job.start()
    forged = TableTransaction(3, 7, 0, (TableFile(path, 1, 1),), ()).encode(job.sink.kind)
    for settle in (committer.commit, committer.abort, committer.recover):
        with pytest.raises(SinkError, match="not a file of this sink"):
            settle([forged])


# -- what a table is like


def test_differences_to_the_table_are_named(job):
    schema = pa.schema([("post", pa.int64()), ("day", pa.string()), ("extra", pa.string())])
    job.place.create(schema)
    with pytest.raises(ConfigurationError) as refused:
        job.sink.check_claim(job.context())
    for part in ("column 'post' is int64 in the table, string here", "no column 'n' (int64)"):
        assert part in str(refused.value)
    assert "'day'" not in str(refused.value)


def test_a_column_that_must_not_be_null_is_refused(job):
    fields = [
        pa.field("post", pa.string(), nullable=False),
        ("n", pa.int64()),
        ("day", pa.string()),
    ]
    job.place.create(pa.schema(fields))
    with pytest.raises(ConfigurationError, match="column 'post' must not be null in the table"):
        job.sink.check_claim(job.context())


def test_columns_may_be_in_another_order_and_more(job):
    names = ["day", "extra", "n", "post"]
    job.place.create(pa.schema([(n, pa.int64() if n == "n" else pa.string()) for n in names]))
    job.start().commit([job.write(A, C)])
    assert job.rows() == [A, C]
    assert job.place.read()["extra"].null_count == 2


def test_a_table_with_other_partitions_is_refused(job):
    job.start()
    with pytest.raises(ConfigurationError, match="is partitioned not at all"):
        Job(job.place, partition_by=["day"]).start()


def test_partition_columns(place):
    type_ = Types.ROW_NAMED(
        ["n", "text", "number", "day", "flag", "at"],
        [
            Types.LONG(),
            Types.STRING(),
            Types.INT(),
            Types.SQL_DATE(),
            Types.BOOLEAN(),
            Types.INSTANT(),
        ],
    )
    job = Job(place, type_, partition_by=["text", "number", "day", "flag", "at"])
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    rows = [
        (1, "plain", 1, date(2026, 1, 2), True, at),
        (2, "a/ b=%'é%2F", -1, date(1969, 12, 31), False, at),
        (3, "plain", 1, date(2026, 1, 2), True, at),
        (4, None, None, None, None, None),
    ]
    committer = job.start()
    committer.commit([job.write(*rows)])
    assert job.rows() == sorted(rows, key=repr)
    assert len(job.place.referenced()) == 3


def test_values_of_all_types_come_back(place):
    instant = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    nested = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LIST(Types.STRING())])
    columns = {
        "bytes": (Types.BYTES(), b"\0\xff"),
        "byte": (Types.BYTE(), -128),
        "short": (Types.SHORT(), 2**15 - 1),
        "int": (Types.INT(), -(2**31)),
        "long": (Types.LONG(), 2**63 - 1),
        "big": (Types.BIG_INT(), 10**38 - 1),
        "float": (Types.FLOAT(), 0.5),
        "double": (Types.DOUBLE(), float("inf")),
        "money": (Types.BIG_DEC(12, 2), Decimal("-1234567890.12")),
        "exact": (Types.BIG_DEC(38, 18), Decimal("12345678901234567890.123456789012345678")),
        "date": (Types.SQL_DATE(), date(1, 1, 1)),
        "instant": (Types.INSTANT(), instant),
        "local": (Types.SQL_TIMESTAMP(), instant.replace(tzinfo=None)),
        "list": (Types.LIST(Types.LONG()), [1, None, 3]),
        "map": (Types.MAP(Types.STRING(), Types.LONG()), {"x": 1, "y": None}),
        "row": (nested, (1, ["é"])),
    }
    type_ = Types.ROW_NAMED(list(columns), [kind for kind, _ in columns.values()])
    job = Job(place, type_)
    values = tuple(value for _, value in columns.values())
    job.start().commit([job.write(values, (None,) * len(columns))])
    full, empty = sorted(job.place.read().to_pylist(), key=lambda row: row["long"] is None)
    assert set(empty.values()) == {None}
    expected = dict(zip(columns, values, strict=True)) | {"row": {"a": 1, "b": ["é"]}}
    assert {**full, "map": dict(full["map"])} == expected


# -- whose it is


def test_a_fork_is_refused_until_it_takes_over(job):
    committer = job.start()
    fork = Job(job.place)
    fork.directory = "file:///jobs/fork"
    with pytest.raises(ConfigurationError, match="belongs to job 'likes' in file:///jobs/likes"):
        fork.start()
    fork.sink.claim(fork.context(take_over=True, job_id="id-2"))
    with pytest.raises(ConfigurationError, match="belongs to job"):
        committer.commit([job.write(A)])
    assert job.rows() == []


def test_an_owner_with_promised_output_is_not_taken_over(job):
    job.start()
    job.write(A)
    fork = Job(job.place)
    fork.directory = "file:///jobs/fork"
    with pytest.raises(ConfigurationError, match="cannot be taken over"):
        fork.sink.check_claim(fork.context(take_over=True, job_id="id-2"))


# -- upserts


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
    look = target.published
    monkeypatch.setattr(target, "published", lambda self: look(self) * 0)
    committer.commit([old])
    assert upserts.rows() == [("a", 1, None)]


def staged(path):
    return ".turnback" in path.parts and path.suffix in (".parquet", ".inprogress")


# -- arguments


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"mode": "replace"}, "mode is 'append' or 'upsert'"),
        ({"mode": "upsert"}, "go together"),
        ({"key": ["post"]}, "go together"),
        ({"partition_by": ["day", "day"]}, "each once"),
        ({"partition_by": [3]}, "names of columns"),
    ],
)
def test_arguments_that_cannot_be_used(place, arguments, reason):
    with pytest.raises(ConfigurationError, match=reason):
        place.sink(**arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"partition_by": ["week"]}, "'week', which the stream does not have; .* post, n, day"),
        ({"mode": "upsert", "key": ["id"]}, "key names 'id', which the stream does not have"),
        ({"partition_by": ["post", "n", "day"]}, "needs a column that is not in partition_by"),
    ],
)
def test_arguments_that_do_not_fit_the_stream(place, arguments, reason):
    job = Job(place, **arguments)
    with pytest.raises(ConfigurationError, match=reason):
        job.sink.check_claim(job.context())
    assert not place.root.exists()


def test_a_merge_between_look_and_write_is_noticed(upserts):
    upserts.start(3)
    zombie, successor = (upserts.sink.target(upserts.context(attempt)) for attempt in (3, 4))
    assert zombie.published() == successor.published() == 0
    successor.merge(posts(("a", 2, None)), version_of(4, 1))
    with pytest.raises(ConflictError):
        zombie.merge(posts(("a", 1, None)), version_of(3, 7))
    assert upserts.rows() == [("a", 2, None)]


def test_a_merge_that_changes_nothing_still_counts(upserts):
    committer = upserts.start()
    committer.commit([upserts.write(A)])
    zombie = upserts.sink.target(upserts.context(3))
    zombie.published()
    committer.commit([upserts.write(A, epoch=8)])
    assert max(upserts.place.remembered()) == version_of(3, 8)
    with pytest.raises(ConflictError):
        zombie.merge(posts(A), version_of(3, 7))


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


def test_what_a_sink_has_prepared_is_not_anothers(job):
    committer = job.start()
    data = msgspec.msgpack.encode(["file", 1, b""])
    with pytest.raises(SinkError, match="belongs to a 'file' sink"):
        committer.commit([data])
