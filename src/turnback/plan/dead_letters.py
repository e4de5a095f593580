"""Dead letters: elements at which a function failed, as they are written and fed back."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from turnback.core.errors import ConfigurationError
from turnback.values.typeinfo import Descriptor, Types

DEAD_LETTERS = "turnback.dead-letters"
"""The name of the side output for dead letters."""

DEAD_LETTER = Types.ROW_NAMED(
    ["operator", "key", "element", "error", "epoch", "task", "position", "data"],
    [
        Types.STRING(),
        Types.STRING(),
        Types.STRING(),
        Types.STRING(),
        Types.LONG(),
        Types.INT(),
        Types.LONG(),
        Types.BYTES(),
    ],
)
"""A dead letter as users see it: which operator failed at an element, under which key if it has
one, the element as text, why, in which epoch and task, as the how manieth of its elements there,
and the `Letter` as bytes."""

_MARK = b"turnback letter 1\n"


class LetterId(NamedTuple):
    """What tells a dead letter of a job from all others."""

    attempt: int
    epoch: int
    operator: str
    task: int
    position: int


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to feed an element back to the operator whose function failed at it.

    Attributes:
        job_id: The job it comes from.
        operator: Uid of the operator.
        attempt: Of the job, in which the function failed.
        position: The how manieth element it was of its task in the epoch, from 0.
        input: Which input of the operator it came from.
        time: Its event time; None without one.
        type: What describes the type of the element.
        element: The element, serialized.
    """

    job_id: str
    operator: str
    attempt: int
    epoch: int
    task: int
    position: int
    input: int
    time: int | None
    type: Descriptor
    element: bytes

    @property
    def id(self) -> LetterId:
        return LetterId(self.attempt, self.epoch, self.operator, self.task, self.position)

    def encode(self) -> bytes:
        """What `data` of a dead letter holds."""
        return _MARK + msgspec.msgpack.encode(self)


_decode = msgspec.msgpack.Decoder(Letter).decode


def decode_letter(data: bytes) -> Letter:
    """Read `data` of a dead letter.

    Raises:
        ConfigurationError: It is something else.
    """
    if data.startswith(_MARK):
        try:
            return _decode(memoryview(data)[len(_MARK) :])
        except msgspec.MsgspecError:
            pass
    raise ConfigurationError(f"{data[:40]!r} is no dead letter: it is no `data` of one")


class ErrorPolicy(Enum):
    """What an operator does with an element at which its function fails."""

    FAIL = "fail"
    """The attempt fails, and the restart strategy decides."""
    SKIP = "skip"
    """The element is left out."""
    DEAD_LETTER = "dead_letter"
    """The element is left out, and goes to the dead letters of the operator."""
