"""`turnback.testing` itself: what it shows, what it refuses, and that a crash is one."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from faults import POINTS
from turnback import (
    CollectSink,
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    Row,
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from turnback.config.checkpointing import SavepointFormat
from turnback.errors import (
    ConfigurationError,
    ElementTypeError,
    JobFailedError,
    PlanError,
    StateError,
)
from turnback.testing import DriverCrash, JobHarness, source
from turnback.windows import TumblingEventTimeWindows

EXAMPLES = Path(__file__).parents[2] / "examples"


class Count(KeyedProcessFunction):
    n = ValueStateDescriptor("n", int)
    kinds = MapStateDescriptor("kinds", str, int)
    seen = ListStateDescriptor("seen", str)

    def process_element(self, value: Any, ctx: Any) -> Any:
        if value.kind == "bad":
            raise ValueError("a bad one")
        self.n.update((self.n.value() or 0) + 1)
        self.kinds[value.kind] = (self.kinds.get(value.kind) or 0) + 1
        self.seen.add(value.kind)
        yield Row(value.post, self.n.value())


def program(env: StreamExecutionEnvironment) -> None:
    events = source(env, "events", "post string, kind string")
    counts = events.key_by("post").process(Count(), "post string, n bigint").uid("count")
    counts.sink_to(FileSink("/nowhere/counts", "json")).uid("counts")
    totals = counts.key_by("n").process(Last(), "n bigint, post string").uid("last")
    totals.sink_to(FileSink("/nowhere/totals", "json")).uid("totals")


class Last(KeyedProcessFunction):
    post = ValueStateDescriptor("post", str)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.post.update(value.post)
        yield Row(value.n, value.post)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    with JobHarness(program, tmp_path) as harness:
        yield harness


def test_state_of_every_shape(job: JobHarness) -> None:
    job.push("events", ("p", "view"), {"post": "q", "kind": "click"}, Row("p", "click"))
    assert job.state("count", "n") == {"p": 2, "q": 1}
    assert job.state("count", "kinds") == {"p": {"view": 1, "click": 1}, "q": {"click": 1}}
    assert job.state("count", "seen") == {"p": ["view", "click"], "q": ["click"]}
    assert sorted(job.output("counts")) == [("p", 1), ("p", 2), ("q", 1)]
    assert not Path("/nowhere").exists()


def test_output_waits_for_its_checkpoint(job: JobHarness) -> None:
    job.push("events", ("p", "view"), checkpoint=False)
    assert job.output("counts") == []
    with pytest.raises(StateError, match="no checkpoint yet; push something first"):
        job.state("count", "n")
    assert job.checkpoint().startswith("chk-")
    assert job.output("counts") == [("p", 1)]


@pytest.mark.parametrize("format_type", list(SavepointFormat))
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_another_job_starts_from_a_savepoint(
    job: JobHarness, tmp_path: Path, backend: str, format_type: SavepointFormat
) -> None:
    job.push("events", ("p", "view"), ("q", "view"))
    savepoint = job.savepoint(tmp_path / "sp", format_type)
    job.push("events", ("p", "view"))
    with JobHarness(
        program, tmp_path / "b", name="b", state_backend=backend, parallelism=3
    ) as fork:
        fork.push("events", ("x", "view"))
        fork.stop()
        fork.start(start_from=savepoint, fork=True)
        fork.push("events", ("q", "click"))
        assert fork.state("count", "n") == {"p": 1, "q": 2}
    assert job.state("count", "n") == {"p": 2, "q": 1}


def test_a_savepoint_of_more_than_was_pushed(job: JobHarness, tmp_path: Path) -> None:
    job.push("events", ("p", "view"))
    savepoint = job.savepoint()
    other = JobHarness(program, tmp_path / "b", name="b")
    with pytest.raises(JobFailedError, match=r"1 pushes were read before.*has had 0"):
        other.start(start_from=savepoint, fork=True)


def test_a_real_sink_writes(tmp_path: Path) -> None:
    def real(env: StreamExecutionEnvironment) -> None:
        events = source(env, "events", "post string, kind string")
        events.sink_to(FileSink(tmp_path / "out", "json")).uid("out")

    with JobHarness(real, tmp_path, real_sinks=["out"]) as job:
        job.push("events", ("p", "view"))
        (written,) = (tmp_path / "out").glob("*.json")
        assert written.read_text() == '{"post":"p","kind":"view"}\n'
        with pytest.raises(ConfigurationError, match="no sink 'out'"):
            job.output("out")
    with pytest.raises(ConfigurationError, match="no sink 'outt'; did you mean 'out'"):
        JobHarness(real, tmp_path, real_sinks=["outt"]).start()


CHECKPOINT = [
    "before-state-file",
    "before-last-state-file",
    "before-manifest",
    "after-manifest",
    "between-sink-commits",
    "after-sink-commit",
]


START = ["after-fence", "before-start-record", "after-start-record", "during-recovery"]


@pytest.mark.parametrize("point", [*CHECKPOINT, *START, "once"])
def test_a_crash_loses_and_doubles_nothing(job: JobHarness, point: str) -> None:
    job.push("events", ("p", "view"))
    if point in CHECKPOINT:
        job.crash_at(point)
        with pytest.raises(DriverCrash, match=point):
            job.push("events", ("p", "view"), ("q", "view"))
    else:
        job.push("events", ("p", "view"), ("q", "view"), checkpoint=False)
        job.crash()
        if point != "once":
            job.crash_at(point)
            with pytest.raises(DriverCrash, match=point):
                job.start()
    job.start()
    job.push("events", ("q", "view"))
    assert sorted(job.output("counts")) == [("p", 1), ("p", 2), ("q", 1), ("q", 2)]
    assert len(job.output("totals")) == 4
    assert job.state("count", "n") == {"p": 2, "q": 2}


def test_a_crash_while_a_savepoint_is_written(job: JobHarness) -> None:
    job.push("events", ("p", "view"))
    job.crash_at("during-savepoint")
    with pytest.raises(DriverCrash, match="during-savepoint"):
        job.savepoint()
    job.start()
    assert job.savepoint().is_dir()


def test_a_job_that_fails_for_good(job: JobHarness) -> None:
    job.push("events", ("p", "view"))
    with pytest.raises(JobFailedError, match=r"failed after 3 restarts: operator 'count'.*bad one"):
        job.push("events", ("p", "bad"))
    with pytest.raises(ConfigurationError, match="is not running; start it first"):
        job.push("events", ("p", "view"))
    assert job.state("count", "n") == {"p": 1}


def test_a_task_and_a_sink_that_fail(job: JobHarness) -> None:
    job.fail_task("count")
    job.push("events", ("p", "view"))
    job.fail_task("totals", OSError("disk full"))
    job.push("events", ("p", "view"))
    assert job.report.attempts == 3
    assert job.output("counts") == [("p", 1), ("p", 2)]


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "source": (lambda j: j.push("event", 1), ConfigurationError, "source 'event'; did you mean"),
    "element": (lambda j: j.push("events", ("p", 1)), ElementTypeError, "field 'kind': 1"),
    "sink": (lambda j: j.output("count"), ConfigurationError, "no sink 'count'; did you mean"),
    "operator": (lambda j: j.fail_task("cuont"), ConfigurationError, "did you mean 'count'"),
    "error": (lambda j: j.fail_task("count", "no"), ConfigurationError, "must be an exception"),
    "state": (lambda j: j.state("count", "m"), StateError, "has no state 'm'"),
    "uid": (lambda j: j.state("cuont", "n"), StateError, "did you mean 'count'"),
    "point": (lambda j: j.crash_at("before-lunch"), ConfigurationError, "crash point 'before-l"),
    "count": (lambda j: j.crash_at("after-fence", 0), ConfigurationError, "above 0, got 0"),
    "twice": (lambda j: j.start(), ConfigurationError, "is already running; stop it first"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_it_refuses(job: JobHarness, what: str) -> None:
    call, kind, message = REFUSED[what]
    job.push("events", ("p", "view"))
    with pytest.raises(kind, match=message):
        call(job)
    job.push("events", ("p", "view"))  # it goes on
    assert job.output("counts") == [("p", 1), ("p", 2)]


def test_partitions_have_watermarks_of_their_own(tmp_path: Path) -> None:
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")

    def counted(env: StreamExecutionEnvironment) -> None:
        events = source(env, "events", "post string, at bigint", partitions=2)
        timed = events.assign_timestamps_and_watermarks(by_time).uid("time")
        tens = timed.key_by("post").window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        counts = tens.aggregate(n=count()).uid("counts")
        numbers = counts.map(lambda c: Row(c.post, c.n), "post string, n bigint").uid("numbers")
        numbers.sink_to(CollectSink()).uid("out")

    with JobHarness(counted, tmp_path) as job:
        job.push("events", ("a", 1), ("a", 95), partition=1)
        assert job.output("out") == []
        job.restart()
        job.push("events", ("a", 2), ("a", 11))
        assert job.output("out") == [("a", 2)]
        with pytest.raises(ConfigurationError, match=r"'events' has no partition 2; declare it"):
            job.push("events", ("a", 3), partition=2)


def test_what_cannot_be_a_harness(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="takes a function that builds the program"):
        JobHarness("program", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="takes a directory, got 7"):
        JobHarness(program, 7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="parallelism must be a whole number"):
        JobHarness(program, tmp_path, parallelism="two").start()  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="backend"):
        JobHarness(program, tmp_path, state_backend="paper").start()
    with pytest.raises(PlanError, match="the environment that a JobHarness passes"):
        source(StreamExecutionEnvironment(), "events", "a string")


def test_the_methods_of_turnback_are_left_as_they_were(tmp_path: Path) -> None:
    def wrapped() -> list[str]:
        points = [point for points in POINTS.values() for point in points]
        methods = {m for point in points for m in (point.method, point.during) if m}
        found = []
        for method in methods:
            module, _, name = method.partition(":")
            owner: Any = importlib.import_module(f"turnback.{module}")
            for part in name.split("."):
                owner = getattr(owner, part)
            found += [method] if hasattr(owner, "__wrapped__") else []
        return found

    before = wrapped()
    with JobHarness(program, tmp_path) as job:
        job.crash_at("after-manifest")
        with pytest.raises(DriverCrash):
            job.push("events", ("p", "view"))
    assert wrapped() == before


def test_no_jvm_is_started() -> None:
    code = (
        "import sys, tempfile, turnback.testing as t\n"
        "from turnback import CollectSink\n"
        "program = lambda env: t.source(env, 's', int).sink_to(CollectSink()).uid('out')\n"
        "with t.JobHarness(program, tempfile.mkdtemp()) as job:\n"
        "    job.push('s', 1, 2)\n"
        "    assert job.output('out') == [1, 2]\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_example_and_the_page(tmp_path: Path) -> None:
    """What is shown to users runs, as it is."""
    page = (EXAMPLES.parent / "docs" / "testing.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "test_page.py").write_text("\n\n".join(shown))
    files = [*map(str, sorted(EXAMPLES.glob("test_*.py"))), str(tmp_path / "test_page.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "19 passed" in done.stdout


def test_the_page_names_every_point() -> None:
    page = (EXAMPLES.parent / "docs" / "testing.md").read_text()
    assert [point for point in POINTS if f"`{point}`" not in page] == []


def test_a_source_that_a_new_program_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    def program(uids: str) -> Any:
        def build(env: Any) -> None:
            first, *others = (source(env, uid, "n bigint") for uid in uids)
            stream = first.union(*others) if others else first
            stream.sink_to(FileSink("/nowhere", "json")).uid("out")

        return build

    with JobHarness(program("ab"), tmp_path) as job:
        job.push("a", (1,))
        job.push("b", (2,))
        job.restart(program("a"), allow_non_restored_state=True)
        job.push("a", (3,))
        assert sorted(row.n for row in job.output("out")) == [1, 2, 3]
        with pytest.raises(ConfigurationError, match="no source 'b'"):
            job.push("b", (4,))
