"""What a changed program starts from: restarts, copies and dropped state take the same path."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from job_support import COUNTED, Count, Jobs, counted
from turnback import FileSink, RestartStrategies, Types, ValueStateDescriptor
from turnback.errors import (
    CheckpointNotFoundError,
    ConfigurationError,
    IncompatibleStateError,
    JobFailedError,
    SinkError,
)
from turnback.job.directory import JobDirectory
from turnback.job.status import JobState

SCHEMA = "k string"


def feed(jobs: Jobs, keys: str, source: str = "events") -> None:
    jobs.feed(source, *({"k": k} for k in keys))


class FailsOnce(Count):
    """Fails at its first element, among all processes."""

    def __init__(self, jobs: Jobs) -> None:
        self.marks = jobs.marks

    def process_element(self, value: Any, ctx: Any) -> Any:
        if self.marks.first("failed"):
            raise RuntimeError("once")
        yield from super().process_element(value, ctx)


def counts(jobs: Jobs, uid: str, function: Any, env: Any, source: str = "events") -> Any:
    stream = env.from_files(jobs.input("events"), "json", SCHEMA, source)
    return stream.key_by("k").process(function, COUNTED).uid(uid)


def run(
    jobs: Jobs,
    uids: Sequence[str] = ("count",),
    source: str = "events",
    function: Any = None,
    sink: Any = None,
    sink_uid: str = "out",
    **how: Any,
) -> Any:
    """Run a job with one counting operator per uid, each with a sink of its own."""
    env = jobs.env(interval=3_600_000)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 10))
    stream = env.from_files(jobs.input("events"), "json", SCHEMA, source)
    for i, uid in enumerate(uids):
        out = sink or jobs.sink(f"out-{uid}")
        counted = stream.key_by("k").process(function or Count(), COUNTED).uid(uid)
        counted.sink_to(out).uid(f"{sink_uid}-{i}")
    return env.execute("job", bounded=True, **how)


def test_an_upgrade_that_fails_once_is_matched_again(jobs: Jobs) -> None:
    feed(jobs, "aab")
    run(jobs, ["count"])
    feed(jobs, "ab")
    renames = {"count": "total", "events": "orders"}
    report = run(jobs, ["total"], "orders", FailsOnce(jobs), renames=renames)
    assert report.attempts == 2
    assert jobs.out("out-total") == [("a", 3), ("b", 2)]


def test_dropped_state_does_not_come_back(jobs: Jobs) -> None:
    feed(jobs, "aab")
    run(jobs, ["count", "other"])
    feed(jobs, "ab")
    run(jobs, ["count"], allow_non_restored_state=["other"])
    feed(jobs, "ab")
    run(jobs, ["count", "other"])
    assert jobs.out("out-count") == counted("aababab")
    assert jobs.out("out-other") == sorted([*counted("aab"), ("a", 1), ("b", 1)])


class TwoStates(Count):
    seen = ValueStateDescriptor("seen", int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.seen.value() or 0) + 1
        self.seen.update(n)
        yield value.k, n


def test_one_dropped_state_of_an_operator_that_stays(jobs: Jobs) -> None:
    feed(jobs, "aa")
    run(jobs, function=TwoStates())
    feed(jobs, "a")
    run(jobs, allow_non_restored_state=["count/seen"])
    feed(jobs, "a")
    run(jobs, function=TwoStates())
    assert jobs.out("out-count") == [("a", 1), ("a", 1), ("a", 1), ("a", 2)]


class FailingSink(FileSink):
    """A file sink that cannot commit as long as a file says so."""

    def __init__(self, path: Path, broken: Path) -> None:
        super().__init__(path, "json")
        self.broken = broken

    def committer(self, ctx: Any) -> Any:
        committer = super().committer(ctx)
        commit = committer.commit

        def checked(transactions: Any) -> None:
            if transactions and self.broken.exists():
                raise SinkError("not now")
            commit(transactions)

        committer.commit = checked  # type: ignore[method-assign]
        return committer


@pytest.fixture
def promised(jobs: Jobs) -> Jobs:
    """A job whose last checkpoint has promised output that is not committed."""
    feed(jobs, "aab")
    broken = jobs.directory / "broken"
    broken.touch()
    with pytest.raises(JobFailedError, match="not now"):
        run(jobs, sink=FailingSink(jobs.directory / "out", broken))
    broken.unlink()
    assert jobs.checkpoints()
    assert jobs.out() == []
    return jobs


def test_the_savepoint_before_an_upgrade_lacks_no_promised_output(promised: Jobs) -> None:
    jobs = promised
    directory = jobs.directory / "savepoints"
    env = jobs.env(interval=3_600_000, **{"state.savepoints.dir": str(directory)})
    counts(jobs, "count", Count(), env).sink_to(jobs.sink()).uid("out-0")
    env.from_files(jobs.input("more"), "json", SCHEMA, "more").sink_to(jobs.sink("raw")).uid("raw")
    seen: list[Any] = []
    from turnback.driver.service import RequestService

    save = RequestService.save_before_upgrade

    def look(self: Any, manifest: Any) -> None:
        seen.append(jobs.out())
        save(self, manifest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestService, "save_before_upgrade", look)
        env.execute("job", bounded=True)
    assert seen == [counted("aab")]
    (saved,) = directory.iterdir()
    again = jobs.env(interval=3_600_000)
    counts(jobs, "count", Count(), again).sink_to(jobs.sink("again")).uid("out-0")
    feed(jobs, "a")
    again.execute("other", bounded=True, start_from=saved, fork=True, allow_non_restored_state=True)
    assert jobs.out("again") == [("a", 3)]


def test_promised_output_of_a_sink_that_is_gone_is_refused(promised: Jobs) -> None:
    jobs = promised
    with pytest.raises(IncompatibleStateError, match="in-doubt output of operator 'out-0'"):
        run(jobs, sink=jobs.sink(), sink_uid="new")
    assert jobs.out() == []
    run(jobs, sink=jobs.sink(), sink_uid="new", renames={"out-0": "new-0"})
    assert jobs.out() == counted("aab")


def test_promised_output_can_be_left_out_knowingly(promised: Jobs) -> None:
    run(promised, sink=promised.sink(), sink_uid="new", allow_non_restored_state=["out-0"])
    assert promised.out() == []


def test_what_was_left_out_is_not_promised_any_more(promised: Jobs) -> None:
    """The sink that has its target now has rolled it back: nobody could commit it."""
    before = promised.checkpoints()[-1]
    assert list(promised.log().uncommitted(before)) == ["out-0"]
    run(promised, sink=promised.sink(), sink_uid="new", allow_non_restored_state=["out-0"])
    assert promised.log().uncommitted(before) == {}
    run(promised, sink=promised.sink())
    assert promised.out() == []


def test_the_copy_of_a_checkpoint_belongs_to_nobody(jobs: Jobs) -> None:
    feed(jobs, "aab")
    run(jobs)
    copy = jobs.directory / "backup" / "job"
    shutil.copytree(jobs.path(), copy)
    (first,) = jobs.checkpoints()
    feed(jobs, "ab")
    run(jobs)
    path = copy / "checkpoints" / f"{first.name}.json"
    run(jobs, start_from=path, sink=jobs.sink("back"))
    assert jobs.out("back") == [("a", 3), ("b", 2)]
    shutil.rmtree(copy)
    feed(jobs, "c")
    run(jobs, sink=jobs.sink("back"))
    assert jobs.out("back") == [("a", 3), ("b", 2), ("c", 1)]


class Pickled(Count):
    kept = ValueStateDescriptor("kept", Types.PICKLED_BYTE_ARRAY())

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.kept.update(self.kept.value() or {"k": value.k})
        yield from super().process_element(value, ctx)


def test_pickled_state_of_a_copied_checkpoint_needs_the_flag(jobs: Jobs) -> None:
    feed(jobs, "aa")
    run(jobs, function=Pickled())
    copy = jobs.directory / "backup" / "job"
    shutil.copytree(jobs.path(), copy)
    (manifest,) = jobs.checkpoints()
    path = copy / "checkpoints" / f"{manifest.name}.json"
    feed(jobs, "a")
    with pytest.raises(ConfigurationError, match="allow_pickled_state"):
        run(jobs, function=Pickled(), start_from=path)
    run(jobs, function=Pickled(), start_from=path, allow_pickled_state=True)
    assert jobs.out("out-count") == counted("aaa")
    run(jobs, function=Pickled())  # its own needs none


def status(jobs: Jobs, name: str = "job") -> Any:
    return JobDirectory.locate(jobs.root, name).status()


def files(directory: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_a_refused_start_changes_nothing(jobs: Jobs) -> None:
    feed(jobs, "aa")
    run(jobs)
    assert status(jobs).state is JobState.FINISHED
    before = files(jobs.root)
    with pytest.raises(IncompatibleStateError):
        run(jobs, ["other"])
    with pytest.raises(CheckpointNotFoundError):
        run(jobs, start_from="chk-99")
    with pytest.raises(CheckpointNotFoundError):
        run(jobs, start_from=jobs.directory / "nowhere")
    assert files(jobs.root) == before
    env = jobs.environment()
    env.enable_checkpointing(1000)
    counts(jobs, "count", Count(), env).sink_to(jobs.sink("typo")).uid("out")
    with pytest.raises(CheckpointNotFoundError):
        env.execute("jbo", bounded=True, start_from=jobs.directory / "nowhere")
    assert not jobs.path("jbo").exists()
    assert files(jobs.root) == before


def test_a_fork_that_writes_where_the_original_does_leaves_no_trace(jobs: Jobs) -> None:
    feed(jobs, "aa")
    run(jobs)
    (newest,) = jobs.checkpoints()
    start = {"start_from": jobs.path() / "checkpoints" / f"{newest.name}.json", "fork": True}
    before = files(jobs.directory)
    env = jobs.env()
    stream = counts(jobs, "count", Count(), env)
    stream.sink_to(jobs.sink("out-fork")).uid("own")
    stream.sink_to(jobs.sink("out-count")).uid("out-0")
    with pytest.raises(ConfigurationError, match=r"out-count belongs to job 'job' in .*/jobs/job"):
        env.execute("fork", bounded=True, **start)
    assert files(jobs.directory) == before
