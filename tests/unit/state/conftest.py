from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state_support import FakeJob


@pytest.fixture(params=["hashmap", "rocksdb"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def job(kind: str, tmp_path: Path) -> Callable[..., FakeJob]:
    def make(*descriptors: Any, **options: Any) -> FakeJob:
        return FakeJob(kind, tmp_path / "home", descriptors, **options)

    return make
