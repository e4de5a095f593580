"""All sources as one streaming DataFrame, so that one offset log holds every position."""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from turnback.core.errors import PlanError
from turnback.program.plan import Plan, SourcePlan
from turnback.types.columns import stream_columns
from turnback.worker.program import CONTROL, TO, WIRE, RowLayout, source_layout

_STATEFUL = (
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState",
    "TransformWithState",
    "TransformWithStateInPySpark",
)


def united(plan: Plan) -> DataFrame:
    """The union of all sources, in the plan's order, with the columns of `source_layout`."""
    layout = source_layout(plan)
    wire_of = {w.producer: w.id for w in layout.wires}
    frames = [_tagged(s, wire_of[s.id], layout) for s in plan.sources]
    return reduce(DataFrame.union, frames)


def nulls(layout: RowLayout) -> list[Column]:
    """The data columns of a layout, all null."""
    return [F.lit(None).cast(type.ddl()).alias(name) for name, type in layout.fields]


def control(to: Column | None, wire: int | None, ctl: Column | None) -> list[Column]:
    """The control columns of a layout."""
    return [
        (F.lit(None) if to is None else to).cast("int").alias(TO),
        F.lit(wire).cast("int").alias(WIRE),
        (F.lit(None) if ctl is None else ctl).cast("binary").alias(CONTROL),
    ]


def stream_counts(plan: Plan) -> dict[str, int]:
    """How many streams each source reads."""
    return {source.uid: _streaming_leaves(source) for source in plan.sources}


def leaf_names(plan: Plan) -> list[str]:
    """A name for every streaming relation below the union, in Spark's order."""
    names: list[str] = []
    for uid, leaves in stream_counts(plan).items():
        names += [uid] if leaves == 1 else [f"{uid}#{i}" for i in range(leaves)]
    return names


def _tagged(source: SourcePlan, wire: int, layout: RowLayout) -> DataFrame:
    columns, span = nulls(layout), layout.spans[wire]
    for i, (name, _) in enumerate(stream_columns(source.type)):
        quoted = f"`{name.replace('`', '``')}`"
        columns[span.start + i] = F.col(quoted).alias(layout.fields[span.start + i][0])
    frame: DataFrame = source.dataframe
    return frame.select(*control(None, wire, None), *columns)


def _streaming_leaves(source: SourcePlan) -> int:
    if not isinstance(source.dataframe, DataFrame):
        return 1  # of another engine
    found, stack = 0, [source.dataframe._jdf.queryExecution().analyzed()]
    while stack:
        node = stack.pop()
        name, children = node.nodeName(), node.children()
        if name in _STATEFUL and node.isStreaming():
            raise PlanError(
                f"source {source.uid!r}: its DataFrame holds state of Spark's own ({name}), which "
                f"cannot be part of a checkpoint; do that step with key_by and process"
            )
        if children.size() == 0 and node.isStreaming():
            found += 1
        stack += [children.apply(i) for i in range(children.size())]
    return found
