from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from crash.place import Place, write_input


class MakePlace(Protocol):
    """Makes the place of a job with so many input files; see `write_input`."""

    def __call__(self, files: int, apart: int = 1) -> Place: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.crash)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], Path]:
    """Inputs by number of files and how far apart keys are, each written once."""
    base = tmp_path_factory.mktemp("inputs")

    def make(files: int, apart: int) -> Path:
        directory = base / f"{files}-{apart}"
        if not directory.exists():
            write_input(directory, files, apart=apart)
        return directory

    return make


@pytest.fixture
def place(tmp_path: Path, inputs: Callable[[int, int], Path]) -> Iterator[MakePlace]:
    """Makes the place of a job without a JVM; all its drivers are gone afterwards."""
    yield from _places(tmp_path, inputs, spark=False)


@pytest.fixture
def on_spark(
    tmp_path: Path, inputs: Callable[[int, int], Path], java: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakePlace]:
    """Makes the place of a job on Spark; all its drivers are gone afterwards."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", java)
    yield from _places(tmp_path, inputs, spark=True)


def _places(base: Path, inputs: Callable[[int, int], Path], *, spark: bool) -> Iterator[MakePlace]:
    made: list[Place] = []

    def make(files: int, apart: int = 1) -> Place:
        made.append(Place(base, inputs(files, apart), spark=spark))
        return made[-1]

    yield make
    for one in made:
        one.kill()
