"""What becomes of stored values when the program declares another type for them.

Nothing is guessed: a stored value becomes a new one without loss, by a rule written here or by the
user's own function, or it is refused by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from turnback.core.units import format_duration
from turnback.errors import ElementTypeError, UnsupportedTypeError
from turnback.functions.descriptors import EvolutionRules, StateDescriptor
from turnback.state.schema import SINGLE_KINDS, KeySchema, StateSchema, StateTtl
from turnback.values.coerce import short_repr
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
    type_from_descriptor,
)

Convert = Callable[[Any], Any]

_INTEGERS = ("byte", "short", "int", "long", "big_int")
# Of the integers, only those that every floating point number of the size can hold exactly.
_TO_FLOATING = {"float": ("byte", "short"), "double": ("byte", "short", "int")}
_HINT = "declare the stored type again, give the state a new name, or convert it with migrate="


@dataclass(frozen=True, slots=True)
class Same:
    """Stored values are what the program declares; their bytes can be taken as they are."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Stored values have to be converted, one by one.

    Attributes:
        why: What differs, for people.
        convert: Takes a value decoded with the stored type (rows are tuples in field order) and
            returns one that encodes with the new type; None where values stay as they are, and
            only the times of their last update come or go.
    """

    why: str
    convert: Convert | None


@dataclass(frozen=True, slots=True)
class Incompatible:
    """Stored values cannot be read as what the program declares."""

    reason: str


Outcome = Same | Migration | Incompatible


def evolve_state(stored: StateSchema, descriptor: StateDescriptor, key: KeySchema) -> Outcome:
    """Tell what has to be done to read a stored state as the one a program declares."""
    outcome = _evolve_values(stored, descriptor, key)
    changed = _other_accumulators(stored, descriptor)
    if changed:
        return Incompatible(_accumulator_problem(stored, changed))
    if isinstance(outcome, Incompatible) or (stored.ttl is None) == (descriptor.ttl is None):
        return outcome
    change = ttl_change(stored.ttl, descriptor_ttl(descriptor))
    if isinstance(outcome, Same):
        return Migration(change, None)
    return Migration(f"{outcome.why}; {change}", outcome.convert)


def _other_accumulators(stored: StateSchema, descriptor: StateDescriptor) -> list[str]:
    """Which accumulators would be taken over by something that they were not made by."""
    if descriptor.rules.migrate is not None:
        return []
    was = stored.accumulators or {}
    return [
        f"{repr(name) if name else 'its value'} was {was[name]} and is now {definition}"
        for name, definition in (descriptor.accumulators or {}).items()
        if name in was and was[name] != definition
    ]


def _accumulator_problem(stored: StateSchema, changed: Sequence[str]) -> str:
    return (
        f"{'; '.join(changed)}: the values aggregated so far have a different meaning. Restore "
        "the previous aggregate; or give it another name, or the operator another uid, so that "
        "it starts empty; or explicitly drop the stored state with "
        f"allow_non_restored_state=[{stored.uid!r}]"
    )


def descriptor_ttl(descriptor: StateDescriptor) -> StateTtl | None:
    """The time to live that a program declares."""
    return None if descriptor.ttl is None else StateTtl.of(descriptor.ttl)


def ttl_change(was: StateTtl | None, now: StateTtl | None) -> str:
    """What becomes of a time to live, for people; nothing if it stays."""
    before, after = (
        "for ever" if each is None else f"for {format_duration(each.ms)}" for each in (was, now)
    )
    return "" if before == after else f"values are kept {after}, previously {before}"


def _evolve_values(stored: StateSchema, descriptor: StateDescriptor, key: KeySchema) -> Outcome:
    rules = descriptor.rules
    sub = descriptor.key_type
    problem = (
        _definition_problem(stored, descriptor)
        or _key_problem(stored.key, key)
        or _kind_problem(stored.kind, descriptor.kind, rules)
        or _map_key_problem(stored.sub, None if sub is None else sub.describe())
    )
    if problem:
        return Incompatible(problem)
    try:
        old = type_from_descriptor(stored.value)
    except UnsupportedTypeError as error:
        return Incompatible(f"the stored type cannot be read by this version: {error}")
    if stored.kind == descriptor.kind:
        return evolve(old, descriptor.type, rules)
    outcome = _by_user(old, descriptor.type, rules)
    if isinstance(outcome, Incompatible):
        return outcome
    return Migration(
        f"{stored.kind} state becomes {descriptor.kind} state; {outcome.why}", outcome.convert
    )


def evolve(stored: TypeInfo, declared: TypeInfo, rules: EvolutionRules | None = None) -> Outcome:
    """Tell what has to be done to read values of one type as values of another.

    Added fields get the defaults of the class that the program declares. The user's own migration,
    if the rules have one, replaces everything else.
    """
    if stored == declared:
        return Same()
    rules = rules or EvolutionRules()
    if rules.migrate is not None:
        return _by_user(stored, declared, rules)
    search = _Search(dict(rules.aliases))
    step = search.between(stored, declared, _Location())
    if search.problems:
        return Incompatible(f"{'; '.join(search.problems)}. To continue, {_HINT}")
    return Migration("; ".join(search.notes), _or_none(step))


def _by_user(
    stored: TypeInfo, declared: TypeInfo, rules: EvolutionRules
) -> Migration | Incompatible:
    assert rules.migrate is not None
    called = getattr(rules.migrate, "__name__", type(rules.migrate).__name__)
    why = f"{_short(stored)} converted to {_short(declared)} by {called}()"
    old = rules.migrate_from
    if old is None:
        return Migration(why, _or_none(rules.migrate))
    if stored != old:
        # Bringing it there by the other rules could drop what the function should have seen.
        return Incompatible(
            f"values are stored as {_short(stored)}, which is neither the declared type nor "
            f"migrate_from, {_short(old)}; set migrate_from to the stored type, or omit it if "
            "the function accepts both"
        )
    return Migration(why, _or_none(_with_class(old, rules.migrate)))


def is_redefined(stored: StateSchema, descriptor: StateDescriptor) -> bool:
    """Whether stored values stand for something else than those that a program declares."""
    return _has_other_definition(stored, descriptor) or bool(
        _other_accumulators(stored, descriptor)
    )


def _has_other_definition(stored: StateSchema, descriptor: StateDescriptor) -> bool:
    was = stored.definition
    now = descriptor.definition
    return was is not None and now is not None and was != now


def _definition_problem(stored: StateSchema, descriptor: StateDescriptor) -> str | None:
    if not _has_other_definition(stored, descriptor):
        return None
    return (
        f"its definition changed from {stored.definition} to {descriptor.definition}, and the "
        "stored state would give wrong results. Restore the previous definition; or give the "
        "operator another uid; or explicitly drop the stored state with "
        f"allow_non_restored_state=[{stored.uid!r}], so that it starts empty. A job that is "
        "stopped with --drain leaves no such state"
    )


def _key_problem(stored: KeySchema, declared: KeySchema) -> str | None:
    if stored == declared:
        return None
    was = _how_keyed(stored)
    now = _how_keyed(declared)
    return (
        f"the stream was keyed by {was}, now by {now}: values are looked up by the bytes and the "
        "key group of their key, so keys cannot evolve. Key the stream as before, or write a "
        "savepoint with new keys offline"
    )


def _how_keyed(key: KeySchema) -> str:
    how = "columns" if key.columns else "a function"
    return f"{how} of type {', '.join(map(_short_descriptor, key.types))}"


def _kind_problem(stored: str, declared: str, rules: EvolutionRules) -> str | None:
    if stored == declared:
        return None
    if not {stored, declared} <= SINGLE_KINDS:
        return (
            f"{stored} state cannot become {declared} state, because they are stored "
            f"differently; declare it as {stored} state again or give the state a new name"
        )
    if rules.migrate is None:
        return (
            f"{stored} state becomes {declared} state only with a migrate= function, because the "
            "meaning of the values may differ; add one (lambda value: value if it does not), or "
            f"declare it as {stored} state again"
        )
    return None


def _map_key_problem(stored: Any, declared: Any) -> str | None:
    if stored == declared:
        return None
    was = _short_descriptor(stored)
    now = _short_descriptor(declared)
    return (
        f"the map's keys were {was}, now {now}: entries are looked up by the bytes of their key, "
        "so the type of map keys cannot change, not even to a wider one. Declare the stored key "
        "type again, or give the state a new name"
    )


@dataclass(frozen=True, slots=True)
class _Location:
    """A part of a value: the path of field names to it, and what people would call it."""

    path: str = ""
    label: str = "the value"

    def of_field(self, name: str) -> _Location:
        path = f"{self.path}.{name}" if self.path else name
        return _Location(path, repr(path))

    def inside(self, what: str) -> _Location:
        return _Location(self.path, f"{what} of {self.label}")


@dataclass(slots=True)
class _Search:
    """Walks two types side by side; collects what changes and what cannot."""

    aliases: dict[str, str]
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def between(self, old: TypeInfo, new: TypeInfo, at: _Location) -> Convert | None:
        """The conversion of values other than None; None if they stay what they are."""
        if old == new:
            return None
        if isinstance(old, RowTypeInfo) and isinstance(new, RowTypeInfo):
            return self._rows(old, new, at)
        if isinstance(old, ListTypeInfo) and isinstance(new, ListTypeInfo):
            step = self.between(old.element, new.element, at.inside("elements"))
            return None if step is None else _elements(step)
        if isinstance(old, MapTypeInfo) and isinstance(new, MapTypeInfo):
            return self._maps(old, new, at)
        if not _widens(old, new):
            self.problems.append(f"{at.label}: {_refusal(old, new)}")
            return None
        self.notes.append(f"{at.label} widened from {_short(old)} to {_short(new)}")
        floating = isinstance(new, BasicTypeInfo) and new.name in _TO_FLOATING
        return float if floating else None

    def _maps(self, old: MapTypeInfo, new: MapTypeInfo, at: _Location) -> Convert | None:
        if old.key != new.key:
            self.problems.append(
                f"keys of {at.label}: {_short(old.key)} cannot become {_short(new.key)}, because "
                f"map keys cannot evolve"
            )
        step = self.between(old.value, new.value, at.inside("values"))
        return None if step is None else _entries(step)

    def _rows(self, old: RowTypeInfo, new: RowTypeInfo, at: _Location) -> Convert | None:
        index = {name: i for i, name in enumerate(old.names)}
        parts: list[Convert] = []
        used: list[int] = []
        for name, type_ in zip(new.names, new.types, strict=True):
            inner = at.of_field(name)
            # A field's own name comes first: what was migrated once has it already.
            source = index.get(name)
            if source is None and self.aliases.get(inner.path) in index:
                source = index[self.aliases[inner.path]]
                self.notes.append(f"{inner.label} taken from {old.names[source]!r}")
            if source is None:
                parts.append(self._added(new, name, type_, inner))
            else:
                parts.append(_field(source, self.between(old.types[source], type_, inner)))
                used.append(source)
        if not used:
            self.problems.append(
                f"{at.label}: no field of {_short(old)} is left in {_short(new)}; name the old "
                f"fields in aliases="
            )
        dropped = [at.of_field(n).label for n, i in index.items() if i not in used]
        self.notes += [f"field {label} dropped" for label in dropped]
        if any(a > b for a, b in pairwise(used)):
            self.notes.append(f"fields of {at.label} reordered")
        return _fields(parts)

    def _added(self, row: RowTypeInfo, name: str, type_: TypeInfo, at: _Location) -> Convert:
        default = _default(row.python_class, name)
        try:
            value = default(None)
            Serializer(type_).encode(value)
        except ElementTypeError as error:
            self.problems.append(
                f"{at.label} is new, but its default does not match its type: {error}"
            )
        except Exception as error:  # noqa: BLE001 (the user's factory may raise anything)
            self.problems.append(f"{at.label} is new, but creating its default failed: {error!r}")
        else:
            how = "as None" if value is None else f"with default {short_repr(value)}"
            self.notes.append(f"field {at.label} added {how}")
        return default


def _widens(old: TypeInfo, new: TypeInfo) -> bool:
    if isinstance(old, DecimalTypeInfo) and isinstance(new, DecimalTypeInfo):
        more_places = new.scale >= old.scale
        return more_places and new.precision - new.scale >= old.precision - old.scale
    if not (isinstance(old, BasicTypeInfo) and isinstance(new, BasicTypeInfo)):
        return False
    a = old.name
    b = new.name
    if a in _INTEGERS and b in _INTEGERS:
        return _INTEGERS.index(a) < _INTEGERS.index(b)
    return (a, b) == ("float", "double") or a in _TO_FLOATING.get(b, ())


def _refusal(old: TypeInfo, new: TypeInfo) -> str:
    refusal = f"{_short(old)} cannot become {_short(new)}"
    if old == BasicTypeInfo("pickled") or new == BasicTypeInfo("pickled"):
        return f"{refusal}, because pickled objects cannot evolve"
    if _widens(new, old):
        return f"{refusal}, because the narrower type cannot hold every stored value"
    numbers = [isinstance(t, BasicTypeInfo) and t.name in _NUMBERS for t in (old, new)]
    return f"{refusal} exactly" if all(numbers) else refusal


_NUMBERS = (*_INTEGERS, *_TO_FLOATING)


def _default(cls: type | None, name: str) -> Convert:
    """What gives an added field its value; a factory is called for every value anew."""
    fields: tuple[Any, ...] = ()
    if cls is not None and issubclass(cls, msgspec.Struct):
        fields = msgspec.structs.fields(cls)
    elif cls is not None and dataclasses.is_dataclass(cls):
        fields = dataclasses.fields(cls)
    for each in fields:
        if each.name == name and not _is_missing(each.default_factory):
            return lambda _: each.default_factory()
        if each.name == name:
            return lambda _: None if _is_missing(each.default) else each.default
    value = getattr(cls, "_field_defaults", {}).get(name)
    return lambda _: value


def _is_missing(default: Any) -> bool:
    """Whether there is none; a class that came by way of pickle has a copy of the mark."""
    return default is msgspec.NODEFAULT or isinstance(default, type(dataclasses.MISSING))


def _or_none(step: Convert | None) -> Convert:
    return lambda value: value if value is None or step is None else step(value)


def _field(index: int, step: Convert | None) -> Convert:
    get = tuple.__getitem__
    convert = _or_none(step)
    return lambda row: convert(get(row, index))


def _fields(parts: list[Convert]) -> Convert:
    return lambda row: tuple([part(row) for part in parts])


def _elements(step: Convert) -> Convert:
    return lambda value: [None if v is None else step(v) for v in value]


def _entries(step: Convert) -> Convert:
    return lambda value: {k: None if v is None else step(v) for k, v in value.items()}


def _with_class(old: TypeInfo, migrate: Convert) -> Convert:
    """The user's function, given values of the class it expects, made at any depth."""
    serializer = Serializer(old)
    encode = serializer.encode
    decode = serializer.decode
    return lambda value: migrate(decode(encode(value)))


def _short(type_: TypeInfo) -> str:
    # Spark has no types for these: as DDL they look like others.
    ours = isinstance(type_, BasicTypeInfo) and type_.name in ("big_int", "pickled")
    text = str(type_.describe()) if ours else str(type_)
    return text if len(text) <= 80 else text[:77] + "..."


def _short_descriptor(descriptor: Any) -> str:
    try:
        return _short(type_from_descriptor(descriptor))
    except UnsupportedTypeError:
        return str(descriptor)
