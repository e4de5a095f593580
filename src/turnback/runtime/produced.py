from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from turnback.core import Batch, RowTypeInfo, TypeInfo
from turnback.core.build import build_rows, row_builder
from turnback.core.coerce import spread
from turnback.core.columns import transpose
from turnback.core.errors import ElementTypeError
from turnback.core.row import row_class
from turnback.core.types import BasicTypeInfo, DecimalTypeInfo


class Produced(Batch):
    """Elements as a user's function gave them: tuples, dicts, rows without names.

    Whoever reads them one by one gets them as declared, whether or not there is a shuffle in
    between; a reader of columns does not pay for that.
    """

    __slots__ = ("_formed", "_operator")

    def __init__(self, type: TypeInfo, rows: list[Any], operator: str) -> None:
        super().__init__(type, rows)
        self._operator = operator
        self._formed = not isinstance(type, RowTypeInfo)

    @property
    def rows(self) -> list[Any]:
        """The elements, each of the declared class."""
        if not self._formed:
            try:
                self._rows = self._in_form()
            except ElementTypeError as e:
                raise self._misfit(e) from None
            self._formed = True
        return self._rows or []

    @property
    def arrow(self) -> pa.RecordBatch:
        """The columns."""
        try:
            return super().arrow
        except ElementTypeError as e:
            raise self._misfit(e) from None

    def _in_form(self) -> list[Any]:
        kind, rows = self.type, self._rows or []
        assert isinstance(kind, RowTypeInfo)
        if not all(isinstance(t, BasicTypeInfo | DecimalTypeInfo) for t in kind.types):
            return Batch(kind, arrow=super().arrow).rows  # rows inside of rows have a form as well
        wanted = kind.python_class or row_class(kind.names)
        if set(map(type, rows)) == {wanted}:
            return rows
        return build_rows(kind, transpose(rows, kind))

    def _misfit(self, error: ElementTypeError) -> ElementTypeError:
        return ElementTypeError(
            f"{self._operator} gave an element that does not fit its output type: {error}"
        )


def former(kind: TypeInfo) -> Callable[[Any], Any]:
    """A function that gives an element the class its type declares."""
    if not isinstance(kind, RowTypeInfo):
        return lambda element: element
    wanted, build = kind.python_class or row_class(kind.names), row_builder(kind) or tuple

    def form(element: Any) -> Any:
        return element if type(element) is wanted else build(spread(element, kind))

    return form
