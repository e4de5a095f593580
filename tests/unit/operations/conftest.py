from __future__ import annotations

from pathlib import Path

import pytest
from dead_job import Place

from fake_job import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
