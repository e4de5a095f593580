from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_support import Launches


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    made = Launches(tmp_path)
    yield made
    made.close()
