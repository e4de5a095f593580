"""What `execute` runs, under which name, and when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnback import CollectSink, StreamExecutionEnvironment
from turnback.core.errors import PlanError
from turnback.testing import LocalEngine


@pytest.fixture
def env(tmp_path: Path) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment(None, tmp_path / "jobs", engine=LocalEngine())
    return environment.set_parallelism(2)


def numbers(env: StreamExecutionEnvironment, *values: int) -> Any:
    return env.from_collection(list(values), int, uid="numbers")


def collected(stream: Any, uid: str = "out") -> CollectSink:
    sink = CollectSink()
    stream.sink_to(sink).uid(uid)
    return sink


def test_a_program_that_was_executed_is_done(env: StreamExecutionEnvironment) -> None:
    first = collected(numbers(env, 1, 2))
    env.execute("first", bounded=True)
    second = collected(numbers(env, 3))
    env.execute("second", bounded=True)
    assert (first.results, second.results) == ([1, 2], [3])
    message = "nothing to execute: the program so far was executed as job 'second'"
    with pytest.raises(PlanError, match=message):
        env.execute("third")
    with pytest.raises(PlanError, match=message):
        env.execute_async("third")


def test_a_stream_can_be_read_again_by_the_next_program(env: StreamExecutionEnvironment) -> None:
    doubled = numbers(env, 1, 2).map(lambda n: 2 * n, int).uid("doubled")
    first = collected(doubled)
    env.execute("first", bounded=True)
    second = collected(doubled.map(lambda n: n + 1, int).uid("more"), "second")
    env.execute("second", bounded=True)
    assert (first.results, second.results) == ([2, 4], [3, 5])
