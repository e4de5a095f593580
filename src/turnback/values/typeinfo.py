"""What elements, keys and state values are made of.

A `TypeInfo` is a frozen value: two programs that declare the same type hold equal ones, and its
descriptor is stored with every state file. `Types` makes them, under PyFlink's names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from turnback.errors import UnsupportedTypeError

if TYPE_CHECKING:
    import pyarrow as pa


# ruff: noqa: N802 (the names of `Types` are PyFlink's)

Descriptor: TypeAlias = Any
"""JSON-able form of a type: a name, or a one-entry mapping for types with parameters."""


class TypeInfo(ABC):
    """The type of an element, a key or a state value. Every value may also be None."""

    __slots__ = ()

    @abstractmethod
    def arrow(self) -> pa.DataType:
        """Return the Arrow type of a column of such values."""

    @abstractmethod
    def ddl(self) -> str:
        """Return the type as Spark writes it, for example ``array<bigint>``."""

    @abstractmethod
    def describe(self) -> Descriptor:
        """Return the canonical JSON-able descriptor; `type_from_descriptor` reads it back."""

    def __str__(self) -> str:
        return self.ddl()


@dataclass(frozen=True, slots=True)
class BasicTypeInfo(TypeInfo):
    """A type without parameters, known by its name."""

    name: str

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        function, *arguments = BASIC[self.name].arrow
        return getattr(pa, function)(*arguments)

    def ddl(self) -> str:
        return BASIC[self.name].ddl

    def describe(self) -> Descriptor:
        return self.name


class Basic(NamedTuple):
    """What the name of a basic type stands for.

    Attributes:
        ddl: The type as Spark writes it.
        arrow: Arrow's function for the type of a column, and its arguments.
        python_class: The class of its values; None for any.
        bits: Size of an integer of fixed size, without its sign.
    """

    ddl: str
    arrow: tuple[Any, ...]
    python_class: type | None
    bits: int | None = None


BASIC: dict[str, Basic] = {
    "string": Basic("string", ("string",), str),
    "bytes": Basic("binary", ("binary",), bytes),
    "boolean": Basic("boolean", ("bool_",), bool),
    "byte": Basic("tinyint", ("int8",), int, 7),
    "short": Basic("smallint", ("int16",), int, 15),
    "int": Basic("int", ("int32",), int, 31),
    "long": Basic("bigint", ("int64",), int, 63),
    "big_int": Basic("decimal(38,0)", ("decimal128", 38, 0), int),
    "float": Basic("float", ("float32",), float),
    "double": Basic("double", ("float64",), float),
    "date": Basic("date", ("date32",), date),
    "time": Basic("time(6)", ("time64", "ns"), time),
    "timestamp": Basic("timestamp_ntz", ("timestamp", "us"), datetime),
    "instant": Basic("timestamp", ("timestamp", "us", "UTC"), datetime),
    "pickled": Basic("binary", ("binary",), None),
}


@dataclass(frozen=True, slots=True)
class DecimalTypeInfo(TypeInfo):
    """A decimal number of at most `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
            raise UnsupportedTypeError(
                f"decimal({self.precision},{self.scale}): the precision must be 1 to 38 and the "
                "scale 0 to the precision"
            )

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.decimal128(self.precision, self.scale)

    def ddl(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def describe(self) -> Descriptor:
        return {"decimal": [self.precision, self.scale]}


@dataclass(frozen=True, slots=True)
class ListTypeInfo(TypeInfo):
    """A list of elements of one type."""

    element: TypeInfo

    def __post_init__(self) -> None:
        _check_type("the elements of a list", self.element)

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.list_(pa.field("element", self.element.arrow()))

    def ddl(self) -> str:
        return f"array<{self.element.ddl()}>"

    def describe(self) -> Descriptor:
        return {"list": self.element.describe()}


@dataclass(frozen=True, slots=True)
class MapTypeInfo(TypeInfo):
    """A dict with keys of one type and values of another."""

    key: TypeInfo
    value: TypeInfo

    def __post_init__(self) -> None:
        _check_type("the keys of a map", self.key)
        _check_type("the values of a map", self.value)
        if not _hashable(self.key):
            raise UnsupportedTypeError(
                f"{self.key} cannot be the key of a map: its values cannot be hashed. "
                "Use a string, a number, bytes, a date, a timestamp or a tuple of those"
            )

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.map_(self.key.arrow(), self.value.arrow())

    def ddl(self) -> str:
        return f"map<{self.key.ddl()},{self.value.ddl()}>"

    def describe(self) -> Descriptor:
        return {"map": [self.key.describe(), self.value.describe()]}


@dataclass(frozen=True, slots=True)
class RowTypeInfo(TypeInfo):
    """A row of named fields.

    Attributes:
        python_class: What values come out as: `tuple`, or the NamedTuple, dataclass or
            `msgspec.Struct` the user declared; a `Row` when None. It is a matter of taste in the
            program, not of what is stored, so it takes no part in equality nor in the descriptor.
    """

    names: tuple[str, ...]
    types: tuple[TypeInfo, ...]
    python_class: type | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "types", tuple(self.types))
        _check_fields(self.names, self.types)

    def arrow(self) -> pa.DataType:
        import pyarrow as pa

        return pa.struct([pa.field(name, type_.arrow()) for name, type_ in self.fields()])

    def ddl(self) -> str:
        inner = ",".join(f"{quote_name(name)}:{type_.ddl()}" for name, type_ in self.fields())
        return f"struct<{inner}>"

    def describe(self) -> Descriptor:
        return {"row": [[name, type_.describe()] for name, type_ in self.fields()]}

    def fields(self) -> list[tuple[str, TypeInfo]]:
        return list(zip(self.names, self.types, strict=True))


def _check_fields(names: tuple[str, ...], types: tuple[TypeInfo, ...]) -> None:
    if not names or len(names) != len(types):
        raise UnsupportedTypeError(
            f"a row needs as many names as types, and at least one: got the names {list(names)} "
            f"and {len(types)} types"
        )
    for name, type_ in zip(names, types, strict=True):
        if not isinstance(name, str) or not name:
            raise UnsupportedTypeError(f"a field name must be a non-empty string, got {name!r}")
        _check_type(f"field {name!r}", type_)
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise UnsupportedTypeError(
            f"a row cannot have two fields with the same name: {', '.join(twice)}"
        )


def _check_type(what: str, type_: TypeInfo) -> None:
    if not isinstance(type_, TypeInfo):
        raise UnsupportedTypeError(
            f"{what}: expected a type made by Types or as_type, got {type_!r}"
        )


def _hashable(type_: TypeInfo) -> bool:
    if isinstance(type_, RowTypeInfo):
        return all(map(_hashable, type_.types)) and (
            type_.python_class is None or type_.python_class.__hash__ is not None
        )
    return not isinstance(type_, ListTypeInfo | MapTypeInfo)


def quote_name(name: str) -> str:
    """Return a field name as Spark's DDL wants it, in backticks where it needs them."""
    if name.isascii() and name.isidentifier():
        return name
    return "`" + name.replace("`", "``") + "`"


def type_from_descriptor(descriptor: Descriptor) -> TypeInfo:
    """Read a type back from what `TypeInfo.describe` returned."""
    if isinstance(descriptor, str) and descriptor in BASIC:
        return BasicTypeInfo(descriptor)
    if isinstance(descriptor, dict) and len(descriptor) == 1:
        ((kind, body),) = descriptor.items()
        try:
            return _COMPOUND[kind](body)
        except UnsupportedTypeError:
            raise
        except RecursionError:
            raise UnsupportedTypeError("a type descriptor is nested too deeply") from None
        except (TypeError, ValueError, KeyError):
            pass
    raise UnsupportedTypeError(f"not a type descriptor: {repr(descriptor)[:80]}")


_COMPOUND: dict[str, Callable[[Any], TypeInfo]] = {
    "list": lambda body: ListTypeInfo(type_from_descriptor(body)),
    "map": lambda body: MapTypeInfo(*map(type_from_descriptor, body)),
    "decimal": lambda body: DecimalTypeInfo(*body),
    "row": lambda body: RowTypeInfo(
        tuple(name for name, _ in body), tuple(type_from_descriptor(type_) for _, type_ in body)
    ),
}


class Types:
    """Creates types, under PyFlink's names."""

    @staticmethod
    def STRING() -> TypeInfo:
        """Text; `str`."""
        return BasicTypeInfo("string")

    @staticmethod
    def BYTE() -> TypeInfo:
        """An integer of 8 bits; `int`."""
        return BasicTypeInfo("byte")

    @staticmethod
    def SHORT() -> TypeInfo:
        """An integer of 16 bits; `int`."""
        return BasicTypeInfo("short")

    @staticmethod
    def INT() -> TypeInfo:
        """An integer of 32 bits; `int`."""
        return BasicTypeInfo("int")

    @staticmethod
    def LONG() -> TypeInfo:
        """An integer of 64 bits; `int`."""
        return BasicTypeInfo("long")

    @staticmethod
    def BIG_INT() -> TypeInfo:
        """An integer of any size in state, of at most 38 digits in a column; `int`."""
        return BasicTypeInfo("big_int")

    @staticmethod
    def FLOAT() -> TypeInfo:
        """A floating point number of 32 bits; `float`."""
        return BasicTypeInfo("float")

    @staticmethod
    def DOUBLE() -> TypeInfo:
        """A floating point number of 64 bits; `float`."""
        return BasicTypeInfo("double")

    @staticmethod
    def BIG_DEC(precision: int = 38, scale: int = 18) -> TypeInfo:
        """A decimal number; `decimal.Decimal`."""
        return DecimalTypeInfo(precision, scale)

    @staticmethod
    def BOOLEAN() -> TypeInfo:
        """True or False; `bool`."""
        return BasicTypeInfo("boolean")

    @staticmethod
    def BYTES() -> TypeInfo:
        """A byte string; `bytes`."""
        return BasicTypeInfo("bytes")

    @staticmethod
    def SQL_DATE() -> TypeInfo:
        """A calendar date; `datetime.date`."""
        return BasicTypeInfo("date")

    @staticmethod
    def SQL_TIME() -> TypeInfo:
        """A time of day; `datetime.time` without a zone."""
        return BasicTypeInfo("time")

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInfo:
        """A date and time without a zone; a naive `datetime.datetime`."""
        return BasicTypeInfo("timestamp")

    @staticmethod
    def INSTANT() -> TypeInfo:
        """A point in time; an aware `datetime.datetime`, returned in UTC."""
        return BasicTypeInfo("instant")

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInfo]) -> RowTypeInfo:
        """A row without names whose values are plain tuples."""
        return RowTypeInfo(_positional(field_types), tuple(field_types), tuple)

    @staticmethod
    def ROW(field_types: Sequence[TypeInfo]) -> RowTypeInfo:
        """A `Row` whose fields are called f0, f1 and so on."""
        return RowTypeInfo(_positional(field_types), tuple(field_types))

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInfo]) -> RowTypeInfo:
        """A `Row` with named fields."""
        return RowTypeInfo(tuple(field_names), tuple(field_types))

    @staticmethod
    def LIST(element_type: TypeInfo) -> TypeInfo:
        """A list of elements of one type."""
        return ListTypeInfo(element_type)

    BASIC_ARRAY = OBJECT_ARRAY = LIST

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInfo) -> TypeInfo:
        """A list, under the name of a Java array; for BYTE, a byte string."""
        return Types.BYTES() if element_type == Types.BYTE() else ListTypeInfo(element_type)

    @staticmethod
    def MAP(key_type: TypeInfo, value_type: TypeInfo) -> TypeInfo:
        """A dict with keys of one type and values of another."""
        return MapTypeInfo(key_type, value_type)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInfo:
        """Any Python object, pickled: opaque, unsafe to read if not trusted, cannot evolve."""
        return BasicTypeInfo("pickled")


def _positional(types: Sequence[TypeInfo]) -> tuple[str, ...]:
    return tuple(f"f{i}" for i in range(len(types)))
