"""A savepoint that is being put together, and the names its states have in SQL."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec

from turnback.checkpoint.manifest import OperatorInfo
from turnback.core.errors import ConfigurationError, StateError
from turnback.core.ids import check_state_name, check_uid
from turnback.snapshot.metadata import StateId
from turnback.snapshot.snapshot import check_operator, check_state, source_uid
from turnback.state.schema import KeySchema, StateSchema

_NOT_IN_NAMES = re.compile(r"\W+", re.ASCII)


def view_names(ids: Iterable[StateId]) -> dict[StateId, str]:
    """Give every state a name that SQL takes without quotes, made of its uid and its own name.

    Names that would be the same, by SQL's rules, get a number: ``count_total``, ``count_total_2``.
    The result depends on the ids only, not on their order.
    """
    names: dict[StateId, str] = {}
    taken: set[str] = set()
    for id in sorted(ids):
        plain = _NOT_IN_NAMES.sub("_", "_".join(id))
        if not plain[0].isalpha():
            plain = f"s{plain}" if plain[0] == "_" else f"s_{plain}"
        name = plain
        number = 1
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        names[id] = name
    return names


S = TypeVar("S")
P = TypeVar("P")


class SavepointDraft(Generic[S, P]):
    """A savepoint that is being put together: what goes into it under which name.

    It never looks into what it holds: `S` stands for the rows of a state, `P` for the position of
    a source.
    """

    def __init__(
        self,
        name: str,
        states: Iterable[tuple[StateSchema, S]] = (),
        operators: Iterable[OperatorInfo] = (),
        sources: Mapping[str, P] | None = None,
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self._name = name
        self.states = {schema.id: (schema, content) for schema, content in states}
        self.operators = {info.uid: info for info in operators}
        self.sources = dict(sources or {})
        self.watermarks = dict(watermarks or {})

    def find(self, uid: str, state: str) -> tuple[StateSchema, S]:
        return self.states[check_state(self._name, self.states, uid, state)]

    def key_of(self, uid: str) -> KeySchema | None:
        """How the stream of an operator is keyed, taken from its states; None if it has none."""
        return next((s.key for s, _ in self.states.values() if s.uid == uid), None)

    def put(self, schema: StateSchema, content: S) -> None:
        """Add a state or replace it; all states of an operator have the same keys."""
        for other, _ in self.states.values():
            if other.uid == schema.uid and other.id != schema.id and other.key != schema.key:
                raise StateError(
                    f"state {schema.name!r} of operator {schema.uid!r} would have the keys "
                    f"{schema.key}, its state {other.name!r} has {other.key}: all states of "
                    f"an operator have the keys of its stream. Give both the same ones, or remove "
                    f"{other.name!r} first"
                )
        self.states[schema.id] = (schema, content)

    def remove_state(self, uid: str, state: str) -> None:
        del self.states[check_state(self._name, self.states, uid, state)]

    def remove_operator(self, uid: str) -> None:
        if uid not in self.operators or uid in self.source_uids():
            check_operator(self._name, self.states, uid)
        self.states = {id: state for id, state in self.states.items() if id[0] != uid}
        gone = self._watermark_keys(uid)
        self.watermarks = {key: t for key, t in self.watermarks.items() if key not in gone}
        if uid not in self.source_uids():
            self.operators.pop(uid, None)

    def rename_state(self, uid: str, old: str, new: str) -> None:
        check_state(self._name, self.states, uid, old)
        check_state_name(new)
        if old != new and (uid, new) in self.states:
            raise StateError(f"operator {uid!r} has a state {new!r} already; remove it first")
        self._move({(uid, old): (uid, new)})

    def change_uid(self, old: str, new: str) -> None:
        """Give an operator or a source another uid; all it has goes along."""
        check_uid(new)
        known = self.uids()
        if old not in known:
            check_operator(self._name, [*self.states, *((uid, "") for uid in known)], old)
        if new != old and new in known:
            raise StateError(
                f"{self._name} has an operator {new!r} already; remove it or give it another uid "
                f"first"
            )
        uids = set(self.operators)
        self._move({id: (new, id[1]) for id in self.states if id[0] == old})
        self.sources = {
            new + leaf.removeprefix(old) if source_uid(leaf, uids) == old else leaf: position
            for leaf, position in self.sources.items()
        }
        renamed = {old: new}
        self.operators = {
            renamed.get(uid, uid): msgspec.structs.replace(info, uid=renamed.get(uid, uid))
            for uid, info in self.operators.items()
        }
        moved = {key: new + key.removeprefix(old) for key in self._watermark_keys(old, uids)}
        self.watermarks = {moved.get(key, key): t for key, t in self.watermarks.items()}

    def add_sources(
        self, positions: Mapping[str, P], operators: Iterable[OperatorInfo] = ()
    ) -> None:
        """Let sources go on from these positions, in place of those they had.

        The operators are those of the program that the positions are from.
        """
        known = {info.uid: info for info in operators}
        for uid in sorted({source_uid(leaf, known) for leaf in positions}):
            if uid in self.source_uids():
                self.drop_sources([uid])
            if uid in known:
                self.operators.setdefault(uid, known[uid])
        self.sources |= positions

    def drop_sources(self, uids: Iterable[str]) -> None:
        known = self.source_uids()
        dropped = set(uids)
        for uid in sorted(dropped - known):
            raise ConfigurationError(
                f"{self._name} has no position of a source {uid!r}; it has those of "
                f"{', '.join(map(repr, sorted(known))) or 'none'}"
            )
        operators = set(self.operators)
        self.sources = {
            leaf: p
            for leaf, p in self.sources.items()
            if source_uid(leaf, operators) not in dropped
        }

    def source_uids(self) -> set[str]:
        return {source_uid(leaf, set(self.operators)) for leaf in self.sources}

    def uids(self) -> set[str]:
        return {id[0] for id in self.states} | set(self.operators) | self.source_uids()

    def _watermark_keys(self, uid: str, uids: Collection[str] | None = None) -> set[str]:
        """Under what its watermark is, and those of partitions, ``uid#partition``."""
        others = set(self.operators if uids is None else uids) - {uid}
        keys = self.watermarks.keys() - others
        return {key for key in keys if key == uid or key.startswith(f"{uid}#")}

    def _move(self, moves: Mapping[StateId, StateId]) -> None:
        moved: dict[StateId, tuple[StateSchema, S]] = {}
        for id, (schema, content) in self.states.items():
            uid, name = moves.get(id, id)
            moved[uid, name] = (msgspec.structs.replace(schema, uid=uid, name=name), content)
        self.states = moved
