"""What a program with a mistake is told: the operator, the line, and what to write instead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnback import KeyedProcessFunction, Types
from turnback.errors import JobFailedError, PlanError
from turnback.testing import JobHarness, source

OUT = "k string, n bigint"
HERE = Path(__file__).name


class Yields(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, 1


class Returns(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return value.k, 1


class ReturnsOne(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return 5


class Three(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, 1, 2


class Holds(KeyedProcessFunction):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, 1


def line_of(function: Callable[..., Any]) -> str:
    code = function.__code__
    return f'{HERE}", line {code.co_firstlineno}, in {code.co_name}'


def as_list(row: Any) -> Any:
    return [row.k, row.n]


def as_three(row: Any) -> Any:
    return row.k, 1, 2


def as_text(row: Any) -> Any:
    return row.k


def keyed(function: KeyedProcessFunction) -> Callable[[Any], Any]:
    return lambda events: events.key_by("k").process(function, OUT)


WRONG = [
    (
        lambda events: events.key_by(as_list, Types.STRING()).process(Yields(), OUT),
        ["operator 'wrong': the key ['a', 1]", "is a tuple, not a list", line_of(as_list)],
    ),
    (keyed(Returns()), ["to emit one element, `yield` it", line_of(Returns.process_element)]),
    (keyed(ReturnsOne()), ["to emit one element, `yield` it", line_of(ReturnsOne.process_element)]),
    (keyed(Three()), ["it has 3 values instead of 2", line_of(Three.process_element)]),
    (
        lambda events: events.map(as_three, OUT),
        ["it has 3 values instead of 2", line_of(as_three)],
    ),
    (
        lambda events: events.map(as_text, Types.LONG()),
        ["does not match the type bigint", line_of(as_text)],
    ),
    (lambda events: events.flat_map(as_text, Types.LONG()), ["`yield` it", line_of(as_text)]),
]


@pytest.mark.parametrize(("build", "parts"), WRONG)
def test_a_wrong_function_is_told_by_its_line(tmp_path: Path, build: Any, parts: Any) -> None:
    def program(env: Any) -> None:
        build(source(env, "events", "k string, n bigint")).uid("wrong").print().uid("out")

    settings = {"restart-strategy.type": "none"}
    with (
        pytest.raises(JobFailedError, match="operator 'wrong'") as failed,
        JobHarness(program, tmp_path, configuration=settings) as job,
    ):
        job.push("events", ("a", 1))
    message = str(failed.value)
    for part in parts:
        assert part in message
    assert "runners.py" not in message
    assert ("`yield` it" in message) == any("`yield`" in part for part in parts)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (
            lambda events: events.key_by("tags").process(Yields(), OUT),
            r"array<bigint> cannot be a key: .*returns a tuple",
        ),
        (keyed(Holds()), r"^cannot send operator 'wrong' to the workers: .*lock.* in open\(\)"),
    ],
)
def test_a_program_that_cannot_run_is_told_before(tmp_path: Path, build: Any, told: str) -> None:
    def program(env: Any) -> None:
        events = source(env, "events", "k string, n bigint, tags array<bigint>")
        build(events).uid("wrong").print().uid("out")

    with pytest.raises(PlanError, match=told), JobHarness(program, tmp_path):
        pass
