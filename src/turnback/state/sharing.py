from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from turnback.state.file import StateFile, in_order

Span = tuple[int, int]
"""First and last key group."""


def share(files: Iterable[StateFile], wanted: Mapping[str, Span]) -> tuple[StateFile, ...]:
    """The parts of a snapshot's files that hold the state of some operators in some key groups.

    A complete file says all there is to say about its operators in its key groups, so older files
    count only outside of those.

    Args:
        files: All files of the snapshot.
        wanted: The key groups by operator uid.

    Returns:
        Clipped files, in the order in which they are applied.
    """
    open_spans = {uid: [span] for uid, span in wanted.items()}
    found: list[StateFile] = []
    for file in reversed(in_order(files)):
        parts: dict[Span, list[str]] = defaultdict(list)
        for uid in file.operators:
            for span in open_spans.get(uid, ()):
                clipped = (max(span[0], file.first_group), min(span[1], file.last_group))
                if clipped[0] <= clipped[1]:
                    parts[clipped].append(uid)
            if file.complete and uid in open_spans:
                covered = (file.first_group, file.last_group)
                open_spans[uid] = [r for s in open_spans[uid] for r in _without(s, covered)]
        found += [_part(file, span, uids) for span, uids in parts.items()]
    return tuple(in_order(found))


def _part(file: StateFile, span: Span, uids: list[str]) -> StateFile:
    return msgspec.structs.replace(
        file, first_group=span[0], last_group=span[1], operators=tuple(uids)
    )


def _without(span: Span, hole: Span) -> list[Span]:
    pieces = [(span[0], min(span[1], hole[0] - 1)), (max(span[0], hole[1] + 1), span[1])]
    return [p for p in pieces if p[0] <= p[1]]
