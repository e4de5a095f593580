from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping

from turnback.checkpoint.coordinator import CheckpointCoordinator
from turnback.core.clock import Clock
from turnback.job.status import Metrics
from turnback.program.graph import NodeKind
from turnback.program.plan import Plan
from turnback.state.files import StateFile

Records = Mapping[str, tuple[int, int]]

_WINDOW_S = 10.0


class Meter:
    """Counts what an attempt does, for its status. Thread-safe.

    Args:
        plan: The program.
        clock: Where time comes from.
    """

    def __init__(self, plan: Plan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._lock = threading.Lock()
        self._started_ms = clock.now_ms()
        self._read = 0
        self._records: dict[str, tuple[int, int]] = {}
        self._state_bytes: dict[str, int] = {}
        self._recent: deque[tuple[float, int]] = deque([(clock.monotonic(), 0)])
        self._counted_by = _counted_by(plan)

    def count(self, records: Records, state: Iterable[StateFile]) -> int:
        """Take an epoch into account.

        Args:
            records: Elements read and written in it, by operator uid.
            state: The state files after it.

        Returns:
            How many elements the sources gave in it.
        """
        from_sources = {
            source: records.get(uid, (0, 0))[0] for source, uid in self._counted_by.items()
        }
        read = sum(from_sources.values())
        told = dict(records) | {uid: (n, n) for uid, n in from_sources.items()}
        sizes = _sizes(state)
        with self._lock:
            self._read += read
            for uid, (n_in, n_out) in told.items():
                before = self._records.get(uid, (0, 0))
                self._records[uid] = (before[0] + n_in, before[1] + n_out)
            self._state_bytes = sizes
            self._recent.append((self._clock.monotonic(), self._read))
        return read

    def metrics(self, coordinator: CheckpointCoordinator, completed: int, failed: int) -> Metrics:
        """Return the numbers as they are now.

        Args:
            coordinator: Of the attempt.
            completed: Checkpoints that earlier attempts of this driver completed.
            failed: Those that failed.
        """
        under_way = coordinator.under_way()
        with self._lock:
            return Metrics(
                started_ms=self._started_ms,
                read=self._read,
                per_s=self._per_s(),
                records=dict(self._records),
                state_bytes=self._state_bytes,
                completed=completed + coordinator.completed,
                failed=failed + coordinator.failed,
                under_way=under_way,
            )

    def _per_s(self) -> float:
        """Elements of the last few seconds; one point older than that is kept to count from."""
        now = self._clock.monotonic()
        while len(self._recent) > 1 and now - self._recent[1][0] >= _WINDOW_S:
            self._recent.popleft()
        since, before = self._recent[0]
        return (self._read - before) / max(now - since, 1.0)


def _counted_by(plan: Plan) -> dict[str, str]:
    """Which operator's input tells how much each source gave."""
    if not plan.native:
        return {op.uid: op.uid for op in plan.operators() if op.kind is NodeKind.SOURCE}
    # Spark feeds the first shuffle: the first consumer of each source counts. Where that reads
    # several sources, they are counted together, with the first of them.
    uids = {op.id: op.uid for op in plan.operators()}
    sources = {source.id: source.uid for source in plan.sources}
    found: dict[str, str] = {}
    for wire in plan.wires:
        if wire.first_level < 0 and uids[wire.consumers[0]] not in found.values():
            found.setdefault(sources[wire.producer], uids[wire.consumers[0]])
    return found


def _sizes(state: Iterable[StateFile]) -> dict[str, int]:
    """Bytes by operator; what several have in one file is divided among them."""
    lengths = {file.path: (file.length, file.operators) for file in state}
    sizes: dict[str, int] = {}
    for length, operators in lengths.values():
        for uid in operators:
            sizes[uid] = sizes.get(uid, 0) + length // len(operators)
    return sizes
