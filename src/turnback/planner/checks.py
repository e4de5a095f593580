from __future__ import annotations

from collections.abc import Sequence

import xxhash

from turnback.core import check_uid
from turnback.core.errors import PlanError, UnsupportedTypeError
from turnback.functions import declared_states
from turnback.graph import KEYED_KINDS, REDUCED, Node, NodeKind


def assign_uids(nodes: Sequence[Node]) -> tuple[dict[int, str], list[str]]:
    """Give every operator a uid; generated ones depend on the topology and earn a warning."""
    uids: dict[int, str] = {}
    warnings: list[str] = []
    for node in nodes:
        if node.uid is not None:
            uids[node.id] = check_uid(node.uid)
            continue
        ancestry = "/".join([node.kind.value, *(uids[i.id] for i in node.inputs)])
        twins = sum(1 for n in nodes if n.id < node.id and _shape(n) == _shape(node))
        uids[node.id] = f"auto-{xxhash.xxh64_hexdigest(f'{ancestry}#{twins}'.encode())}"
        if node.kind in KEYED_KINDS or node.kind in (NodeKind.SOURCE, NodeKind.SINK):
            warnings.append(
                f"{node.kind.value} {node.name!r} has no uid; its generated one changes when the "
                f"program does, and its state is then not found. Add .uid(...)."
            )
    _refuse_duplicates(nodes, uids)
    return uids, warnings


def _shape(node: Node) -> tuple[NodeKind, tuple[int, ...]]:
    return node.kind, tuple(i.id for i in node.inputs)


def _refuse_duplicates(nodes: Sequence[Node], uids: dict[int, str]) -> None:
    owner: dict[str, Node] = {}
    for node in nodes:
        uid = uids[node.id]
        if uid in owner:
            raise PlanError(
                f"two operators have the uid {uid!r}: {owner[uid].kind.value} "
                f"{owner[uid].name!r} and {node.kind.value} {node.name!r}; give each its own"
            )
        owner[uid] = node


def check_keys(nodes: Sequence[Node], uids: dict[int, str]) -> None:
    """Refuse keys whose type cannot be a key."""
    for node in nodes:
        if node.key is None:
            continue
        try:
            node.key.codec()
        except PlanError as e:
            raise PlanError(f"operator {uids[node.id]!r} ({node.name}): {e}") from None


def check_states(nodes: Sequence[Node], uids: dict[int, str]) -> None:
    """Refuse declared states that cannot be stored, are there twice, or have no key."""
    for node in nodes:
        who = f"operator {uids[node.id]!r} ({node.name})"
        seen = {REDUCED} if node.kind is NodeKind.REDUCE else set[str]()
        for descriptor in declared_states(node.function).values():
            if node.kind not in KEYED_KINDS:
                raise PlanError(
                    f"{who} declares the state {descriptor.name!r}, but its stream has no key; put "
                    f"key_by(...) before it"
                )
            if descriptor.name in seen:
                raise PlanError(f"{who} declares the state {descriptor.name!r} twice; rename one")
            seen.add(descriptor.name)
            try:
                descriptor.check()
            except UnsupportedTypeError as e:
                raise UnsupportedTypeError(f"{who}: {e}") from None


def check_parallelism(nodes: Sequence[Node], default: int, maximum: int) -> None:
    """Refuse a parallelism above the number of key groups."""
    for node in nodes:
        wanted = node.parallelism or default
        if wanted > maximum:
            raise PlanError(
                f"{node.name!r} has parallelism {wanted}, above the maximum of {maximum}; "
                f"lower it or call set_max_parallelism"
            )
