from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from place import Place


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """The place of a job on Spark, or, with the marker, of one without a JVM."""
    light = request.node.get_closest_marker("no_jvm") is not None
    place = Place(tmp_path, None if light else request.getfixturevalue("java"))
    yield place
    place.close()
