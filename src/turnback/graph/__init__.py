from turnback.graph.key import KeySpec
from turnback.graph.node import KEYED_KINDS, REDUCED, Node, NodeKind
from turnback.graph.streamgraph import StreamGraph

__all__ = ["KEYED_KINDS", "REDUCED", "KeySpec", "Node", "NodeKind", "StreamGraph"]
