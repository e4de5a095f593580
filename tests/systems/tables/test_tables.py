"""What every sink for a table format promises, against the formats' own libraries and readers."""

import threading
from dataclasses import replace
from unittest import mock

import msgspec
import pytest
from table_support import A, B, C, Job, posts

from turnback.connectors.tables.compaction import ConflictError
from turnback.connectors.tables.files import TableFile, TableTransaction
from turnback.errors import ConfigurationError, SinkError
from turnback.sinks.base import version_of


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


def test_of_two_that_create_the_table_at_once_both_go_on(job):
    target = job.sink.target(job.context())
    job.start()
    # When it looked, the table was not there yet.
    with mock.patch.object(target, "_open", side_effect=[None, target._open()]):
        target.create(job.context().type)
    assert target.exists()


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
    with pytest.raises(SinkError, match="attempt 4 rolled them back"):
        zombie.commit([promised])
    assert job.rows() == []
    assert job.files() == set()


def looked(job, attempt):
    """What a driver commits through, after it has looked at the table."""
    target = job.sink.target(job.context(attempt))
    target.look()
    assert target.remembered(job.mark(0).identity) is None
    return target


def test_a_commit_between_look_and_write_is_noticed(job):
    job.start(3)
    zombie, successor = looked(job, 3), looked(job, 4)
    file = decoded(job, job.write(A)).files
    successor.append(file, job.mark(version_of(3, 7)))
    with pytest.raises(ConflictError):
        zombie.append(file, job.mark(version_of(3, 7)))
    assert job.rows() == [A]


def test_a_fence_between_look_and_write_is_noticed(job):
    job.start(3)
    zombie, successor = looked(job, 3), looked(job, 4)
    successor.mark(replace(job.mark(0), fence=version_of(4, 0) - 1))
    with pytest.raises(ConflictError):
        zombie.append(decoded(job, job.write(A)).files, job.mark(version_of(3, 7)))
    assert job.rows() == []


def test_what_a_losing_task_wrote_is_removed(job):
    committer = job.start()
    winner = job.write(A)
    job.write(A, task_attempt_id=41)
    assert len(job.files()) == 2
    committer.abort_orphans([winner])
    assert len(job.files()) == 1
    committer.commit([winner])
    committer.abort_orphans([])
    assert job.rows() == [A]
    assert job.files() == job.place.referenced()
    assert job.notes() == []


def test_what_dead_attempts_wrote_is_removed_and_nothing_else(job):
    committer = job.start()
    done, promised = job.write(A), job.write(B, epoch=8)
    committer.commit([done])
    job.write(C, epoch=9)
    job.write(C, epoch=9, uid="it was renamed since")
    job.write(C, epoch=9, directory_id="a copy of the job")
    job.place.append(posts(C))
    job.start(4, [promised])
    assert job.rows() == [A, B, C]
    assert len(job.files() - job.place.referenced()) == 1  # of the copy
    assert len(job.notes()) == 1


def test_a_newer_attempts_files_stay(job):
    zombie = job.start(3)
    job.start(4)
    newer = job.write(A, attempt=4)
    zombie.abort_orphans([])
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


def test_what_a_sink_has_prepared_is_not_anothers(job):
    committer = job.start()
    data = msgspec.msgpack.encode(["file", 1, b""])
    with pytest.raises(SinkError, match="belongs to a 'file' sink"):
        committer.commit([data])


# -- whose it is


def test_a_fork_is_refused_until_it_takes_over(job):
    committer = job.start()
    fork = Job(job.place)
    fork.directory = "file:///jobs/fork"
    with pytest.raises(ConfigurationError, match="belongs to job 'likes' in file:///jobs/likes"):
        fork.start()
    fork.sink.acquire_target(fork.context(take_over=True, job_id="id-2"))
    with pytest.raises(ConfigurationError, match="belongs to job"):
        committer.commit([job.write(A)])
    assert job.rows() == []


def test_an_owner_with_promised_output_is_not_taken_over(job):
    job.start()
    job.write(A)
    fork = Job(job.place)
    fork.directory = "file:///jobs/fork"
    with pytest.raises(ConfigurationError, match="cannot be taken over"):
        fork.sink.check_target(fork.context(take_over=True, job_id="id-2"))
