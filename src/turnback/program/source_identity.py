"""Which streams a source reads, told apart from others that get the same names later."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class ReadsIdentity(Protocol):
    """A `LagReader` that also knows which streams the source reads."""

    def identity(self, offset: str, known: str | None) -> str | None:
        """What tells the streams at a position from others with the same names, as text.

        `known` is what was returned before, or is part of the snapshot that the job goes on from.
        """


@runtime_checkable
class ChecksIdentity(Protocol):
    """A `SourceCheck` that can tell whether the streams of a position are still the same."""

    def check_identity(self, name: str, identity: str) -> None:
        """Refuse to go on in others; raises `ConfigurationError`."""
