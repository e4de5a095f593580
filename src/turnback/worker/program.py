from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turnback.core.errors import PlanError
from turnback.program.plan import Channel, Level, Plan
from turnback.state.files import StateFile, in_order, share
from turnback.types.keys import group_range
from turnback.worker.routing import Hop

ReplicaPlace = tuple[int, int]
"""Level and partition."""


class Chains:
    """For every partition of every level, the confirmed files its state consists of."""

    def __init__(self, programs: Sequence[LevelProgram], max_parallelism: int) -> None:
        self._programs = programs
        self._max_parallelism = max_parallelism
        self._chains: dict[ReplicaPlace, tuple[StateFile, ...]] = {}
        self._whole: dict[str, StateFile] = {}

    def restore(self, files: Iterable[StateFile]) -> None:
        """Deal a snapshot's files out to the partitions of this program."""
        ordered = in_order(files)
        self._whole = {file.path: file for file in ordered}
        for program in self._programs:
            if not program.level.keyed:
                continue
            for partition in range(program.level.parallelism or 0):
                mine = share(
                    ordered,
                    {
                        op.uid: group_range(partition, op.parallelism, self._max_parallelism)
                        for op in program.level.keyed
                        if partition < op.parallelism
                    },
                )
                if mine:
                    self._chains[program.level.index, partition] = mine

    def confirm(self, level: int, partition: int, file: StateFile) -> None:
        """Add what a task wrote in an epoch that is now confirmed."""
        self._whole[file.path] = file
        self._chains[level, partition] = (*self._chains.get((level, partition), ()), file)

    def replace(self, home: ReplicaPlace, merged: Sequence[StateFile], by: StateFile) -> list[str]:
        """Put a merged file in the place of those it was made of.

        Returns:
            Paths that no chain needs any more.
        """
        gone = {file.path for file in merged}
        chain = [file for file in self._chains[home] if file.path not in gone]
        self._whole[by.path] = by
        self._chains[home] = tuple(in_order([*chain, by]))
        used = {file.path for files in self._chains.values() for file in files}
        unused = sorted(gone - used)
        for path in unused:
            del self._whole[path]
        return unused

    def of_level(self, level: int) -> dict[int, tuple[StateFile, ...]]:
        """The chain of every partition of a level."""
        return {p: files for (at, p), files in self._chains.items() if at == level}

    def items(self) -> list[tuple[ReplicaPlace, tuple[StateFile, ...]]]:
        """All chains."""
        return list(self._chains.items())

    def live(self) -> tuple[StateFile, ...]:
        """Every file some partition needs, whole, each once."""
        used = {file.path for files in self._chains.values() for file in files}
        return tuple(file for path, file in self._whole.items() if path in used)


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
        tuple(Channel(i, s.id, (s.id,), s.type, None, 1, -1, 0) for i, s in enumerate(plan.sources))
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
