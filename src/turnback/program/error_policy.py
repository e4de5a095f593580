"""What becomes of elements at which a function fails."""

from __future__ import annotations

from enum import Enum


class ErrorPolicy(Enum):
    """What an operator does with an element at which its function fails."""

    FAIL = "fail"
    """The attempt fails, and the restart strategy decides."""
    SKIP = "skip"
    """The element is left out."""
    DEAD_LETTER = "dead_letter"
    """The element is left out, and goes to the dead letters of the operator."""
