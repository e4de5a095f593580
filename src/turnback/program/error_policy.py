"""What becomes of elements at which a function fails."""

from __future__ import annotations

from enum import Enum

from turnback.types.typeinfo import Types


class ErrorPolicy(Enum):
    """What an operator does with an element at which its function fails."""

    FAIL = "fail"
    """The attempt fails, and the restart strategy decides."""
    SKIP = "skip"
    """The element is left out."""
    DEAD_LETTER = "dead_letter"
    """The element is left out, and goes to the dead letters of the operator."""


DEAD_LETTERS = "turnback.dead-letters"
"""The name of the side output for dead letters."""

DEAD_LETTER = Types.ROW_NAMED(
    ["operator", "key", "element", "error", "epoch", "task", "data"],
    [
        Types.STRING(),
        Types.STRING(),
        Types.STRING(),
        Types.STRING(),
        Types.LONG(),
        Types.INT(),
        Types.BYTES(),
    ],
)
"""An element that could not be processed: by which operator, under which key if it has one, itself
as text, why, in which epoch and task, and itself as it is serialized."""
