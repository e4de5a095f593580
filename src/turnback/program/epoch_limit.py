"""How much of a source one epoch reads at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochLimit:
    """A limit for files; one file is read in any case, however large it is.

    Attributes:
        files: How many new files; None for all there are.
        bytes: How many bytes new files may have together; None for any number.
    """

    files: int | None = None
    bytes: int | None = None
