"""What `make test` leaves to `make test-all`: repetition of what a cheaper test shows too."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

EXAMPLES = {"few": 15, "some": 40, "many": 100}
"""How many random examples a property is tried with where it says nothing itself, by tier."""
TIER = os.environ.get("TURNBACK_EXAMPLES", "many")


def examples(most: int) -> int:
    """How many random examples to try of a property that is slow: its own number in all tests."""
    return max(most * EXAMPLES[TIER] // EXAMPLES["many"], 4)


def with_examples(values: Iterable[Any], examples: Collection[Any]) -> list[Any]:
    """All values for a parametrized test, of which only the examples are part of `make test`."""
    missing = set(examples).difference(values := list(values))
    assert not missing, f"there is no {sorted(missing)}"
    rest = pytest.mark.exhaustive
    return [value if value in examples else pytest.param(value, marks=rest) for value in values]
