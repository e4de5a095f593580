"""Jobs without Spark: the whole driver, on the engine of `turnback.testing`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from job_support import Jobs


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    made = Jobs(tmp_path)
    yield made
    made.close()
