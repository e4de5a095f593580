from __future__ import annotations

import platform
from importlib.metadata import version

from turnback.coordinator import JobProgram, ProgramOperator
from turnback.graph import KeySpec, NodeKind
from turnback.planner import Operator, Plan
from turnback.runtime.job import JobSpec


def describe(plan: Plan, spec: JobSpec, attempt: int) -> JobProgram:
    """Write down what an attempt runs, for those who look at the job."""
    names = {source.id: source.uid for source in plan.sources}
    names |= {op.id: op.uid for op in plan.operators()}
    inputs = _inputs(plan)

    def told(id: int) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names[producer] for producer in inputs.get(id, ())))

    sources = tuple(
        ProgramOperator(
            uid=source.uid,
            name=source.name,
            kind=NodeKind.SOURCE.value,
            parallelism=None,
            level=-1 if plan.native else 0,
        )
        for source in plan.sources
    )
    others = tuple(
        _operator(op, level.index, told(op.id))
        for level in plan.levels
        for op in level.operators
        if op.kind is not NodeKind.SOURCE
    )
    return JobProgram(
        attempt=attempt,
        operators=sources + others,
        settings=spec.program_settings,
        max_parallelism=plan.max_parallelism,
        warnings=plan.warnings,
        versions={
            "turnback": version("turnback"),
            "spark": version("pyspark"),
            "python": platform.python_version(),
        },
        script=spec.script,
    )


def _operator(op: Operator, level: int, inputs: tuple[str, ...]) -> ProgramOperator:
    return ProgramOperator(
        uid=op.uid,
        name=op.name,
        kind=op.kind.value,
        parallelism=op.parallelism,
        level=level,
        key=_told_key(op.key),
        inputs=inputs,
    )


def _inputs(plan: Plan) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for op in plan.operators():
        for consumer in op.consumers:
            found.setdefault(consumer, []).append(op.id)
    for wire in plan.wires:
        for consumer in wire.consumers:
            found.setdefault(consumer, []).append(wire.producer)
    return found


def _told_key(key: KeySpec | None) -> str | None:
    if key is None:
        return None
    if key.columns:
        return ", ".join(key.columns)
    return getattr(key.function, "__name__", None) or "a function"
