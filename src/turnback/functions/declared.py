from __future__ import annotations

from typing import Any

from turnback.functions.descriptors import StateDescriptor


def declared_states(function: Any) -> dict[str, StateDescriptor]:
    """The states a function declares as class attributes, by attribute name."""
    found: dict[str, StateDescriptor] = {}
    for cls in reversed(type(function).__mro__):
        for name, value in vars(cls).items():
            if isinstance(value, StateDescriptor):
                found[name] = value
            else:
                found.pop(name, None)
    return found
