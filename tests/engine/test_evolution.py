"""Starting programs whose state has another type than the one that was saved."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from job_support import Jobs
from saved_jobs import FIRST, SECOND, events, save
from turnback import (
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.errors import (
    IncompatibleStateError,
)


@dataclass
class Old:
    n: int = 0
    gone: str = ""
    click_count: int = 0
    size: Types.INT() = 0  # type: ignore[valid-type]


@dataclass
class New:
    clicks: int = 0
    n: int = 0
    size: Types.LONG() = 0  # type: ignore[valid-type]
    paid: bool = False
    tags: list[str] = dataclasses.field(default_factory=lambda: ["none"])


class Before(KeyedProcessFunction):
    stats = ValueStateDescriptor("stats", Old)
    seen = MapStateDescriptor("seen", str, Types.INT())

    def process_element(self, value: Any, ctx: Any) -> Any:
        old = self.stats.value() or Old()
        new = Old(old.n + 1, "x", old.click_count + value.n, old.size + 2)
        self.stats.update(new)
        self.seen[f"n{value.n}"] = value.n
        yield value.k, f"{new.n} {new.click_count} {new.size}"


class After(KeyedProcessFunction):
    stats = ValueStateDescriptor("stats", New, aliases={"clicks": "click_count"})
    seen = MapStateDescriptor("seen", str, Types.LONG())

    def process_element(self, value: Any, ctx: Any) -> Any:
        old = self.stats.value() or New()
        assert isinstance(old, New)
        assert (old.paid, old.tags) == (False, ["none"])
        new = dataclasses.replace(old, n=old.n + 1, clicks=old.clicks + value.n, size=old.size + 2)
        self.stats.update(new)
        self.seen[f"n{value.n}"] = value.n
        assert all(k == f"n{v}" for k, v in self.seen.items())
        yield value.k, f"{new.n} {new.clicks} {new.size}"


class InOpen(After):
    stats = None
    seen = None

    def open(self, runtime_context: Any) -> None:
        self.stats = runtime_context.get_state(
            ValueStateDescriptor("stats", New, aliases={"clicks": "click_count"})
        )
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", str, Types.LONG()))


class Migrated(After):
    stats = ValueStateDescriptor(
        "stats",
        New,
        migrate=lambda old: New(clicks=old.click_count, n=old.n, size=old.size),
        migrate_from=Old,
    )


class Narrowed(Before):
    seen = MapStateDescriptor("seen", str, Types.SHORT())


class Retyped(Before):
    stats = ValueStateDescriptor("stats", str)


def evolving(jobs: Jobs, function: Any, **configuration: Any) -> StreamExecutionEnvironment:
    env = jobs.env(**configuration)
    stream = jobs.files(env, "events", "k string, n bigint").key_by("k")
    stream.process(function, "k string, text string").uid("stats").sink_to(jobs.sink()).uid("out")
    return env


@pytest.fixture
def before(jobs: Jobs) -> Path:
    jobs.feed("events", *events(FIRST))
    path = save(jobs, evolving(jobs, Before()))
    jobs.feed("events", *events(SECOND))
    return path


def never_stopped(jobs: Jobs) -> list[Any]:
    evolving(jobs, Before()).execute("reference", bounded=True)
    return jobs.out()


@pytest.mark.parametrize("how", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("after", [After, InOpen, Migrated])
def test_state_evolves(jobs: Jobs, before: Path, after: Any, how: str) -> None:
    start = {"start_from": before} if how == "savepoint" else {}
    evolving(jobs, after(), parallelism=3).execute("job", bounded=True, **start)
    found = jobs.out()
    jobs.directory.joinpath("out").rename(jobs.directory / "kept")
    assert found == never_stopped(jobs)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (Narrowed, r"'seen' of operator 'stats'.*int cannot become smallint"),
        (Retyped, r"'stats' of operator 'stats'.*cannot become string"),
    ],
)
@pytest.mark.parametrize("how", ["savepoint", "checkpoint"])
def test_other_changes_are_refused_by_name(
    jobs: Jobs, before: Path, after: Any, message: str, how: str
) -> None:
    start = {"start_from": before} if how == "savepoint" else {}
    found = jobs.out()
    with pytest.raises(IncompatibleStateError, match=message):
        evolving(jobs, after()).execute("job", bounded=True, **start)
    assert jobs.out() == found
