"""Checks a program and cuts it into levels."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from turnback.core.errors import PlanError, UnsupportedTypeError
from turnback.core.ids import check_uid
from turnback.functions.base import Function, KeyedBatchFunction, declared_states
from turnback.functions.operator_state import has_operator_state
from turnback.plan.cut import Cut
from turnback.plan.dead_letters import DEAD_LETTERS, ErrorPolicy
from turnback.plan.graph import REDUCED, Node, NodeKind, StreamGraph
from turnback.plan.malformed import MALFORMED, MalformedPolicy
from turnback.plan.plan import Plan
from turnback.values.typeinfo import RowTypeInfo


def _assign_uids(nodes: Sequence[Node]) -> tuple[dict[int, str], list[str]]:
    """Give every operator a uid, and warn of generated ones: they depend on the topology."""
    uids: dict[int, str] = {}
    owners: dict[str, Node] = {}
    warnings: list[str] = []
    for node in nodes:
        if node.uid is not None:
            uid = check_uid(node.uid)
        else:
            ancestry = "/".join([node.kind.value, *(uids[i.id] for i in node.inputs)])
            twins = sum(1 for n in nodes if n.id < node.id and _shape(n) == _shape(node))
            uid = f"auto-{xxhash.xxh64_hexdigest(f'{ancestry}#{twins}'.encode())}"
            if _needs_uid(node):
                warnings.append(
                    f"{node.kind.value} {node.name!r} has no uid; its generated one changes when "
                    f"the program does, and its state is then not found. Add .uid(...)."
                )
        if uid in owners:
            raise PlanError(
                f"two operators have the uid {uid!r}: {owners[uid].kind.value} "
                f"{owners[uid].name!r} and {node.kind.value} {node.name!r}; give each its own"
            )
        uids[node.id], owners[uid] = uid, node
    return uids, warnings


def _needs_uid(node: Node) -> bool:
    if node.kind is NodeKind.SINK and getattr(node.function, "keeps_nothing", False):
        return False
    known = _may_have_state(node) or node.kind in (NodeKind.SOURCE, NodeKind.SINK)
    return known or has_operator_state(node.function)


def _may_have_state(node: Node) -> bool:
    if node.key is None:
        return False
    if node.kind not in (NodeKind.MAP, NodeKind.FLAT_MAP, NodeKind.FILTER):
        return True
    return type(node.function).open is not Function.open or bool(declared_states(node.function))


def _shape(node: Node) -> tuple[NodeKind, tuple[int, ...]]:
    return node.kind, tuple(i.id for i in node.inputs)


def _check_operators(nodes: Sequence[Node], uids: dict[int, str]) -> None:
    """Refuse keys of unsuitable types, and states that are unsuitable, ambiguous or not keyed."""
    for node in nodes:
        who = f"operator {uids[node.id]!r} ({node.name})"
        try:
            for key in node.keys:
                if key is not None:
                    key.codec()
        except PlanError as e:
            raise PlanError(f"{who}: {e}") from None
        _check_columns(node, who)
        _check_operator_state(node, who)
        _check_error_policy(node, nodes, who)
        seen = {REDUCED} if node.kind is NodeKind.REDUCE else set[str]()
        for descriptor in declared_states(node.function).values():
            if node.key is None:
                raise PlanError(
                    f"{who} declares the state {descriptor.name!r}, but its stream has no key; put "
                    f"key_by(...) before it"
                )
            if descriptor.name in seen:
                raise PlanError(f"{who} declares the state {descriptor.name!r} twice; rename one")
            seen.add(descriptor.name)
            if isinstance(node.function, KeyedBatchFunction) and descriptor.kind in ("list", "map"):
                raise PlanError(
                    f"{who} declares the {descriptor.kind} state {descriptor.name!r}, which has no "
                    f"column of values; use a KeyedProcessFunction, or a value state"
                )
            try:
                descriptor.check()
            except UnsupportedTypeError as e:
                raise UnsupportedTypeError(f"{who}: {e}") from None


def _check_columns(node: Node, who: str) -> None:
    """Refuse columns that a function says it reads, and that are not there."""
    columns = node.function.columns if isinstance(node.function, KeyedBatchFunction) else None
    type = node.inputs[0].type if node.inputs else None
    there = type.names if isinstance(type, RowTypeInfo) else ("value",)
    for column in columns or ():
        if column not in there:
            raise PlanError(
                f"{who} says it reads the column {column!r}; there are {list(there)}. Correct "
                f"`columns` of {node.function.__class__.__name__}"
            )


def _check_operator_state(node: Node, who: str) -> None:
    """Refuse a `CheckpointedFunction` where nobody would call it: inside of another function."""
    if has_operator_state(node.function):
        return
    for inner in getattr(node.function, "__dict__", {}).values():
        if has_operator_state(inner):
            raise PlanError(
                f"{who}: {type(inner).__name__} is a CheckpointedFunction, but has no operator "
                f"state here; keep it in a function of map, flat_map, filter or process"
            )


def _check_error_policy(node: Node, nodes: Sequence[Node], who: str) -> None:
    """Refuse dead letters and malformed records that nobody reads, and those of who has none."""
    tags = [n.function.tag_id for n in nodes if n.kind is NodeKind.SIDE_OUTPUT and node in n.inputs]
    if node.on_error is ErrorPolicy.DEAD_LETTER and DEAD_LETTERS not in tags:
        raise PlanError(
            f'{who} has on_error("dead_letter"), and nobody reads its dead letters; write them '
            'somewhere: dead_letters().sink_to(...), or choose on_error("skip")'
        )
    if DEAD_LETTERS in tags and node.on_error is not ErrorPolicy.DEAD_LETTER:
        raise PlanError(
            f'the dead letters of {who} are read, but it has none; call on_error("dead_letter")'
        )
    if node.on_malformed is MalformedPolicy.SIDE and MALFORMED not in tags:
        raise PlanError(
            f'{who} has on_malformed="side", and nobody reads its malformed records; write them '
            'somewhere: malformed_records().sink_to(...), or choose on_malformed="drop"'
        )
    if MALFORMED in tags and node.on_malformed is not MalformedPolicy.SIDE:
        raise PlanError(
            f"the malformed records of {who} are read, but it gives none; make the source with "
            'on_malformed="side"'
        )


def _check_parallelism(nodes: Sequence[Node], default: int, maximum: int) -> None:
    """Refuse a parallelism above the number of key groups."""
    for node in nodes:
        parallelism = node.parallelism or default
        if parallelism > maximum:
            raise PlanError(
                f"{node.name!r} has parallelism {parallelism}, above the maximum of {maximum}; "
                f"lower it or call set_max_parallelism"
            )


def plan(graph: StreamGraph, parallelism: int, max_parallelism: int) -> Plan:
    """Check a program and cut it into levels. Runs nothing."""
    if not graph.sources():
        raise PlanError("the job has no source; add one with from_dataframe, from_files, ...")
    if not graph.sinks():
        raise PlanError("the job has no sink; add sink_to(...) or print() to a stream")
    nodes = graph.reachable()
    uids, warnings = _assign_uids(nodes)
    _check_operators(nodes, uids)
    _check_parallelism(nodes, parallelism, max_parallelism)
    return Cut(nodes, uids, parallelism, max_parallelism).plan(tuple(warnings))
