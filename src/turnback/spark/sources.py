"""All sources as one streaming DataFrame, so that one offset log holds every position."""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from turnback.core.errors import PlanError
from turnback.program.plan import Plan, SourcePlan
from turnback.spark.internals import source_directories, streaming_nodes
from turnback.types.columns import stream_columns
from turnback.worker.program import CHANNEL, CONTROL, TO, RowLayout, source_layout


def united(plan: Plan) -> DataFrame:
    """The union of all sources, in the plan's order, with the columns of `source_layout`."""
    layout = source_layout(plan)
    channel_of = {w.producer: w.id for w in layout.channels}
    frames = [_tagged(s, channel_of[s.id], layout) for s in plan.sources]
    return reduce(DataFrame.union, frames)


def nulls(layout: RowLayout) -> list[Column]:
    """The data columns of a layout, all null."""
    return [F.lit(None).cast(type.ddl()).alias(name) for name, type in layout.fields]


def control(to: Column | None, channel: int | None, ctl: Column | None) -> list[Column]:
    """The control columns of a layout."""
    return [
        (F.lit(None) if to is None else to).cast("int").alias(TO),
        F.lit(channel).cast("int").alias(CHANNEL),
        (F.lit(None) if ctl is None else ctl).cast("binary").alias(CONTROL),
    ]


def stream_counts(plan: Plan) -> dict[str, int]:
    """How many streams each source reads; one, if it is no DataFrame but of another engine."""
    return {
        s.uid: len(_streams(s)) if isinstance(s.dataframe, DataFrame) else 1 for s in plan.sources
    }


def leaf_names(plan: Plan) -> list[str]:
    """A name for every stream below the union, in Spark's order."""
    names: list[str] = []
    for uid, count in stream_counts(plan).items():
        names += [uid] if count == 1 else [f"{uid}#{i}" for i in range(count)]
    return names


def leaf_directories(plan: Plan) -> dict[str, str]:
    """The directory of every stream in Spark's checkpoint, by name, in Spark's order."""
    streams = [stream for source in plan.sources for stream in _streams(source)]
    return dict(zip(leaf_names(plan), source_directories(streams), strict=True))


def _tagged(source: SourcePlan, channel: int, layout: RowLayout) -> DataFrame:
    columns, span = nulls(layout), layout.spans[channel]
    for i, (name, _) in enumerate(stream_columns(source.type)):
        quoted = f"`{name.replace('`', '``')}`"
        columns[span.start + i] = F.col(quoted).alias(layout.fields[span.start + i][0])
    frame: DataFrame = source.dataframe
    return frame.select(*control(None, channel, None), *columns)


def _streams(source: SourcePlan) -> tuple[Any, ...]:
    found = streaming_nodes(source.dataframe)
    if found.stateful:
        raise PlanError(
            f"source {source.uid!r}: its DataFrame holds state of Spark's own "
            f"({', '.join(found.stateful)}), which cannot be part of a checkpoint; do that step "
            "with key_by and process"
        )
    return found.leaves
