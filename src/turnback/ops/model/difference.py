"""What differs between two snapshots."""

from __future__ import annotations

from typing import Any

from turnback.ops.model.view import View


class DiffRow(View, frozen=True, kw_only=True):
    """A difference between two snapshots: `change` is added, removed or changed."""

    change: str
    key: Any
    sub: Any = None
    before: Any = None
    after: Any = None


class StateDiffRow(View, frozen=True, kw_only=True):
    """How one state differs between two snapshots: in both, or only in one of them."""

    uid: str
    name: str
    presence: str


class DiffPage(View, frozen=True, kw_only=True):
    """Some differences of a state between two snapshots.

    Attributes:
        uid: The operator.
        name: The state.
        added: In the later one only, among what this page has compared.
        removed: In the earlier one only, likewise.
        changed: Other values, likewise.
        same: Equal, likewise.
        rows: The differences, at most as many as were asked for.
        next: What to ask for to see more; None at the end.
    """

    uid: str
    name: str
    added: int
    removed: int
    changed: int
    same: int
    rows: tuple[DiffRow, ...]
    next: str | None
