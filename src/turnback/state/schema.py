from __future__ import annotations

from typing import Any

import msgspec

KINDS = ("value", "list", "map", "reducing", "aggregating")
SINGLE_KINDS = frozenset({"value", "reducing", "aggregating"})


class StateSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a stored state without reading it.

    Attributes:
        uid: Operator it belongs to.
        name: Name of the state.
        kind: One of `KINDS`.
        key: How the stream is keyed: ``{"types": [...], "columns": bool}``. Key groups are
            computed differently for columns and for functions, hence both are part of it.
        value: Descriptor of the type of values, list elements or accumulators.
        sub: Descriptor of a map's key type, else None.
    """

    uid: str
    name: str
    kind: str
    key: Any
    value: Any
    sub: Any = None

    @property
    def id(self) -> tuple[str, str]:
        """What the state is found by: uid and name."""
        return (self.uid, self.name)

    def differences(self, other: StateSchema) -> list[tuple[str, Any, Any]]:
        """What keeps values of one from being read as the other: (what, self's, other's)."""
        return [
            (label, mine, theirs)
            for label, mine, theirs in (
                ("kind", self.kind, other.kind),
                ("key type", self.key, other.key),
                ("map key type", self.sub, other.sub),
                ("value type", self.value, other.value),
            )
            if mine != theirs
        ]
