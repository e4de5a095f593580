"""Jobs with Delta tables are killed at every step of the protocol: each row is there once."""

import signal

import pytest
from killed_tables import (
    COMPACTION_ROUNDS,
    JOIN_ROUNDS,
    ROUNDS,
    KilledJob,
    assert_exact_after_kills,
    assert_few_files,
)
from table_job import JOIN_POINTS, POINTS

pytestmark = pytest.mark.crash


def test_killed_at_every_point(tmp_path):
    assert {point.partition(":")[0] for point in ROUNDS} == set(POINTS)
    assert_exact_after_kills(KilledJob("delta", tmp_path), ROUNDS)


@pytest.mark.exhaustive
def test_killed_while_files_are_joined(tmp_path):
    assert {point.partition(":")[0] for point in JOIN_ROUNDS} > set(JOIN_POINTS)
    job = KilledJob("delta", tmp_path, "--write-every", "3", keys=100, each=100)
    assert_exact_after_kills(job, JOIN_ROUNDS)


def test_appends_without_markers_are_noticed(tmp_path):
    """The same job with a sink that only appends must fail, or the test above shows nothing."""
    job = KilledJob("delta", tmp_path, "--without-markers", keys=20, each=40)
    assert job.run("published:4") == -signal.SIGKILL
    assert job.run() == 0
    assert any("there twice" in problem for problem in job.problems(partial=False))


@pytest.mark.exhaustive
def test_killed_while_the_tables_are_compacted(tmp_path):
    """At points and at any moment; a reader looks on all the time."""
    job = KilledJob("delta", tmp_path, "--compact-files", "12", keys=100, each=100)
    assert_exact_after_kills(job, COMPACTION_ROUNDS, moments=2)
    assert_few_files(job)
