"""`Types`: makes types, under the names PyFlink gives them."""

from __future__ import annotations

from collections.abc import Sequence

from turnback.types.typeinfo import (
    BasicTypeInfo,
    DecimalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInfo,
)

# ruff: noqa: N802 (the names are PyFlink's)


class Types:
    """Makes types, under the names PyFlink gives them."""

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
        """A point in time; an aware `datetime.datetime`, handed out in UTC."""
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
        """A list, under the name of a Java array; of BYTE, it is a byte string."""
        if element_type == Types.BYTE():
            return Types.BYTES()
        return ListTypeInfo(element_type)

    @staticmethod
    def MAP(key_type: TypeInfo, value_type: TypeInfo) -> TypeInfo:
        """A dict with keys of one type and values of another."""
        return MapTypeInfo(key_type, value_type)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInfo:
        """Any Python object, pickled: opaque, unsafe to read from strangers, cannot evolve."""
        return BasicTypeInfo("pickled")


def _positional(types: Sequence[TypeInfo]) -> tuple[str, ...]:
    return tuple(f"f{i}" for i in range(len(types)))
