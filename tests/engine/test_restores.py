"""Starting changed programs from a savepoint: every output is that of a run that never stopped."""

import dataclasses
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from turnback import (
    ClaimMode,
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.core.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    IncompatibleStateError,
    JobFailedError,
)
from turnback.snapshot.directory import SavepointDirectory

FIRST, SECOND = "aabcabd", "cabbaad"


class Sum(KeyedProcessFunction):
    """Gets its state in open(), as PyFlink programs do."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.k, self.total.value()


def events(keys: str) -> list[dict[str, Any]]:
    return [{"k": k, "n": i} for i, k in enumerate(keys)]


def summed(keys: str) -> list[tuple[str, int]]:
    totals: dict[str, int] = defaultdict(int)
    found = []
    for event in events(FIRST) + events(SECOND) if keys == FIRST + SECOND else events(keys):
        totals[event["k"]] += event["n"]
        found.append((event["k"], totals[event["k"]]))
    return sorted(found, key=repr)


class Program:
    """Two keyed operators over one source, in pieces that a test can change."""

    def __init__(self, jobs: Jobs) -> None:
        self.jobs = jobs

    def source(self, env: Any) -> Any:
        return self.jobs.files(env, "events", "k string, n bigint")

    def count(self, stream: Any) -> None:
        made = stream.key_by("k").process(Count(), COUNTED).uid("count")
        made.sink_to(self.jobs.sink("counts")).uid("counts")

    def sum(self, stream: Any) -> None:
        made = stream.key_by("k").process(Sum(), "k string, n bigint").uid("sum")
        made.sink_to(self.jobs.sink("sums")).uid("sums")

    def build(self, env: StreamExecutionEnvironment) -> StreamExecutionEnvironment:
        stream = self.source(env)
        self.count(stream)
        self.sum(stream)
        return env


def save(jobs: Jobs, env: StreamExecutionEnvironment, name: str = "job") -> Path:
    """Process what is there, and stop with a savepoint."""
    path = jobs.directory / f"saved-{name}"
    client = jobs.start(env, name)
    fed = sum(1 for _ in jobs.input("events").glob("*.json"))
    while len(client.report.epochs) < fed:
        client.done() and client.result()
    client.stop_with_savepoint(savepoint_directory=path).result(90)
    client.result(90)
    return path


@pytest.fixture
def saved(jobs: Jobs) -> Path:
    jobs.feed("events", *events(FIRST))
    path = save(jobs, Program(jobs).build(jobs.env()))
    jobs.feed("events", *events(SECOND))
    return path


class Reordered(Program):
    def build(self, env: Any) -> Any:
        self.jobs.feed("other", {"k": "z"})
        other = self.jobs.files(env, "other", "k string")
        other.sink_to(self.jobs.sink("other")).uid("other out")
        stream = self.source(env)
        self.sum(stream)
        self.count(stream)
        return env


class CodeChanged(Program):
    def count(self, stream: Any) -> None:
        mapped = stream.map(lambda e: (e.k.upper(), e.n), "k string, n bigint").uid("new map")
        lowered = mapped.map(lambda e: (e.k.lower(), e.n), "k string, n bigint").uid("another")
        super().count(lowered.filter(lambda e: e.n >= 0).uid("new filter"))


CHANGES = {
    "nothing": (Program, {}),
    "more parallelism": (Program, {"parallelism": 3}),
    "less parallelism": (Program, {"parallelism": 1}),
    "another backend": (Program, {"state.backend.type": "hashmap"}),
    "sources and operators reordered and added": (Reordered, {}),
    "operators added before": (CodeChanged, {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_output_is_that_of_a_run_without_a_stop(jobs: Jobs, saved: Path, change: str) -> None:
    program, how = CHANGES[change]
    program(jobs).build(jobs.env(**how)).execute("job", bounded=True, start_from=saved)
    assert jobs.out("counts") == counted(FIRST + SECOND)
    assert jobs.out("sums") == summed(FIRST + SECOND)


def test_on_another_cluster(jobs: Jobs, saved: Path) -> None:
    """Nothing of the job is left but the savepoint, and its output, which it takes along."""
    env = jobs.environment(root=jobs.directory / "elsewhere")
    Program(jobs).build(env.set_parallelism(2).enable_checkpointing(10))
    report = env.execute("job", bounded=True, start_from=saved, take_over_sinks=True)
    assert report.restored_from == saved.as_uri()
    assert jobs.out("counts") == counted(FIRST + SECOND)


class WithoutSum(Program):
    def sum(self, stream: Any) -> None:
        pass


def test_an_operator_removed(jobs: Jobs, saved: Path) -> None:
    def run(**how: Any) -> Any:
        env = WithoutSum(jobs).build(jobs.env())
        return env.execute("job", bounded=True, start_from=saved, **how)

    with pytest.raises(IncompatibleStateError) as refused:
        run()
    told = str(refused.value)
    assert "state 'total' of operator 'sum'" in told
    assert "4 rows" in told
    assert "allow_non_restored_state=['sum']" in told
    with pytest.raises(ConfigurationError, match=r"has no operator or state 'summ'.*'sum'"):
        run(allow_non_restored_state=["summ"])
    assert jobs.out("counts") == counted(FIRST)
    run(allow_non_restored_state=["sum/total"])
    assert jobs.out("counts") == counted(FIRST + SECOND)


class Renamed(Program):
    def sum(self, stream: Any) -> None:
        made = stream.key_by("k").process(RenamedSum(), "k string, n bigint").uid("adder")
        made.sink_to(self.jobs.sink("sums")).uid("sums")

    def source(self, env: Any) -> Any:
        return self.jobs.files(env, "events", "k string, n bigint", uid="clicks")


class RenamedSum(KeyedProcessFunction):
    amount = ValueStateDescriptor("amount", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.amount.update((self.amount.value() or 0) + value.n)
        yield value.k, self.amount.value()


def test_renamed_operators_states_and_sources(jobs: Jobs, saved: Path) -> None:
    def run(renames: Any, **how: Any) -> Any:
        env = Renamed(jobs).build(jobs.env())
        return env.execute("job", bounded=True, renames=renames, **how)

    right = {"events": "clicks", "sum/total": "adder/amount"}
    with pytest.raises(ConfigurationError, match=r"'adder/amont'"):
        run(right | {"sum/total": "adder/amont"}, start_from=saved)
    with pytest.raises(ConfigurationError, match="one of them only"):
        run(right | {"count/count": "adder/amount"}, start_from=saved)
    run(right, start_from=saved)
    assert jobs.out("counts") == counted(FIRST + SECOND)
    assert jobs.out("sums") == summed(FIRST + SECOND)
    jobs.feed("events", {"k": "a", "n": 1})
    run(right)  # the same command again goes on from what it has renamed already
    assert jobs.out("counts") == counted(FIRST + SECOND + "a")


def test_one_savepoint_many_jobs(jobs: Jobs, saved: Path) -> None:
    """Forks have lives of their own, and the job they came from goes on beside them."""
    with pytest.raises(
        ConfigurationError, match=r"taken by the job 'job', not by 'b': .*fork=True"
    ):
        Program(jobs).build(jobs.env()).execute("b", bounded=True, start_from=saved)
    before = sorted(p.name for p in saved.rglob("*"))
    Program(jobs).build(jobs.env()).execute("job", bounded=True)
    assert jobs.out("counts") == counted(FIRST + SECOND)
    for name in ("b", "c"):
        out = Forked(jobs, name)
        out.build(jobs.env()).execute(name, bounded=True, start_from=saved, fork=True)
        rest = [p for p in counted(FIRST + SECOND) if p not in counted(FIRST)]
        assert jobs.out(f"{name}-counts") == rest
    assert sorted(p.name for p in saved.rglob("*")) == before
    assert jobs.out("counts") == counted(FIRST + SECOND)


def test_a_fork_does_not_write_to_what_the_original_writes_to(jobs: Jobs, saved: Path) -> None:
    def run(name: str, **how: Any) -> Any:
        return Program(jobs).build(jobs.env()).execute(name, bounded=True, **how)

    written = [jobs.directory / "counts", jobs.directory / "sums"]
    before = [sorted(path.rglob("*")) for path in written]
    fork = {"start_from": saved, "fork": True}
    refused = r"sink 'counts' of job 'b': .*counts belongs to job 'job' in .*take_over_sinks=True"
    with pytest.raises(ConfigurationError, match=refused):
        run("b", **fork)
    assert [sorted(path.rglob("*")) for path in written] == before
    run("b", **fork, take_over_sinks=True)
    assert jobs.out("counts") == counted(FIRST + SECOND)
    assert jobs.out("sums") == summed(FIRST + SECOND)
    with pytest.raises(ConfigurationError, match="belongs to job 'b'"):
        run("job")
    run("b")
    assert jobs.out("counts") == counted(FIRST + SECOND)


class Forked(WithoutSum):
    def __init__(self, jobs: Jobs, name: str) -> None:
        super().__init__(jobs)
        self.name = name

    def count(self, stream: Any) -> None:
        made = stream.key_by("k").process(Count(), COUNTED).uid("count")
        made.sink_to(self.jobs.sink(f"{self.name}-counts")).uid("counts")

    def sum(self, stream: Any) -> None:
        stream.key_by("k").process(Sum(), "k string, n bigint").uid("sum").sink_to(
            self.jobs.sink(f"{self.name}-sums")
        ).uid("sums")


def test_another_jobs_checkpoint(jobs: Jobs, saved: Path) -> None:
    newest = jobs.checkpoints()[-1]
    path = jobs.path() / "checkpoints" / f"{newest.name}.json"
    env = Forked(jobs, "b").build(jobs.env())
    env.execute("b", bounded=True, start_from=path, fork=True)
    rest = [p for p in counted(FIRST + SECOND) if p not in counted(FIRST)]
    assert jobs.out("b-counts") == rest


def test_a_failure_before_the_first_checkpoint_takes_it_in_again(jobs: Jobs, saved: Path) -> None:
    class Fails(Count):
        def process_element(self, value: Any, ctx: Any) -> Any:
            if marks.first("failed"):
                raise RuntimeError("once")
            yield from super().process_element(value, ctx)

    marks = jobs.marks
    how = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "0 s"}
    env = jobs.env(**how, **{"restart-strategy.fixed-delay.attempts": 1})
    stream = jobs.files(env, "events", "k string, n bigint")
    stream.key_by("k").process(Fails(), COUNTED).uid("count").sink_to(jobs.sink("counts")).uid(
        "counts"
    )
    report = env.execute("job", bounded=True, start_from=saved, allow_non_restored_state=True)
    assert report.attempts == 2
    assert jobs.out("counts") == counted(FIRST + SECOND)


def test_a_claimed_savepoint_goes_when_it_is_not_needed_any_more(jobs: Jobs, saved: Path) -> None:
    env = Program(jobs).build(jobs.env())
    env.execute("job", bounded=True, start_from=saved, claim_mode=ClaimMode.CLAIM)
    assert jobs.out("counts") == counted(FIRST + SECOND)
    with pytest.raises(CheckpointNotFoundError):
        SavepointDirectory.locate(saved).load()
    jobs.feed("events", {"k": "a", "n": 1})
    Program(jobs).build(jobs.env()).execute("job", bounded=True)
    assert jobs.out("counts") == counted(FIRST + SECOND + "a")


def test_what_is_refused_before_anything_is_written(jobs: Jobs, saved: Path) -> None:
    def start(where: Any, max_parallelism: int = 128) -> None:
        env = jobs.env()
        env.set_max_parallelism(max_parallelism)
        Program(jobs).build(env).execute("job", bounded=True, start_from=where)

    with pytest.raises(IncompatibleStateError, match=r"128 key groups, the program 64.*offline"):
        start(saved, 64)
    with pytest.raises(CheckpointNotFoundError, match="does not exist or is empty"):
        start(jobs.directory / "nowhere" / "at all")
    part = next((saved / "state" / "count" / "count").iterdir())
    data = part.read_bytes()
    part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises((CorruptFileError, JobFailedError), match=part.name):
        start(saved)
    part.write_bytes(data)
    metadata = saved / "_metadata.json"
    text = metadata.read_text()
    metadata.write_text(text.replace('"job"', '"jab"', 1))
    with pytest.raises(CorruptFileError, match=r"_metadata\.json"):
        start(saved)
    metadata.rename(saved / "aside")
    with pytest.raises(CheckpointNotFoundError, match="partial savepoint"):
        start(saved)
    assert jobs.out("counts") == counted(FIRST)


# -- types that have changed


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
        (Narrowed, r"'seen' of operator 'stats'.*int cannot become short"),
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
