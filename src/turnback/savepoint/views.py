import re
from collections.abc import Iterable

from turnback.savepoint.claims import StateId

_STRANGE = re.compile(r"\W+", re.ASCII)


def view_names(ids: Iterable[StateId]) -> dict[StateId, str]:
    """Give every state a name that SQL takes without quotes, made of its uid and its own name.

    Names that would be the same, by SQL's rules, get a number: ``count_total``, ``count_total_2``.
    The result depends on the ids only, not on their order.
    """
    names: dict[StateId, str] = {}
    taken: set[str] = set()
    for id in sorted(ids):
        plain = _STRANGE.sub("_", "_".join(id))
        if not plain[0].isalpha():
            plain = f"s{plain}" if plain[0] == "_" else f"s_{plain}"
        name, number = plain, 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        names[id] = name
    return names
