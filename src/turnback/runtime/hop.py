from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from turnback.core import TypeInfo
from turnback.core.batch import stream_columns
from turnback.planner import Wire

TO = "_to"
WIRE = "_wire"
CONTROL = "_ctl"


@dataclass(frozen=True)
class Hop:
    """The columns of the rows that go from one level to the next.

    `_to` is the partition a row is sent to (null where Spark computes it from the key columns),
    `_wire` the wire it belongs to, `_ctl` a barrier; then the typed columns of every wire, null in
    the rows of the others.
    """

    wires: tuple[Wire, ...]

    @cached_property
    def fields(self) -> list[tuple[str, TypeInfo]]:
        """The data columns of all wires, in order."""
        return [
            # Unique where Spark takes "n" and "N" for one, and without a need for quotes.
            (f"w{wire.id}_{i}_{re.sub('[^A-Za-z0-9_]', '_', name)}", type)
            for wire in self.wires
            for i, (name, type) in enumerate(stream_columns(wire.type))
        ]

    @cached_property
    def spans(self) -> dict[int, slice]:
        """Which of the data columns belong to each wire."""
        spans, at = {}, 0
        for wire in self.wires:
            width = len(stream_columns(wire.type))
            spans[wire.id] = slice(at, at + width)
            at += width
        return spans

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of a hop's rows."""
        control = [(TO, pa.int32()), (WIRE, pa.int32()), (CONTROL, pa.binary())]
        return pa.schema(control + [(name, type.arrow()) for name, type in self.fields])

    def ddl(self) -> str:
        """The same for Spark."""
        columns = [f"{TO} int", f"{WIRE} int", f"{CONTROL} binary"]
        columns += [f"{name} {type.ddl()}" for name, type in self.fields]
        return ", ".join(columns)

    def pack(self, wire: Wire, data: pa.RecordBatch, to: pa.Array | None) -> pa.RecordBatch:
        """Rows of one wire as rows of the hop."""
        n = data.num_rows
        arrays: list[pa.Array] = [
            pa.nulls(n, pa.int32()) if to is None else to,
            pa.repeat(pa.scalar(wire.id, pa.int32()), n),
            pa.nulls(n, pa.binary()),
        ]
        span = self.spans[wire.id]
        for i, (_, type) in enumerate(self.fields):
            mine = span.start <= i < span.stop
            arrays.append(data.column(i - span.start) if mine else pa.nulls(n, type.arrow()))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def barriers(self, targets: Sequence[int], controls: Sequence[bytes]) -> pa.RecordBatch:
        """One barrier row per downstream partition."""
        n = len(targets)
        arrays: list[pa.Array] = [
            pa.array(targets, pa.int32()),
            pa.nulls(n, pa.int32()),
            pa.array(controls, pa.binary()),
        ]
        arrays += [pa.nulls(n, type.arrow()) for _, type in self.fields]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def unpack(self, batch: pa.RecordBatch) -> tuple[list[tuple[int, pa.RecordBatch]], list[bytes]]:
        """Split what arrived into the rows of each wire and the barriers among them."""
        wire, control = batch.column(1), batch.column(2)
        barriers: list[bytes] = []
        if control.null_count != len(control):
            barriers = control.drop_null().to_pylist()
            keep = pc.is_null(control)
            batch, wire = batch.filter(keep), wire.filter(keep)
        if not batch.num_rows:
            return [], barriers
        if len(self.wires) == 1:
            return [(self.wires[0].id, self._project(batch, self.wires[0]))], barriers
        parts = []
        for each in self.wires:
            mask = pc.equal(wire, each.id)
            part = batch.filter(mask)
            if part.num_rows:
                parts.append((each.id, self._project(part, each)))
        return parts, barriers

    def _project(self, batch: pa.RecordBatch, wire: Wire) -> pa.RecordBatch:
        span = self.spans[wire.id]
        columns = stream_columns(wire.type)
        arrays = []
        for i, (_, type) in enumerate(columns):
            array, wanted = batch.column(3 + span.start + i), type.arrow()
            # Spark labels timestamps with the session's zone and knows only nullable children.
            arrays.append(array if array.type == wanted else array.cast(wanted))
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])
