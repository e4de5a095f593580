from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnback.core.errors import StateError
from turnback.state.schema import StateSchema


def encode_all(
    schema: StateSchema,
    encode: Callable[[Sequence[Any]], list[bytes]],
    keys: Sequence[Any],
    values: Sequence[Any],
) -> list[bytes | None]:
    """Encode the values of a state, None as None; an error names the state and the key."""
    try:
        present = [value for value in values if value is not None]
        encoded: list[bytes | None] = [*encode(present)]
    except Exception:
        for key, value in zip(keys, values, strict=True):
            try:
                encode([value])
            except Exception as e:
                raise misfit(schema, key, value, e) from e
        raise
    if len(present) < len(values):
        rest = iter(encoded)
        encoded = [None if value is None else next(rest) for value in values]
    return encoded


def misfit(schema: StateSchema, key: Any, value: Any, cause: Exception) -> StateError:
    """The error for a value that cannot be encoded."""
    return StateError(
        f"state {schema.name!r} of operator {schema.uid!r}, key {_shown(key)}: the value "
        f"{_shown(value)} does not fit the declared type {schema.value}: {cause}"
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
