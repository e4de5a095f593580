"""Starting changed programs from a savepoint: every output is that of a run that never stopped."""

from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator_fakes import take_fence
from job_support import COUNTED, Count, Jobs, counted
from saved_jobs import FIRST, SECOND, events, save
from turnback import (
    ClaimMode,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from turnback.driver.runner import JobRunner
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    CorruptFileError,
    FencedError,
    IncompatibleStateError,
    JobFailedError,
)
from turnback.snapshot.directory import SavepointDirectory


class Sum(KeyedProcessFunction):
    """Gets its state in open(), as PyFlink programs do."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.total.update((self.total.value() or 0) + value.n)
        yield value.k, self.total.value()


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
    with pytest.raises(ConfigurationError, match="only take over one of them"):
        run(right | {"count/count": "adder/amount"}, start_from=saved)
    run(right, start_from=saved)
    assert jobs.out("counts") == counted(FIRST + SECOND)
    assert jobs.out("sums") == summed(FIRST + SECOND)
    jobs.feed("events", {"k": "a", "n": 1})
    run(right)  # the same command again goes on from what it has renamed already
    assert jobs.out("counts") == counted(FIRST + SECOND + "a")


def test_one_savepoint_many_jobs(jobs: Jobs, saved: Path) -> None:
    """Forks have lives of their own, and the job they came from goes on beside them."""
    with pytest.raises(ConfigurationError, match=r"taken by job 'job', not by 'b': .*fork=True"):
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


def test_a_replaced_driver_leaves_the_savepoint_that_it_claimed(
    jobs: Jobs, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor may have been told to start from there again."""
    drop = JobRunner._drop_claimed

    def replaced(self: JobRunner) -> None:
        if self._claimed is not None:
            take_fence(jobs.log(), nonce="another", job_id=self.report.job_id)
        drop(self)

    monkeypatch.setattr(JobRunner, "_drop_claimed", replaced)
    env = Program(jobs).build(jobs.env())
    with suppress(FencedError):  # unless that was its last checkpoint
        env.execute("job", bounded=True, start_from=saved, claim_mode=ClaimMode.CLAIM)
    SavepointDirectory.locate(saved).load()


def test_what_is_refused_before_anything_is_written(jobs: Jobs, saved: Path) -> None:
    def start(where: Any, max_parallelism: int = 128) -> None:
        env = jobs.env()
        env.set_max_parallelism(max_parallelism)
        Program(jobs).build(env).execute("job", bounded=True, start_from=where)

    with pytest.raises(
        IncompatibleStateError, match=r"128 key groups, but the program has 64.*offline"
    ):
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
