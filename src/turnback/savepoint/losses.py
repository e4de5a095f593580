"""What a start from a snapshot would lose, and what can be done about it."""

from __future__ import annotations

from collections.abc import Iterator

from turnback.core.errors import IncompatibleStateError
from turnback.savepoint.claims import Claims, SnapshotInfo, spell


def refuse_losses(snapshot: SnapshotInfo, claims: Claims) -> None:
    """Refuse a start that would lose state, a position or promised output unasked.

    Raises:
        IncompatibleStateError: It would; everything that would be lost is named.
    """
    problems = [
        *_unclaimed_problem(snapshot, claims),
        *(changed_source_problem(snapshot, claims, uid) for uid in claims.changed_sources),
        *(unclaimed_sink_problem(snapshot, uid) for uid in claims.unclaimed_sinks),
    ]
    if problems:
        raise IncompatibleStateError("\n".join(problems))


def changed_source_problem(snapshot: SnapshotInfo, claims: Claims, uid: str) -> str:
    """Why a source that reads another number of streams cannot go on, and what to do."""
    was = claims.sources[uid]
    before, now = claims.changed_sources[uid]
    return (
        f"source {uid!r} reads {now} streams now, and {before} in {snapshot.name} of job "
        f"{snapshot.job!r}: its position does not say where each of them goes on. Give streams "
        f"that were added a source and a uid of their own, and let {uid!r} read what it read "
        f"before; or start it from its beginning knowingly, with "
        f"allow_non_restored_state=[{spell(was)}]"
    )


def unclaimed_sink_problem(snapshot: SnapshotInfo, uid: str) -> str:
    """Why promised output of a sink that is gone cannot be committed, and what to do."""
    return (
        f"{snapshot.name} of job {snapshot.job!r} has promised output of {snapshot.describe(uid)}, "
        f"which is not committed yet, and the program has no such sink. Give the sink this uid "
        f"again; or say what it is called now with renames={{{spell(uid)}: ...}}; or settle it "
        f"first with `turnback transactions commit {snapshot.job}`; or leave the output out "
        f"knowingly, with allow_non_restored_state=[{spell(uid)}]"
    )


def _unclaimed_problem(snapshot: SnapshotInfo, claims: Claims) -> Iterator[str]:
    if not claims.unclaimed:
        return
    lines = [
        f"  state {s.schema.name!r} of {snapshot.describe(s.schema.uid)}"
        + (f": {s.size}" if s.size else "")
        for s in claims.unclaimed
    ]
    names = drop_names(snapshot, claims)
    yield (
        f"{snapshot.name} of job {snapshot.job!r} holds state that nothing in the program claims:\n"
        + "\n".join(lines)
        + f"\nGive its operators these uids and states again; or say what they are called now with "
        f"renames={{{names[0]}: ...}}; or drop it knowingly, with allow_non_restored_state=True "
        f"whatever it is, or with allow_non_restored_state=[{', '.join(names)}] only this"
    )


def drop_names(snapshot: SnapshotInfo, claims: Claims) -> list[str]:
    """The shortest names, as they are written in a program, of all that is unclaimed."""
    unclaimed = [s.id for s in claims.unclaimed]
    kept = {s.id[0] for s in snapshot.states if s.id not in unclaimed}
    return list(dict.fromkeys(spell(id if id[0] in kept else id[0]) for id in unclaimed))
