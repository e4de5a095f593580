import pickle

import pytest

from turnback.errors import PlanError
from turnback.functions.partitioning import KeySpec
from turnback.plan.graph import NodeKind, StreamGraph
from turnback.values.typeinfo import Types

LONG = Types.LONG()


def test_only_what_a_sink_depends_on_is_reachable():
    graph = StreamGraph()
    used = graph.add(NodeKind.SOURCE, "used", LONG)
    graph.add(NodeKind.SOURCE, "unused", LONG)
    mapped = graph.add(NodeKind.MAP, "map", LONG, (used,))
    graph.add(NodeKind.MAP, "loose end", LONG, (used,))
    union = graph.add(NodeKind.UNION, "union", LONG, (mapped, used))
    sink = graph.add(NodeKind.SINK, "sink", None, (union,))
    assert graph.reachable() == [used, mapped, union, sink]
    assert [n.name for n in graph.sources()] == ["used", "unused"]
    assert graph.sinks() == [sink]
    assert [n.id for n in graph.nodes] == list(range(6))


def test_a_key_knows_how_it_is_hashed():
    columns = KeySpec(("a", "b"), None, (Types.STRING(), LONG))
    function = KeySpec((), str, (Types.STRING(),))
    assert columns.codec().by_columns
    assert not function.codec().by_columns
    assert pickle.loads(pickle.dumps(columns)) == columns
    assert KeySpec((), str, (Types.STRING(),)) == function != KeySpec((), repr, function.types)
    with pytest.raises(PlanError, match="double cannot be a key"):
        KeySpec(("a",), None, (Types.DOUBLE(),)).codec()
