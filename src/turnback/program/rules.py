"""What a descriptor is told about state that was stored with another type."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypedDict

from turnback.core.errors import StateError
from turnback.types.typeinfo import ListTypeInfo, MapTypeInfo, RowTypeInfo, TypeInfo

_Rows = dict[str, list[tuple[str, RowTypeInfo]]]


class EvolutionOptions(TypedDict, total=False):
    """What every descriptor can be told about stored state; see `StateDescriptor`."""

    aliases: Mapping[str, str] | None
    migrate: Callable[[Any], Any] | None
    migrate_from: Any


@dataclass(frozen=True, slots=True)
class EvolutionRules:
    """How stored values become values of the type declared now.

    Attributes:
        aliases: Pairs of the path of a field in the new type and its old name.
        migrate: Makes a new value from an old one; None when the built-in rules apply.
        migrate_from: The type whose values `migrate` takes; None for the stored one.
    """

    aliases: tuple[tuple[str, str], ...] = ()
    migrate: Callable[[Any], Any] | None = None
    migrate_from: TypeInfo | None = None


def checked_aliases(
    name: str, aliases: Mapping[str, str] | None, type_: TypeInfo | None
) -> tuple[tuple[str, str], ...]:
    """The aliases, if each gives one field of the type one name that no other field has."""
    if not isinstance(aliases, Mapping | None):
        raise StateError(
            f"state {name!r}: aliases maps new field names to old ones, got {aliases!r}"
        )
    # Without a type there is nothing to check against, and check() tells why there is none.
    pairs = tuple((aliases or {}).items())
    rows = {} if type_ is None else _rows_by_path(type_)
    taken: set[tuple[str, str]] = set()
    for path, old in pairs if type_ is not None else ():
        prefix, row = _row_of(name, path, rows)
        if not isinstance(old, str) or not old:
            raise StateError(f"state {name!r}: the old name of {path!r} must be text, got {old!r}")
        if old in row.names:
            raise StateError(
                f"state {name!r}: {path!r} cannot be read from {old!r}, which is itself a field "
                f"beside it; take the alias out, or use migrate="
            )
        if (prefix, old) in taken:
            raise StateError(f"state {name!r}: two fields have the alias {old!r}; keep one of them")
        taken.add((prefix, old))
    return pairs


def _row_of(name: str, path: Any, rows: _Rows) -> tuple[str, RowTypeInfo]:
    """The row a field is in, and the path to that row."""
    found = rows.get(path, [])
    if len(found) == 1:
        return found[0]
    if found:
        raise StateError(
            f"state {name!r}: the alias path {path!r} can be read in two ways, because a field has "
            f"a dot in its name; use migrate="
        )
    near = get_close_matches(str(path), rows, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"its fields: {', '.join(rows) or 'none'}"
    raise StateError(
        f"state {name!r}: aliases={{new name: old name}} names {path!r}, which is no field of its "
        f"type; {hint}"
    )


def _rows_by_path(type_: TypeInfo, prefix: str = "") -> _Rows:
    """Where each field path leads; more than one place where names have dots in them."""
    if isinstance(type_, ListTypeInfo):
        return _rows_by_path(type_.element, prefix)
    if isinstance(type_, MapTypeInfo):
        return _rows_by_path(type_.value, prefix)
    found: _Rows = {}
    if isinstance(type_, RowTypeInfo):
        for name, inner in zip(type_.names, type_.types, strict=True):
            found.setdefault(prefix + name, []).append((prefix, type_))
            for path, rows in _rows_by_path(inner, f"{prefix}{name}.").items():
                found.setdefault(path, []).extend(rows)
    return found


def check_migrate(
    name: str, rules: EvolutionRules, has_old_type: bool, type_: TypeInfo | None
) -> None:
    """Refuse a migration that could not be carried out."""
    migrate = rules.migrate
    if migrate is None:
        if has_old_type:
            raise StateError(f"state {name!r}: migrate_from= says what migrate= takes; give both")
        return
    if not callable(migrate) or not _takes_one(migrate):
        raise StateError(
            f"state {name!r}: migrate must be a callable of one value, got {migrate!r}"
        )
    if rules.aliases:
        raise StateError(
            f"state {name!r}: migrate= replaces all other rules, aliases= too; drop one of them"
        )
    if rules.migrate_from is not None and rules.migrate_from == type_:
        raise StateError(
            f"state {name!r}: migrate_from is the very type it has now, so that old values cannot "
            f"be told from new ones; give the state a new name if the meaning of its values "
            f"changes, or leave migrate_from out if it was only another kind of state"
        )


def _takes_one(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        pass  # a builtin that does not tell
    return True
