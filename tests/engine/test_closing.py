"""Functions are closed when their job ends, however it does."""

from __future__ import annotations

from typing import Any

import pytest

from job_support import Jobs, Marks, eventually
from turnback import KeyedProcessFunction, MapFunction, Row


class Marked(MapFunction):
    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def open(self, runtime_context: Any) -> None:
        self.marks.add("opened", "map")

    def close(self) -> None:
        self.marks.add("closed", "map")

    def map(self, value: Row) -> Row:
        return value


class MarkedKeyed(KeyedProcessFunction):
    def __init__(self, marks: Marks) -> None:
        self.marks = marks

    def open(self, runtime_context: Any) -> None:
        self.marks.add("opened", "keyed")

    def close(self) -> None:
        self.marks.add("closed", "keyed")

    def process_element(self, value: Row, ctx: Any) -> Any:
        yield value


def build(jobs: Jobs) -> Any:
    env = jobs.env()
    stream = jobs.files(env, "in", "k string").map(Marked(jobs.marks), "k string").uid("map")
    keyed = stream.key_by("k").process(MarkedKeyed(jobs.marks), "k string").uid("keyed")
    keyed.sink_to(jobs.sink("out")).uid("out")
    return env


@pytest.mark.parametrize("end", ["input", "stop", "cancel"])
def test_every_function_that_was_opened_is_closed(jobs: Jobs, end: str) -> None:
    jobs.feed("in", *({"k": k} for k in "abcdefgh"))
    if end == "input":
        build(jobs).execute("job", bounded=True)
    else:
        client = jobs.start(build(jobs))
        eventually(lambda: len(jobs.out()) == 8)
        if end == "stop":
            client.stop_with_savepoint(savepoint_directory=jobs.directory / "sp").result(60)
        else:
            client.cancel()
        eventually(client.done)
    opened, closed = (sorted(jobs.marks.lines(name)) for name in ("opened", "closed"))
    assert {"map", "keyed"} <= set(opened)
    # Operators that ask for state in open() are opened before the job begins as well.
    assert closed == opened
