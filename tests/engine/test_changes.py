"""A program that has changed since its last checkpoint: what stayed keeps its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from turnback.errors import IncompatibleStateError

SCHEMA = "k string"


def count(jobs: Jobs, env: StreamExecutionEnvironment, **how: Any) -> Any:
    events = jobs.files(env, "events", SCHEMA)
    events.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True, **how)


def test_sources_moved_added_and_removed(jobs: Jobs) -> None:
    """Every source goes on where it was, whatever its place in the program."""

    def run(*sources: str) -> Mapping[str, int]:
        for source in sources:
            jobs.feed(source, {"k": source})
        env = jobs.env()
        streams = [jobs.files(env, source, SCHEMA) for source in sources]
        joined = streams[0].union(*streams[1:])
        joined.key_by("k").process(Count(), COUNTED).uid("count").sink_to(jobs.sink()).uid("out")
        return {"records": sum(e.records for e in env.execute("job", bounded=True).epochs)}

    assert run("a", "b") == {"records": 2}
    assert run("b", "a") == {"records": 2}
    jobs.feed("c", {"k": "c"})  # before the program knows it
    assert run("b", "c", "a") == {"records": 4}
    assert run("c", "b") == {"records": 2}
    assert jobs.out() == counted("aaa" + "bbbb" + "ccc")
    assert set(jobs.checkpoints()[-1].sources) == {"b", "c"}


def test_rescaled_twice_with_the_backend_changed_in_between(jobs: Jobs) -> None:
    """2 -> 3 -> 1 -> 2; hashmap -> rocksdb -> hashmap; two keyed operators, value and list."""
    keys = [f"k{i}" for i in range(12)]
    for run, (parallelism, backend) in enumerate(
        [(2, "hashmap"), (3, "rocksdb"), (1, "rocksdb"), (2, "filesystem")]
    ):
        jobs.feed("events", *({"k": k} for k in keys))
        env = jobs.env(parallelism=parallelism).set_state_backend(backend)
        events = jobs.files(env, "events", SCHEMA)
        first = events.key_by("k").process(Count(), COUNTED).uid("first")
        first.sink_to(jobs.sink()).uid("out")
        second = first.key_by(lambda row: row.n % 2, key_type=int)
        third = second.process(Latest(), "n bigint, seen bigint").uid("second")
        third.set_parallelism(4 - parallelism).sink_to(jobs.sink("second")).uid("second out")
        report = env.execute("job", bounded=True)
        assert [e.records for e in report.epochs] == [12], f"run {run}"
    assert jobs.out() == counted(keys * 4)
    wanted = [(parity, n) for parity in (0, 1) for n in range(1, 25)]
    assert sorted(jobs.out("second")) == wanted


class Latest(KeyedProcessFunction):
    seen = ListStateDescriptor("seen", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.add(value.n)
        yield ctx.get_current_key(), len(list(self.seen.get()))


def test_another_number_of_key_groups_is_refused(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    count(jobs, jobs.env().set_max_parallelism(64))
    jobs.feed("events", {"k": "a"})
    before = jobs.checkpoints()
    with pytest.raises(
        IncompatibleStateError, match=r"64 key groups, but the program has 128; call set_"
    ):
        count(jobs, jobs.env())
    assert jobs.out() == counted("a")
    assert jobs.checkpoints() == before
    count(jobs, jobs.env().set_max_parallelism(64))
    assert jobs.out() == counted("aa")


class Retyped(Count):
    count = ValueStateDescriptor("count", str)


class Rekinded(Count):
    count = ListStateDescriptor("count", int)


class Renamed(Count):
    count = ValueStateDescriptor("another", int)


class More(Count):
    extra = ValueStateDescriptor("extra", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.extra.update(1)
        yield from super().process_element(value, ctx)


class RetypedInOpen(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", str))

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value.k, 0


CHANGES: dict[str, tuple[Any, str, str, str]] = {
    "type": (Retyped, "k", "count", r"'count' of operator 'count'.*bigint cannot become string"),
    "type in open": (RetypedInOpen, "k", "count", r"state 'count' of operator 'count'.*bigint"),
    "kind": (
        Rekinded,
        "k",
        "count",
        r"'count' of operator 'count'.*value .*cannot become list",
    ),
    "key": (
        Count,
        "f",
        "count",
        r"'count' of operator 'count'.*keyed by columns .*, now by a",
    ),
    "name": (Renamed, "k", "count", r"no operator .* claims:\n  state 'count' of operator 'count'"),
    "uid": (Count, "k", "other", r"no operator .* claims:\n  state 'count' of operator 'count'"),
}


def changed(jobs: Jobs, function: Any, key: str, uid: str, **how: Any) -> Any:
    env = jobs.env()
    events = jobs.files(env, "events", SCHEMA)
    keyed = events.key_by("k") if key == "k" else events.key_by(lambda row: row.k, key_type=str)
    keyed.process(function(), COUNTED).uid(uid).sink_to(jobs.sink()).uid("out")
    return env.execute("job", bounded=True, **how)


def test_state_that_does_not_fit_is_refused_before_anything_is_committed(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"}, {"k": "b"}, {"k": "c"}, {"k": "d"})
    changed(jobs, Count, "k", "count")
    jobs.feed("events", {"k": "a"})
    before = jobs.checkpoints()
    for what, (function, key, uid, message) in CHANGES.items():
        with pytest.raises(IncompatibleStateError, match=message):
            changed(jobs, function, key, uid)
        assert jobs.out() == counted("abcd"), what
        assert jobs.checkpoints() == before, what
    assert not list((jobs.directory / "out").rglob("*.inprogress"))
    changed(jobs, More, "k", "count")  # an added state is fine
    assert jobs.out() == counted("aabcd")


def test_state_that_nobody_claims_can_be_dropped_knowingly(jobs: Jobs) -> None:
    jobs.feed("events", {"k": "a"})
    changed(jobs, More, "k", "count")
    jobs.feed("events", {"k": "a"})
    with pytest.raises(IncompatibleStateError, match="state 'extra' of operator 'count'"):
        changed(jobs, Count, "k", "count")
    changed(jobs, Count, "k", "count", allow_non_restored_state=True)
    assert jobs.out() == counted("aa")  # what stayed kept its state
    jobs.feed("events", {"k": "a"})
    changed(jobs, Count, "k", "other", allow_non_restored_state=True)
    assert jobs.out() == sorted([*counted("aa"), ("a", 1)])
    schemas = {(s.uid, s.name) for s in jobs.checkpoints()[-1].schemas}
    assert schemas == {("other", "count")}
