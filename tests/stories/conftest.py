from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from place import Place


@pytest.fixture
def place(tmp_path: Path, java: str) -> Iterator[Place]:
    place = Place(tmp_path, java)
    yield place
    place.close()
