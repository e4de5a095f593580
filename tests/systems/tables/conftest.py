from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from table_support import PLACES, Job


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where a table of each format is."""
    return PLACES[request.param](tmp_path)


@pytest.fixture
def job(place: Any) -> Job:
    """A job that adds rows to a table of each format."""
    return Job(place)
