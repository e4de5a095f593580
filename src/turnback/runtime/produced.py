from __future__ import annotations

from typing import Any

import pyarrow as pa

from turnback.core import Batch, RowTypeInfo, TypeInfo
from turnback.core.build import build_rows
from turnback.core.columns import transpose
from turnback.core.errors import ElementTypeError
from turnback.core.frozen import can_change
from turnback.core.row import row_class


class Produced(Batch):
    """Elements as a user's function gave them: tuples, dicts, rows without names; frozen.

    Whoever reads them one by one gets them as declared, whether or not there is a shuffle in
    between; a reader of columns does not pay for that.
    """

    __slots__ = ("_formed", "_operator")

    def __init__(self, type: TypeInfo, rows: list[Any], operator: str) -> None:
        super().__init__(type, rows)
        self._operator = operator
        self._formed: list[Any] | None = None

    @property
    def rows(self) -> list[Any]:
        """The elements, each of the declared class."""
        if self._formed is None:
            try:
                self._formed = self._in_form()
            except ElementTypeError as e:
                raise self._misfit(e) from None
        return self._formed

    @property
    def arrow(self) -> pa.RecordBatch:
        """The columns."""
        try:
            return super().arrow
        except ElementTypeError as e:
            raise self._misfit(e) from None

    def _in_form(self) -> list[Any]:
        kind, rows = self.type, self._rows or []
        parts = kind.types if isinstance(kind, RowTypeInfo) else (kind,)
        if any(isinstance(t, RowTypeInfo) or can_change(t) for t in parts):
            return Batch(kind, arrow=super().arrow).rows  # what is inside has a form as well
        if not isinstance(kind, RowTypeInfo):
            return rows
        wanted = kind.python_class or row_class(kind.names)
        if set(map(type, rows)) == {wanted}:
            return rows
        return build_rows(kind, transpose(rows, kind))

    def _misfit(self, error: ElementTypeError) -> ElementTypeError:
        return ElementTypeError(
            f"{self._operator} gave an element that does not fit its output type: {error}"
        )
