"""Jobs with Iceberg tables are killed at every step of the protocol: each row is there once."""

import pytest
from killed_tables import ROUNDS, KilledJob, assert_exact_after_kills


@pytest.mark.crash
def test_killed_at_every_point(tmp_path):
    assert_exact_after_kills(KilledJob("iceberg", tmp_path, each=200), ROUNDS)
