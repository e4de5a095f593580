"""What operators do with elements at which their functions fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from turnback.api.named import Named
from turnback.core.errors import PlanError
from turnback.functions.base import KeyedBatchFunction, OutputTag, user_function
from turnback.functions.operator_state import has_operator_state
from turnback.plan.dead_letters import DEAD_LETTER, DEAD_LETTERS, ErrorPolicy
from turnback.plan.graph import SIDE_OUTPUT_KINDS, TOLERANT_KINDS, NodeKind
from turnback.plan.malformed import MALFORMED, MALFORMED_RECORD

if TYPE_CHECKING:
    from turnback.api.stream import DataStream

_OURS = ("turnback.functions.", "turnback.timing.", "turnback.plan.")


class Tolerant(Named):
    """A stream whose operator can go on without elements at which its function fails."""

    def on_error(self, policy: str) -> Self:
        """Say what becomes of an element at which the function of this operator fails.

        Nothing of such an element stays: neither what the function has given for it, nor what it
        has done to state and timers. What it did elsewhere cannot be undone.

        Args:
            policy: "fail", the default: the attempt fails, and the restart strategy decides;
                "skip": the element is left out; "dead_letter": it goes to `dead_letters`.
        """
        try:
            chosen = ErrorPolicy(policy)
        except ValueError:
            known = ", ".join(repr(each.value) for each in ErrorPolicy)
            raise PlanError(f"on_error takes one of {known}, got {policy!r}") from None
        node = self._node
        function = user_function(node.function)
        whole = isinstance(function, KeyedBatchFunction)
        ours = type(function).__module__.startswith(_OURS) and node.kind in SIDE_OUTPUT_KINDS
        if chosen is not ErrorPolicy.FAIL and (node.kind not in TOLERANT_KINDS or whole or ours):
            raise PlanError(
                f"{node.kind.value} {node.name!r} cannot go on without an element: only functions "
                "of map, flat_map, filter and process that see one after the other can; check "
                "elements in one of these before it"
            )
        if chosen is not ErrorPolicy.FAIL and has_operator_state(node.function):
            raise PlanError(
                f"{node.kind.value} {node.name!r} keeps operator state in its own attributes, "
                "where what an element has done cannot be undone; check elements in a map before it"
            )
        node.on_error = chosen
        return self

    def dead_letters(self) -> DataStream:
        """Elements at which the function failed, with `on_error("dead_letter")`: to be written.

        They are rows: `operator`, `key` and `element` as text, `error`, `epoch`, `task`, `position`
        among the elements of the task, and `data`, by which `turnback redrive` feeds them back.
        """
        tag = OutputTag(DEAD_LETTERS, DEAD_LETTER)
        following: Any = self
        stream: DataStream = following._add(NodeKind.SIDE_OUTPUT, tag, tag, DEAD_LETTER)
        return stream.name("dead letters")

    def malformed_records(self) -> DataStream:
        """Records of this source that do not fit its schema, with `on_malformed="side"`.

        They are rows, to be written somewhere: the uid of the `source`, the `place` it was read
        from (the file, or partition and offset), and the `text` of the record.
        """
        node = self._node
        if node.kind is NodeKind.TIMESTAMPS:
            node = node.inputs[0]
        if node.kind is not NodeKind.SOURCE:
            raise PlanError(
                f"{node.kind.value} {node.name!r} has no malformed records: only what from_files "
                "and from_source give has; call malformed_records() there"
            )
        tag = OutputTag(MALFORMED, MALFORMED_RECORD)
        following: Any = self
        stream: DataStream = following._add(NodeKind.SIDE_OUTPUT, tag, tag, MALFORMED_RECORD)
        stream._node.inputs = (node,)
        return stream.name("malformed records")
