"""Dead letters that are fed back: which of them a task takes, and as what."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from turnback.core.errors import ElementTypeError, IncompatibleStateError
from turnback.functions.event_time import MIN_TIME, within_reach
from turnback.plan.dead_letters import Letter, decode_letter
from turnback.plan.plan import Input, InputId, Operator
from turnback.values.columns import Batch
from turnback.values.keys import partition_of
from turnback.values.serializer import Serializer
from turnback.values.typeinfo import RowTypeInfo, TypeInfo, type_from_descriptor
from turnback.worker.event_time import TaskTime
from turnback.worker.keys import key_reader
from turnback.worker.program import LevelProgram
from turnback.worker.stamps import FED_BACK, Stamps


def redriven(
    letters: Sequence[bytes], program: LevelProgram, partition: int, time: TaskTime
) -> Iterator[tuple[InputId, Batch]]:
    """The elements of dead letters that belong to a task, for the inputs of its operators."""
    operators = {op.uid: op for op in program.level.operators}
    by_input: defaultdict[tuple[str, int], list[Letter]] = defaultdict(list)
    for letter in map(decode_letter, letters):
        by_input[letter.operator, letter.input].append(letter)
    for (uid, number), some in by_input.items():
        operator = operators.get(uid)
        if operator is None:
            continue  # it is in another level
        read = operator.inputs[number]
        tasks = _tasks(operator, read, some, program)
        mine = [letter for letter, task in zip(some, tasks, strict=True) if task == partition]
        if not mine:
            continue
        batch = Batch(read.type, [element_of(letter, read.type) for letter in mine])
        if program.strategies:
            times = [MIN_TIME if each.time is None else within_reach(each.time) for each in mine]
            mark = time.watermark_before(operator.strategies, operator.uid)
            marks = np.full(len(mine), mark, np.int64)
            batch.stamps = Stamps.of(np.array(times, np.int64), marks, FED_BACK)
        yield InputId(operator.id, number), batch


def _tasks(
    operator: Operator, read: Input, letters: Sequence[Letter], program: LevelProgram
) -> list[int]:
    """The task that each letter belongs to."""
    if read.key is None:
        count = 1 if program.reads_sources else operator.parallelism
        return [letter.task % count for letter in letters]
    batch = Batch(read.type, [element_of(letter, read.type) for letter in letters])
    group = read.key.codec().group
    maximum = program.max_parallelism
    return [
        partition_of(group(key, maximum), operator.parallelism, maximum)
        for key in key_reader(read.key, read.type, operator.uid)(batch)
    ]


def element_of(letter: Letter, wanted: TypeInfo) -> Any:
    """The element of a letter as an operator reads elements now.

    Raises:
        IncompatibleStateError: The operator reads something else now.
    """
    was = type_from_descriptor(letter.type)
    if was.describe() == wanted.describe():
        return Serializer(wanted).decode(letter.element)
    if isinstance(was, RowTypeInfo) and isinstance(wanted, RowTypeInfo):
        there = dict(was.fields())
        if all(there.get(name) == type for name, type in wanted.fields()):
            row = Serializer(was).decode(letter.element)
            values = dict(zip(was.names, row, strict=True))
            return tuple(values[name] for name in wanted.names)
    raise IncompatibleStateError(
        f"operator {letter.operator!r} reads {wanted} now, and the dead letter has {was}"
    )


def check_letter(letter: Letter, operator: Operator | None) -> str | None:
    """Why a letter cannot be fed to an operator of its uid; None if it can."""
    if operator is None:
        return f"the program has no operator {letter.operator!r}"
    if letter.input >= len(operator.inputs):
        return f"operator {letter.operator!r} has no input {letter.input + 1}"
    read = operator.inputs[letter.input]
    try:
        element = element_of(letter, read.type)
        if read.key is not None:
            keys = key_reader(read.key, read.type, operator.uid)(Batch(read.type, [element]))
            read.key.codec().group(keys[0], 1)
    except (IncompatibleStateError, ElementTypeError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - of the user's key function, or damaged bytes
        return f"operator {letter.operator!r} cannot take it: {type(error).__name__}: {error}"
    return None
