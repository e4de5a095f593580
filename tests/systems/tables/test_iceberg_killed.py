"""Jobs with Iceberg tables are killed at every step of the protocol: each row is there once."""

import pytest
from killed_tables import (
    COMPACTION_ROUNDS,
    JOIN_ROUNDS,
    ROUNDS,
    KilledJob,
    assert_exact_after_kills,
    assert_few_files,
)


@pytest.mark.crash
def test_killed_at_every_point(tmp_path):
    assert_exact_after_kills(KilledJob("iceberg", tmp_path), ROUNDS)


@pytest.mark.exhaustive
@pytest.mark.crash
def test_killed_while_files_are_joined(tmp_path):
    job = KilledJob("iceberg", tmp_path, "--write-every", "3", keys=100, each=100)
    assert_exact_after_kills(job, JOIN_ROUNDS)


@pytest.mark.exhaustive
@pytest.mark.crash
def test_killed_while_the_tables_are_compacted(tmp_path):
    """At points and at any moment; a reader looks on all the time."""
    job = KilledJob("iceberg", tmp_path, "--compact-files", "6", keys=100, each=100)
    assert_exact_after_kills(job, ["iceberg-joined:1", *COMPACTION_ROUNDS], moments=1)
    assert_few_files(job)
