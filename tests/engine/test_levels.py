"""Shapes of programs: fan-out, several keyed levels, edges that skip levels, parallelism."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from turnback import CollectSink, KeyedProcessFunction

SCHEMA = "k string, n bigint"


def test_one_call_per_element(jobs: Jobs) -> None:
    """Whatever the number of sinks: three of them, behind one, two and three keyed levels."""
    for i in range(3):
        jobs.feed("events", *({"k": k, "n": i} for k in "abca"))
    env, marks = jobs.env(), jobs.marks

    def mapped(row: Any) -> Any:
        marks.add("map", f"{row.k}{row.n}")
        return row

    class Noting(Count):
        def process_element(self, value: Any, ctx: Any) -> Any:
            marks.add("keyed", value.k)
            yield from super().process_element(value, ctx)

    events = jobs.files(env, "events", SCHEMA).map(mapped, SCHEMA)
    events.sink_to(jobs.sink("raw")).uid("raw")
    once = events.key_by("k").process(Noting(), COUNTED).uid("once")
    once.sink_to(jobs.sink("once")).uid("once out")
    once.filter(lambda row: row.n > 1).sink_to(jobs.sink("again")).uid("again out")
    by_number = once.key_by("n").process(CountNumbers(), "n bigint, m bigint").uid("by number")
    by_number.key_by(lambda row: row.m, key_type=int).process(
        CountNumbers(), "n bigint, m bigint"
    ).uid("third").sink_to(jobs.sink("third")).uid("third out")
    report = env.execute("job", bounded=True)
    assert [e.records for e in report.epochs] == [4, 4, 4]
    keys = "abca" * 3
    assert Counter(jobs.marks.lines("map")) == Counter(f"{k}{i}" for i in range(3) for k in "abca")
    assert Counter(jobs.marks.lines("keyed")) == Counter(keys)
    assert len(jobs.out("raw")) == 12
    assert jobs.out("once") == counted(keys)
    assert jobs.out("again") == [pair for pair in counted(keys) if pair[1] > 1]
    numbers = [n for _, n in counted(keys)]
    second = Counter(m for _, m in counted(map(str, numbers)))
    assert Counter(m for m, _ in jobs.out("third")) == second


class CountNumbers(Count):
    """`Count` for keys that are numbers."""


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_diamond_with_an_edge_that_skips_levels(jobs: Jobs, parallelism: int) -> None:
    for keys in ("aab", "abc"):
        jobs.feed("events", *({"k": k, "n": 1} for k in keys))
    env = jobs.env(parallelism=parallelism)
    events = jobs.files(env, "events", SCHEMA)
    twice = events.key_by("k").process(Count(), COUNTED).uid("first")
    texts = twice.key_by("n").process(CountNumbers(), "k bigint, n bigint").uid("second")
    again = texts.map(lambda row: (str(row.k), row.n), SCHEMA)
    joined = again.union(events, events).key_by("k").process(Count(), COUNTED).uid("third")
    joined.sink_to(jobs.sink())
    assert len(env.plan().levels) == 4
    env.execute("job", bounded=True)
    numbers = [str(n) for _, n in counted("aababc")]
    assert jobs.out() == counted([*"aababc" * 2, *numbers])


def test_several_sources_and_parallelism_of_single_operators(jobs: Jobs) -> None:
    env = jobs.env(parallelism=2)
    one = jobs.given(env, "one", [("a", 1), ("b", 2)] * 20, SCHEMA)
    two = jobs.given(env, "two", [("a", 3), ("c", 4)] * 20, SCHEMA)
    sinks = {name: CollectSink() for name in ("keyed", "single", "wide")}
    wide = one.union(two).key_by("k", "n").process(Where(), "k string, i int, of int")
    wide.uid("../where/ä").set_parallelism(3).sink_to(sinks["keyed"]).uid("keyed")
    wide.sink_to(jobs.sink()).uid("../../out")
    narrow = wide.map(lambda row: row.k, str).uid("narrow").set_parallelism(1)
    narrow.sink_to(sinks["single"]).uid("single")
    narrow.map(lambda k: (k,), "k string").set_parallelism(5).key_by("k").process(
        Where(), "k string, i int, of int"
    ).uid("last").set_parallelism(4).sink_to(sinks["wide"]).uid("wide")
    report = env.execute("../a job/näme/..", bounded=True)
    # Names are names, not paths.
    assert [p.as_uri() for p in jobs.root.iterdir()] == [report.job_dir]
    assert {p.name for p in jobs.directory.iterdir()} == {"in", "jobs", "marks", "out"}
    assert len(jobs.out()) == 80
    keyed, last = sinks["keyed"].results, sinks["wide"].results
    assert {(row.of, row.i < 3) for row in keyed} == {(3, True)}
    assert len({row.i for row in keyed}) > 1
    assert {row.of for row in last} == {4}
    expected = Counter({"a": 40, "b": 20, "c": 20})
    assert Counter(row.k for row in keyed) == Counter(sinks["single"].results) == expected
    # All elements of one key meet in one instance.
    assert len({(row.k, row.i) for row in last}) == 3


class Where(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.index = runtime_context.get_index_of_this_subtask()
        self.count = runtime_context.get_number_of_parallel_subtasks()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, self.index, self.count
