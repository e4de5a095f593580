"""What `turnback doctor` finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """Something that was looked at.

    Attributes:
        name: What.
        verdict: ok; warn if something will not work as well as it could; fail if jobs cannot run.
        found: What was found.
        advice: What to do about it.
    """

    name: str
    verdict: Verdict
    found: str
    advice: str = ""
