"""Operators whose functions take whole Arrow batches, without a Python object per element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from turnback.core.errors import ElementTypeError, TooLargeError
from turnback.functions.base import KeyedColumns
from turnback.functions.groups import GroupError
from turnback.functions.key_spec import KeySpec
from turnback.plan.plan import Operator
from turnback.values.columns import Batch, stream_schema
from turnback.worker.keyed_columns import BatchState
from turnback.worker.keys import DistinctKeys, distinct_key_reader
from turnback.worker.message import user_error
from turnback.worker.runners import Runner
from turnback.worker.stamps import Stamps

MOST_ROWS = 1 << 20
MOST_BYTES = 64 << 20
"""What is gathered for one call; a single piece from Spark may be larger."""


class BatchRunner(Runner):
    """Base of the operators that call a function for a batch, and check what it gives."""

    method: ClassVar[str]

    def call(self, elements: int, function: Callable[..., Any], *arguments: Any) -> Batch | None:
        """What the function makes of a batch; errors name the operator."""
        op = self.operator
        assert op.type is not None
        schema = stream_schema(op.type)
        tables: list[pa.Table] = []
        try:
            result = function(*arguments)
            whole = result is None or isinstance(result, pa.RecordBatch | pa.Table)
            for part in [result] if whole else result:
                if part is not None:
                    tables.append(self._conform(part, schema))
        except GroupError as e:
            raise self._of_group(e) from None
        except ElementTypeError:
            raise
        except Exception as e:
            raise user_error(e, op.uid, op.name, batch_of=f"{elements} elements") from e
        if not sum(t.num_rows for t in tables):
            return None
        batches = pa.concat_tables(tables).combine_chunks().to_batches()
        if len(batches) > 1:
            raise TooLargeError(
                f"operator {op.uid!r} ({op.name}): {self.method} gave more than the 2 GiB at once "
                f"that a column of an Arrow batch holds; give fewer or smaller rows"
            )
        return Batch(op.type, batches[0])

    def attempt(self, elements: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function that may be the user's gives; errors name the operator."""
        try:
            return function(*arguments)
        except GroupError as e:
            raise self._of_group(e) from None
        except ElementTypeError:
            raise
        except Exception as e:
            op = self.operator
            raise user_error(e, op.uid, op.name, batch_of=f"{elements} elements") from e

    def _conform(self, part: Any, schema: pa.Schema) -> pa.Table:
        table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        if not isinstance(table, pa.Table) or set(table.column_names) != set(schema.names):
            got = table.column_names if isinstance(table, pa.Table) else repr(table)[:80]
            raise self._mismatch(f"got {got}, expected the columns {schema.names}")
        try:
            table = table.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as e:
            raise self._mismatch(str(e)) from None
        # Its memory may be a NumPy array that the function fills again; the empty part makes
        # Arrow copy it.
        return pa.concat_tables([table, schema.empty_table()]).combine_chunks()

    def _of_group(self, error: GroupError) -> ElementTypeError:
        return ElementTypeError(f"operator {self.operator.uid!r} ({self.operator.name}): {error}")

    def _mismatch(self, problem: str) -> ElementTypeError:
        op = self.operator
        return ElementTypeError(
            f"operator {op.uid!r} ({op.name}): {self.method} must give Arrow batches or tables of "
            f"{op.type}: {problem}"
        )


class MapBatchesRunner(BatchRunner):
    """Arrow in, Arrow out."""

    method = "map_batches"

    def process(self, batch: Batch) -> Batch | None:
        return self.call(len(batch), self.operator.function, batch.arrow)


class GatheringRunner(BatchRunner):
    """Base of the operators that gather elements before they process them.

    Spark hands them over in pieces of some thousand rows, too few to make up for what a call
    costs.
    """

    def __init__(self, operator: Operator, key: KeySpec) -> None:
        super().__init__(operator)
        assert operator.input_type is not None
        self.keys = distinct_key_reader(key, operator.input_type, operator.uid)
        self._gathered: list[tuple[pa.RecordBatch, Stamps | None]] = []
        self.rows = self.bytes = 0
        """How much has been gathered."""

    def begin(self) -> None:
        super().begin()
        self._drop()

    def process(self, batch: Batch) -> Batch | None:
        data = batch.arrow
        self._gathered.append((data, batch.stamps))
        self.rows += data.num_rows
        self.bytes += data.nbytes
        return None

    def gathered(self) -> Batch | None:
        """Take all elements so far; None if there are none."""
        parts = self._gathered[:]
        rows = self.rows
        self._drop()
        if not rows:
            return None
        (data,) = pa.Table.from_batches([part for part, _ in parts]).combine_chunks().to_batches()
        assert self.operator.input_type is not None
        batch = Batch(self.operator.input_type, data)
        stamps = [each for part, each in parts if part.num_rows]
        known = [each for each in stamps if each is not None]
        if len(known) == len(stamps):
            batch.stamps = Stamps.join(known)
        return batch

    def _drop(self) -> None:
        self._gathered.clear()
        self.rows = self.bytes = 0


class PortionRunner(GatheringRunner):
    """Base of those that process an epoch in large portions: all of it, unless that is too much."""

    def process(self, batch: Batch) -> Batch | None:
        data = batch.arrow
        out = None
        if self.rows + data.num_rows > MOST_ROWS or self.bytes + data.nbytes > MOST_BYTES:
            out = self.process_rest()
        super().process(batch)
        return out

    def process_rest(self) -> Batch | None:
        batch = self.gathered()
        return None if batch is None else self.process_gathered(batch, self.keys(batch))

    @abstractmethod
    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        """Do the operator's work on all elements so far, which have these keys."""


class KeyedBatchRunner(PortionRunner):
    """A `KeyedBatchFunction`."""

    method = "process_batch"

    def __init__(self, operator: Operator) -> None:
        assert operator.key is not None
        super().__init__(operator, operator.key)

    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        op = self.operator
        state: KeyedColumns = BatchState(op.uid, keys)
        return self.call(len(batch), op.function.process_batch, batch.arrow, state)


class CombineRunner(PortionRunner):
    """The part of an aggregation that comes before the shuffle."""

    method = "combine"

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator, operator.function.key)

    def process_gathered(self, batch: Batch, keys: DistinctKeys) -> Batch | None:
        combine = self.operator.function.combine
        return self.call(len(batch), combine, batch.arrow, keys.column, keys.index)
