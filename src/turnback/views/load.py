"""Which operator holds a job back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import msgspec

from turnback.views.model import OperatorNode

_IDLE = 0.05
"""Who works less than this share of the time holds nobody back."""


def bottleneck(nodes: Iterable[OperatorNode]) -> str | None:
    """Return the uid of the operator whose busiest task is the busiest of all; None if all rest."""
    busy = [(node.load.busiest, node.uid) for node in nodes if node.load is not None]
    busiest, uid = max(busy, default=(0.0, ""))
    return uid if busiest >= _IDLE else None


def with_bottlenecks(nodes: Collection[OperatorNode]) -> tuple[OperatorNode, ...]:
    """Tell of each source which of the operators that read from it is its bottleneck."""
    by_uid = {node.uid: node for node in nodes}
    readers: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        for input in node.inputs:
            readers[input].append(node.uid)

    def downstream(uid: str) -> set[str]:
        found = set[str]()
        waiting = [uid]
        while waiting:
            for reader in readers[waiting.pop()]:
                if reader not in found:
                    found.add(reader)
                    waiting.append(reader)
        return found

    return tuple(
        msgspec.structs.replace(
            node, bottleneck=bottleneck(by_uid[uid] for uid in downstream(node.uid))
        )
        if not node.inputs
        else node
        for node in nodes
    )
