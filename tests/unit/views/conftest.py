from __future__ import annotations

from pathlib import Path

import pytest

from fake_job import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)
