"""Dead letters of jobs that never ran."""

from __future__ import annotations

from typing import Any

from turnback.plan.bad_records import Letter
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import Types


def letter(position: int = 0, **fields: Any) -> bytes:
    known = {
        "job_id": "j",
        "operator": "parsed",
        "attempt": 1,
        "epoch": 1,
        "task": 0,
        "input": 0,
        "time": None,
        "type": Types.LONG().describe(),
        "element": Serializer(Types.LONG()).encode(position),
    }
    return Letter(position=position, **{**known, **fields}).encode()
