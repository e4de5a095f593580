"""What the plans of DataFrames tell, although Spark does not document them.

Part of `turnback.spark.internals`, which says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)


def streaming_nodes(frame: DataFrame) -> tuple[list[Any], list[str]]:
    """Return the streams of a DataFrame, in the order of Spark's offset log, and what keeps state.

    The offset log has one position for each stream in the plan, without a name. Without knowing the
    order, no position could be told from another. State that Spark keeps is in no checkpoint of
    ours, so it has to be detected before a job relies on it.
    """
    leaves: list[Any] = []
    stateful: list[str] = []
    stack = [analyzed(frame)]
    while stack:
        node = stack.pop()
        if not node.isStreaming():
            continue
        children = [node.children().apply(i) for i in range(node.children().size())]
        name = node.nodeName()
        streams = sum(child.isStreaming() for child in children)
        if name in _STATEFUL or (name == "Join" and streams > 1):
            stateful.append(name)
        if not children:
            leaves.append(node)
        stack += reversed(children)
    return leaves, stateful


def only_reads(spark: Any, sql: str) -> bool:
    """Whether SQL is a query, and neither writes nor creates, drops or sets anything.

    Spark has no mode in which it only reads, and `SparkSession.sql` runs a command at once.
    """
    session = spark._jsparkSession
    jvm = spark._jvm
    logical = "org.apache.spark.sql.catalyst.plans.logical"
    names = ("Command", "ParsedStatement", "InsertIntoDir")
    writing = [jvm.java.lang.Class.forName(f"{logical}.{name}") for name in names]
    stack = [session.sessionState().sqlParser().parsePlan(sql)]
    while stack:
        node = stack.pop()
        if any(kind.isInstance(node) for kind in writing):
            return False
        stack += [node.children().apply(i) for i in range(node.children().size())]
    return True


def source_directories(leaves: Sequence[Any]) -> list[str]:
    """The directory below ``sources`` that Spark gives to each stream of a query.

    It is the user's name for the stream, else a running number; a stream that the plan has twice
    has one directory. Without it, a file source's list of files would be looked for in vain, or
    taken from another source.
    """
    directories: list[str] = []
    unnamed = 0
    for i, leaf in enumerate(leaves):
        same = next((j for j in range(i) if leaves[j].equals(leaf)), None)
        if same is not None:
            directories.append(directories[same])
            continue
        # Streams have names since Spark 4.2.
        named = "sourceIdentifyingName" in dir(leaf)
        name = leaf.sourceIdentifyingName().nameOpt() if named else None
        if name is not None and name.isDefined():
            directories.append(name.get())
        else:
            directories.append(str(unnamed))
            unnamed += 1
    return directories


_ROW_BY_ROW = frozenset({"EventTimeWatermark", "Filter", "Generate", "Project", "SubqueryAlias"})


def keeps_order(frame: DataFrame) -> bool:
    """Whether a DataFrame gives what it makes of the rows of one stream in their order.

    Without it, rows that Spark has shuffled would be taken for being in the order of their source.
    """
    plan = analyzed(frame)
    while plan.children().size() == 1 and plan.nodeName() in _ROW_BY_ROW:
        plan = plan.children().head()
    return bool(plan.children().isEmpty())


def kept_columns(frame: DataFrame, leaf: Any) -> dict[str, str]:
    """Columns of a stream that a DataFrame gives on as they are: its names for them, by theirs.

    A column that was computed or renamed has another number in the plan. Without it, a column that
    only has the name of another would be taken for it.
    """
    plan = analyzed(frame)
    output = [plan.output().apply(i) for i in range(plan.output().size())]
    given = {int(column.exprId().id()): str(column.name()) for column in output}
    own = [leaf.output().apply(i) for i in range(leaf.output().size())]
    numbers = {str(column.name()): int(column.exprId().id()) for column in own}
    return {name: given[number] for name, number in numbers.items() if number in given}


def analyzed(frame: DataFrame) -> Any:
    """The plan of a DataFrame, with all names resolved."""
    return frame._jdf.queryExecution().analyzed()
