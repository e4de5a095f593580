from __future__ import annotations

from pathlib import Path

import pytest

from driver_support import Driver


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)
