from __future__ import annotations

import pickle
from dataclasses import dataclass

from turnback.core import group_range
from turnback.core.errors import PlanError
from turnback.planner import Level, Plan, Wire
from turnback.runtime.hop import Hop


@dataclass(frozen=True)
class LevelProgram:
    """Everything a task must know about its level; the same in every epoch.

    Attributes:
        level: The operators.
        input: Columns of what it reads.
        output: Columns of what it writes.
        reads_sources: Whether it runs in the sources' own tasks, before any shuffle.
        next_parallelism: Number of tasks of the next level; None for the last.
        max_parallelism: Number of key groups.
    """

    level: Level
    input: Hop
    output: Hop
    reads_sources: bool
    next_parallelism: int | None
    max_parallelism: int

    def groups(self, partition: int) -> tuple[int, int]:
        """The key groups a partition may see, over all keyed operators; (0, -1) for none."""
        spans = [
            group_range(partition, op.parallelism, self.max_parallelism)
            for op in self.level.keyed
            if partition < op.parallelism
        ]
        return (min(s[0] for s in spans), max(s[1] for s in spans)) if spans else (0, -1)

    def layout(self) -> str:
        """What decides which key groups of each operator a partition holds."""
        return " ".join(f"{op.uid!r}:{op.parallelism}" for op in self.level.keyed)


def source_hop(plan: Plan) -> Hop:
    """The columns in which all sources arrive: one wire per source."""
    if plan.native:
        return Hop(tuple(w for w in plan.wires if w.first_level == -1))
    return Hop(
        tuple(Wire(i, s.id, (s.id,), s.type, None, 1, -1, 0) for i, s in enumerate(plan.sources))
    )


def level_programs(plan: Plan) -> list[LevelProgram]:
    """The program of every level."""
    by_id = {w.id: w for w in plan.wires}
    hops = [source_hop(plan)]
    hops += [Hop(tuple(by_id[i] for i in level.outputs)) for level in plan.levels]
    programs = []
    for i, level in enumerate(plan.levels):
        following = plan.levels[i + 1] if i + 1 < len(plan.levels) else None
        programs.append(
            LevelProgram(
                level,
                hops[i],
                hops[i + 1],
                reads_sources=i == 0 and not plan.native,
                next_parallelism=following.parallelism if following else None,
                max_parallelism=plan.max_parallelism,
            )
        )
    return programs


def load_program(blob: bytes) -> LevelProgram:
    """Read a pickled program, in a worker."""
    try:
        program: LevelProgram = pickle.loads(blob)
    except (ImportError, AttributeError) as e:
        raise PlanError(
            f"the program cannot be loaded in the workers: {e}. Ship modules of your own with "
            f"spark.addArtifacts(..., pyfile=True) or --py-files, or run where they can be imported"
        ) from e
    return program
