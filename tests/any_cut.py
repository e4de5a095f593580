"""Runs a program over its input, cut into attempts, epochs and tasks that Hypothesis chooses."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from local_engine import BACKENDS, LocalEngine, environment
from turnback import CollectSink, StreamExecutionEnvironment
from turnback.testing.engine import Levels

Build = Callable[[StreamExecutionEnvironment], Sequence[CollectSink]]
"""Writes the program and returns its sinks."""
Inputs = Mapping[str, Sequence[Any]]
"""Elements by source, or by partition of a source."""
Results = list[list[Any]]
"""Of each sink."""


def results_however_cut(data: st.DataObject, inputs: Inputs, build: Build) -> Results:
    """What each sink gets of the elements of every source.

    With restores of another parallelism and backend in between, and shuffles delivered backwards.
    """
    files: Any = ()
    number, at = 0, dict.fromkeys(inputs, 0)
    watermarks: dict[str, int] = {}
    results: Results = []
    attempts = data.draw(st.integers(1, 3))
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        if data.draw(st.booleans()):
            patch.setattr(Levels, "_shuffle", _backwards)
        for attempt in range(1, attempts + 1):
            env = environment(data.draw(st.sampled_from([1, 2, 3, 8]))).set_max_parallelism(8)
            sinks = build(env)
            engine = LocalEngine(
                env.plan(), Path(root), attempt=attempt, files=files, epoch=number,
                backend=data.draw(st.sampled_from(BACKENDS)),
                source_tasks=data.draw(st.integers(1, 4)),
                readers=data.draw(st.sampled_from([None, 1, 2])), watermarks=watermarks,
            )  # fmt: skip
            for _ in range(data.draw(st.integers(1, 3))):
                upto = {s: data.draw(st.integers(at[s], len(inputs[s]))) for s in inputs}
                engine.epoch({s: inputs[s][at[s] : upto[s]] for s in inputs})
                at = upto
            if attempt == attempts:
                engine.epoch({s: inputs[s][at[s] :] for s in inputs})
                engine.epoch({}, ended=True)
            results = results or [[] for _ in sinks]
            for got, sink in zip(results, sinks, strict=True):
                got += map(tuple, sink.results)
            files, number = engine.file_index.live(), engine.number
            watermarks = engine.time.watermarks()
    return results


_shuffle = Levels._shuffle


def _backwards(levels: Levels, program: Any, parts: Any) -> Any:
    """As Spark may: what the last task has sent comes first."""
    return _shuffle(levels, program, dict(reversed(parts.items())))
