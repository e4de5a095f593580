from __future__ import annotations

from collections.abc import Iterable, Sequence

from turnback.core import group_range
from turnback.runtime.program import LevelProgram
from turnback.state import StateFile, in_order, share

Home = tuple[int, int]
"""Level and partition."""


class Chains:
    """For every partition of every level, the confirmed files its state consists of."""

    def __init__(self, programs: Sequence[LevelProgram], max_parallelism: int) -> None:
        self._programs = programs
        self._max_parallelism = max_parallelism
        self._chains: dict[Home, tuple[StateFile, ...]] = {}
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

    def replace(self, home: Home, merged: Sequence[StateFile], by: StateFile) -> list[str]:
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

    def items(self) -> list[tuple[Home, tuple[StateFile, ...]]]:
        """All chains."""
        return list(self._chains.items())

    def live(self) -> tuple[StateFile, ...]:
        """Every file some partition needs, whole, each once."""
        used = {file.path for files in self._chains.values() for file in files}
        return tuple(file for path, file in self._whole.items() if path in used)
