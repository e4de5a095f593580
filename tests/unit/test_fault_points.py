"""The points at which tests let a process die have to exist."""

from importlib import import_module

import pytest

from faults import POINTS
from faults.turnback_faults import install

ALL = [point for points in POINTS.values() for point in points]
METHODS = sorted({m for point in ALL for m in (point.method, point.during) if m})


@pytest.mark.parametrize(
    "method", [*METHODS, "checkpoint.protocol:CommitProtocol._persist_manifest"]
)
def test_the_method_is_there(method: str) -> None:
    module, _, qualified = method.partition(":")
    found = import_module(f"turnback.{module}")
    for name in qualified.split("."):
        found = vars(found)[name]
    assert callable(found)


def test_an_unknown_point_is_refused() -> None:
    with pytest.raises(KeyError):
        install({"TURNBACK_KILL_AT": "before-lunch"})
