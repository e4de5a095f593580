"""Does a snapshot fit a program? Asked before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from turnback.coordinator import Manifest
from turnback.core.errors import IncompatibleStateError
from turnback.planner import Plan
from turnback.state import StateSchema


def check_plan(manifest: Manifest, plan: Plan, *, allow_unclaimed: bool) -> None:
    """Refuse a snapshot whose key groups or operators do not fit the program."""
    if manifest.max_parallelism != plan.max_parallelism:
        raise IncompatibleStateError(
            f"{manifest.name} of job {manifest.job!r} has {manifest.max_parallelism} key groups, "
            f"the program {plan.max_parallelism}; call set_max_parallelism"
            f"({manifest.max_parallelism})"
        )
    uids = {op.uid for op in plan.operators()}
    if not allow_unclaimed:
        _refuse_unclaimed(manifest.name, (s for s in manifest.schemas if s.uid not in uids))


def check_states(snapshot: Manifest, claimed: Iterable[StateSchema]) -> None:
    """Refuse stored states that the program's operators, now open, have not asked for."""
    ids = {schema.id for schema in claimed}
    _refuse_unclaimed(snapshot.name, (s for s in snapshot.schemas if s.id not in ids))


def _refuse_unclaimed(snapshot: str, unclaimed: Iterable[StateSchema]) -> None:
    names = sorted(f"state {s.name!r} of operator {s.uid!r}" for s in unclaimed)
    if names:
        raise IncompatibleStateError(
            f"{snapshot} holds state that nothing in the program claims: {', '.join(names)}. "
            f"Give the operators these uids, or drop that state knowingly with "
            f"allow_non_restored_state=True"
        )
