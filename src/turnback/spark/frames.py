"""The DataFrame that runs epochs, and how large the batches are that Spark hands to Python."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from turnback.plan.plan import Channel, Plan, Routing
from turnback.spark.pickling import pickle_by_value
from turnback.spark.worker import LevelTask
from turnback.values.columns import stream_columns
from turnback.worker.program import (
    CHANNEL,
    CONTROL,
    TO,
    LevelProgram,
    RowLayout,
    level_programs,
    pickled,
)

_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_NONE = str(2**31 - 1)
"""What Spark takes for no limit in bytes."""

_FEW_TASKS = 16

SMALL = 16 << 20
"""Batches up to this size need no limit: it leaves room for rows much larger than any so far."""


class BatchLimit:
    """Does without a limit in bytes while the limit in rows alone keeps batches small.

    Spark measures a batch after every row that it adds, which takes a third of the time of handing
    the rows over. An attempt begins with the limit, until it has seen rows. Were they to grow a
    hundredfold at once, the attempt would fail, and the next one begin with the limit again. A
    limit that the user has set is left alone.
    """

    def __init__(self) -> None:
        self._row_bytes = 0
        self._is_off = False

    def learn(self, row_bytes: int) -> None:
        """Learn how large the rows of an epoch were; 0 if there were too few to tell."""
        self._row_bytes = max(self._row_bytes, row_bytes)

    def apply(self, session: SparkSession) -> None:
        """Set or remove the limit in the session of the next epoch."""
        rows = int(session.conf.get(_ROWS) or 0)
        is_small = 0 < rows * self._row_bytes <= SMALL
        if self._is_off and not is_small:
            session.conf.unset(_BYTES)
            self._is_off = False
        elif is_small and not self._is_off and session.conf.get(_BYTES, None) is None:
            session.conf.set(_BYTES, _NONE)
            self._is_off = True


def epoch_frame(sources: DataFrame, plan: Plan) -> DataFrame:
    """The stream of acknowledgements: level after level over the stream of all sources.

    Before each level is a shuffle, but not before one that reads the sources. It is the same in
    every epoch, so Spark has to build nothing anew; what differs is in the orders.
    """
    frame = sources
    for program in level_programs(plan):
        route = _route(program)
        if route is not None:
            assert program.level.parallelism is not None
            frame = frame.repartitionById(program.level.parallelism, route)
        blob = pickled(program, pickle_by_value)
        task = LevelTask(blob, program.level.index, program.reads_sources)
        # Spark insists on a function; the name is what its UI shows.
        frame = frame.mapInArrow(task.__call__, program.output.ddl())
    return frame


def collect_controls(frame: DataFrame) -> list[bytes]:
    """Run an epoch on a batch of `epoch_frame`; return the one row that each last task gives.

    Spark has planned the batch already, but `DataFrame.collect` plans to read its result once more,
    as a query of its own, which takes 15 to 30 ms. The rows come one by one here, so many of them
    are left to it. Tasks with several rows would give one of them several times.
    """
    rdd = frame._jdf.queryExecution().analyzed().rdd()
    if rdd.getNumPartitions() > _FEW_TASKS:
        return [bytes(row[CONTROL]) for row in frame.collect()]
    column = RowLayout(()).schema.get_field_index(CONTROL)
    return [bytes(row.getBinary(column)) for row in rdd.collect()]


def _route(program: LevelProgram) -> Column | None:
    """The partition of every row: given, or computed from its key columns; None: no shuffle."""
    if program.reads_sources:
        return None
    into = program.level.index
    maximum = program.max_parallelism
    if program.input.bare:
        return F.expr(_key_partition(program.input.channels[0], program.input, maximum))
    cases = [
        f"WHEN {channel.id} THEN {_key_partition(channel, program.input, maximum)}"
        for channel in program.input.channels
        if channel.routing(into) is Routing.KEY_COLUMNS
    ]
    if not cases:
        return F.col(TO)
    return F.expr(f"coalesce({TO}, CASE {CHANNEL} {' '.join(cases)} END)")


def _key_partition(channel: Channel, layout: RowLayout, max_parallelism: int) -> str:
    assert channel.key is not None
    names = [name for name, _ in stream_columns(channel.type)]
    span = layout.spans[channel.id]
    columns = [layout.fields[span.start + names.index(c)][0] for c in channel.key.columns]
    group = f"pmod(xxhash64({', '.join(columns)}), {max_parallelism})"
    return f"CAST({group} * {channel.parallelism} DIV {max_parallelism} AS INT)"
