"""States of snapshots, as they are written on a command line."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

import typer

from turnback.core.errors import StateError

StateOption = Annotated[
    str | None,
    typer.Option("--state", metavar="UID/NAME", help="One state; NAME alone if that is enough."),
]


def which_state(text: str, ids: Collection[tuple[str, str]], where: str) -> tuple[str, str]:
    """Uid and name of the state that is meant.

    Args:
        text: ``uid/name``, or the name alone if only one operator has such a state.
        ids: The states that are there.
        where: What they are the states of, for the error message.

    Raises:
        StateError: There is none, or there are several.
    """
    fitting = [id for id in ids if "/".join(id) == text] or [id for id in ids if id[1] == text]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        names = ", ".join(sorted("/".join(id) for id in fitting))
        raise StateError(f"{where} has several states {text!r}: write one of {names}")
    uid, slash, name = text.rpartition("/")
    if slash:
        from turnback.snapshot.snapshot import check_state

        return check_state(where, ids, uid, name)
    names = ", ".join(sorted("/".join(id) for id in ids)) or "none at all"
    raise StateError(f"{where} has no state {text!r}; there is {names}")
