"""Finds a state by the names a user gave, or says which names there are."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from turnback.core.errors import StateError
from turnback.savepoint.claims import StateId


def check_state(snapshot: str, ids: Collection[StateId], uid: str, state: str) -> StateId:
    """Return the id of a state that is there.

    Raises:
        StateError: It is not; the message suggests the nearest name.
    """
    check_operator(snapshot, ids, uid)
    if (uid, state) not in ids:
        names = [name for owner, name in ids if owner == uid]
        raise StateError(
            f"operator {uid!r} in {snapshot} has no state {state!r}; {_hint(state, names)}"
        )
    return uid, state


def check_operator(snapshot: str, ids: Iterable[StateId], uid: str) -> None:
    """Raise `StateError`, with the nearest name, if no operator of this uid has state."""
    uids = {owner for owner, _ in ids}
    if uid not in uids:
        raise StateError(f"{snapshot} has no state of an operator {uid!r}; {_hint(uid, uids)}")


def _hint(given: str, names: Collection[str]) -> str:
    near = get_close_matches(str(given), names, 1, 0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there is {', '.join(map(repr, sorted(names))) or 'no state at all'}"
