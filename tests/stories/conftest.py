from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from place import JOB, Place

from services.java import java_options


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Options for Java; to find them, the job may have to run once."""

    def run(options: str) -> None:
        place = Place(tmp_path_factory.mktemp("java"), options)
        place.feed()
        try:
            place.turnback("run", JOB, place.events, place.out, "--bounded")
            archive = Path(options.rpartition("=")[2])
            end = time.monotonic() + 30  # Java writes it when its driver has gone
            while not archive.exists() and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            place.close()

    return java_options(run)


@pytest.fixture
def place(tmp_path: Path, java: str) -> Iterator[Place]:
    place = Place(tmp_path, java)
    yield place
    place.close()
