"""Windows of a changed program: those that are stored are taken over, converted or refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import timed_job
from turnback import (
    StreamExecutionEnvironment,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
    count,
)
from turnback.errors import IncompatibleStateError, JobFailedError
from turnback.functions import ProcessWindowFunction
from turnback.sinks import DiscardSink
from turnback.testing import JobHarness, source
from turnback.windows import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Trigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

GOLDEN = Path(__file__).parents[1] / "integration" / "golden"
SCHEMA = "k string, at bigint"
OUTPUT = "k string, start bigint, stop bigint, told string"
NO_RESTART = {"restart-strategy.type": "none"}
MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


class Gone(ProcessWindowFunction):
    """Tells how many elements a window has, and how many windows of the key are gone."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        gone = context.global_state().get_state(ValueStateDescriptor("gone", int)).value()
        yield key, context.window().start, context.window().end, f"{len(list(elements))} {gone}"

    def clear(self, context: Any) -> None:
        gone = context.global_state().get_state(ValueStateDescriptor("gone", int))
        gone.update((gone.value() or 0) + 1)


MADE: dict[str, Any] = {
    "process": lambda windows: windows.process(Gone(), OUTPUT),
    "reduce": lambda windows: windows.reduce(lambda a, b: b),
    "declared": lambda windows: windows.aggregate(n=count()),
}


def program(
    assigner: WindowAssigner,
    made: str = "process",
    lateness: int = 0,
    trigger: Trigger | None = None,
) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        stamped = source(env, "s", SCHEMA).assign_timestamps_and_watermarks(MONOTONOUS).uid("time")
        windows = stamped.key_by("k").window(assigner).allowed_lateness(lateness)
        if trigger is not None:
            windows = windows.trigger(trigger)
        MADE[made](windows).uid("windows").sink_to(DiscardSink()).uid("out")

    return build


def tumbling(size: int, offset: int = 0) -> WindowAssigner:
    return TumblingEventTimeWindows.of(Time(size), Time(offset))


def sliding(size: int, slide: int, offset: int = 0) -> WindowAssigner:
    return SlidingEventTimeWindows.of(Time(size), Time(slide), Time(offset))


def output(job: JobHarness) -> list[Any]:
    job.checkpoint()
    return [tuple(row) for row in job.output("out")]


@pytest.mark.parametrize(
    ("assigner", "definition"),
    [
        (tumbling(10_000), "tumbling windows of 10 s by event time"),
        (sliding(10_000, 10_000), "tumbling windows of 10 s by event time"),
        (
            tumbling(90_500, -500),
            "tumbling windows of 1 min 30 s 500 ms shifted by 1 min 30 s by event time",
        ),
        (sliding(60_000, 7), "sliding windows of 1 min every 7 ms by event time"),
        (sliding(5, 10, 3), "sliding windows of 5 ms every 10 ms shifted by 3 ms by event time"),
        (TumblingProcessingTimeWindows.of(Time(250)), "tumbling windows of 250 ms by the clock"),
        (
            SlidingProcessingTimeWindows.of(Time(2_500), Time(250)),
            "sliding windows of 2.5 s every 250 ms by the clock",
        ),
        (EventTimeSessionWindows.with_gap(Time(5)), "sessions by event time"),
        (ProcessingTimeSessionWindows.with_dynamic_gap(lambda row: 5), "sessions by the clock"),
        (GlobalWindows.create(), "global windows"),
    ],
)  # fmt: skip
def test_definitions_are_stored_and_so_never_change(
    assigner: WindowAssigner, definition: str
) -> None:
    assert assigner.definition() == definition


CHANGES = {
    "longer": (tumbling(10), tumbling(20)),
    "shorter": (tumbling(10), tumbling(5)),
    "shifted": (tumbling(10), tumbling(10, 3)),
    "the same panes, longer": (sliding(20, 5), sliding(40, 5)),
    "the same panes, shorter": (sliding(20, 5), tumbling(5)),
    "the same panes, overlapping": (tumbling(5), sliding(20, 5)),
}


@pytest.mark.parametrize("made", sorted(MADE))
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_other_windows_are_refused_by_name_before_the_job_starts(
    tmp_path: Path, change: str, made: str
) -> None:
    before, after = CHANGES[change]
    with JobHarness(program(before, made), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 4), ("a", 13))
        job.stop()
        with pytest.raises(IncompatibleStateError) as refused:
            job.start(program(after, made))
        message = str(refused.value)
        assert message.startswith(
            "state 'windows' of operator 'windows' does not match the program"
        )
        assert f"changed from {before.definition()} to {after.definition()}" in message
        assert "another uid" in message
        assert "allow_non_restored_state=['windows']" in message
        job.start(program(before, made))
        job.push("s", ("a", 100))
        assert output(job), "it goes on as it was"


@pytest.mark.parametrize(
    ("made", "allow", "kept_in"),
    [
        ("process", True, "checkpoint"),
        ("process", ["windows"], "checkpoint"),
        ("process", ["windows/windows"], "savepoint"),
        ("reduce", ["windows"], "checkpoint"),
        ("declared", ["windows"], "savepoint"),
    ],
)
def test_other_windows_start_empty_where_that_is_allowed(
    tmp_path: Path, made: str, allow: Any, kept_in: str
) -> None:
    with JobHarness(program(tumbling(10), made), tmp_path) as job:
        job.push("s", ("a", 1), ("b", 2))
        path = job.savepoint() if kept_in == "savepoint" else None
        job.stop()
        job.start(program(tumbling(20), made), start_from=path, allow_non_restored_state=allow)
        job.push("s", ("a", 3), ("a", 4), ("a", 25), ("a", 41))
        rows = output(job)
        assert len(rows) == 2, "nothing of b is left"
        if made == "process":
            assert rows == [("a", 0, 20, "2 None"), ("a", 20, 40, "1 1")]
            assert set(job.state("windows", "window.elements")) == {"a"}
            assert set(job.state("windows", "timers.event")) == {"a"}
        job.stop()
        job.start(program(tumbling(20), made))
        job.push("s", ("a", 61))
        assert len(output(job)) == 3


def test_state_of_the_key_stays_when_windows_start_empty(tmp_path: Path) -> None:
    with JobHarness(program(tumbling(10)), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 12))
        job.stop()
        job.start(program(tumbling(20)), allow_non_restored_state=["windows"])
        job.push("s", ("a", 13), ("a", 20))
        assert output(job) == [("a", 0, 10, "1 None"), ("a", 0, 20, "1 1")]


@pytest.mark.parametrize("made", sorted(MADE))
def test_a_savepoint_without_windows_fits_any(tmp_path: Path, made: str) -> None:
    with JobHarness(program(tumbling(10), made), tmp_path) as job:
        job.push("s")
        path = job.savepoint()
        job.close()
        job.start(program(sliding(20, 5), made), start_from=path)
        job.push("s", ("a", 6), ("a", 50))
        assert len(output(job)) == 4


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (sliding(10, 10), tumbling(10)),
        (sliding(10, 5, -2), sliding(10, 5, 3)),
        (EventTimeSessionWindows.with_gap(Time(5)), EventTimeSessionWindows.with_gap(Time(9))),
        (
            EventTimeSessionWindows.with_gap(Time(5)),
            EventTimeSessionWindows.with_dynamic_gap(lambda row: 9),
        ),
    ],
    ids=["tumbling", "shifted", "gap", "dynamic gap"],
)
@pytest.mark.parametrize("made", sorted(MADE))
def test_windows_that_mean_the_same_go_on(
    tmp_path: Path, made: str, before: WindowAssigner, after: WindowAssigner
) -> None:
    with JobHarness(program(before, made), tmp_path) as job:
        job.push("s", ("a", 3))
        job.restart(program(after, made))
        job.push("s", ("a", 6), ("a", 50))
        first = output(job)[0]
        assert first[-1] in ("2 None", 2, 6), "both elements are in it"


def test_triggers_may_change(tmp_path: Path) -> None:
    def counted(size: int) -> Any:
        def build(env: StreamExecutionEnvironment) -> None:
            keyed = source(env, "s", SCHEMA).key_by("k").window(GlobalWindows.create())
            windows = keyed.trigger(PurgingTrigger.of(CountTrigger.of(size)))
            MADE["process"](windows).uid("windows").sink_to(DiscardSink()).uid("out")

        return build

    with JobHarness(counted(3), tmp_path) as job:
        job.push("s", ("a", 1), ("a", 2))
        job.restart(counted(4))
        job.push("s", ("a", 3), ("a", 4))
        assert [row[-1] for row in output(job)] == ["4 None"]


@pytest.mark.parametrize("lateness", [0, 50])
def test_windows_that_no_trigger_has_fired_are_fired_by_the_new_one(
    tmp_path: Path, lateness: int
) -> None:
    counted = program(tumbling(10), lateness=lateness, trigger=CountTrigger.of(10))
    with JobHarness(counted, tmp_path) as job:
        job.push("s", ("a", 1), ("a", 2), ("a", 21))
        job.restart(program(tumbling(10), lateness=lateness))
        job.push("s", ("a", 31), ("a", 200))
        ends = [row[1:3] for row in output(job)]
        assert ends == [(20, 30), (30, 40)]
        job.push("s", ("a", 400))
        assert [row[1:3] for row in output(job)] == [*ends, (200, 210)]


def test_savepoints_without_a_definition_are_checked_pane_by_pane(tmp_path: Path) -> None:
    """Of older versions, which did not store it."""
    shutil.copytree(GOLDEN / "panes-1", tmp_path / "savepoint")

    def other(env: StreamExecutionEnvironment) -> None:
        timed = source(env, "s", timed_job.SCHEMA).assign_timestamps_and_watermarks(MONOTONOUS)
        keyed = timed.uid("time").key_by("k")
        made = keyed.window(tumbling(5)).aggregate(timed_job.Sum(), None, int, int)
        made.uid("tumbling").sink_to(DiscardSink()).uid("tumbling-out")

    with JobHarness(other, tmp_path / "job", configuration=NO_RESTART) as job:
        timed_job.push_first(job)
        job.stop()
        job.start(start_from=tmp_path / "savepoint", allow_non_restored_state=True)
        with pytest.raises(JobFailedError, match=r"(?s)'tumbling'.*window.*cannot change.*--drain"):
            job.push("s", ("k/1", 1000, 1))


KINDS = {
    "tumbling": tumbling(100),
    "sliding": sliding(100, 50),
    "sessions": EventTimeSessionWindows.with_gap(Time(100)),
}
LATENESS = [(0, 500), (500, 0), (500, 1000), (1000, 500)]


@pytest.mark.parametrize(("before", "after"), LATENESS)
@pytest.mark.parametrize("made", sorted(MADE))
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_nothing_is_left_of_windows_after_another_lateness(
    tmp_path: Path, kind: str, made: str, before: int, after: int
) -> None:
    with JobHarness(program(KINDS[kind], made, before), tmp_path) as job:
        # One window of the key is over by now, and one is open.
        job.push("s", ("a", 0), ("a", 10), ("b", 520), ("a", 520))
        job.restart(program(KINDS[kind], made, after))
        job.push("s", ("b", 1040), ("a", 521), ("a", 522))
        job.push("s", ("b", 50_000))
        job.push("s", ("b", 90_000))
        assert set(job.state("windows", "windows")) == {"b"}
        if made == "process":
            assert set(job.state("windows", "window.elements")) == {"b"}
            assert set(job.state("windows", "window.alarms")) == {"b"}
            assert set(job.state("windows", "timers.event")) == {"b"}
            gone = {"tumbling": (2, 3), "sliding": (4, 6), "sessions": (2, 3)}[kind]
            told = job.state("windows", "window.global")
            assert [told[key]["gone"] for key in "ab"] == [bytes([n]) for n in gone], "once each"


@pytest.mark.parametrize(("before", "after"), LATENESS)
def test_windows_take_elements_for_as_long_as_they_are_told_to_now(
    tmp_path: Path, before: int, after: int
) -> None:
    with JobHarness(program(tumbling(100), lateness=before), tmp_path) as job:
        job.push("s", ("a", 0), ("a", 10), ("b", 520), ("a", 520))
        job.restart(program(tumbling(100), lateness=after))
        job.push("s", ("b", 1040), ("a", 521), ("a", 11))
        told = [(row[1], row[3].split()[0]) for row in output(job) if row[0] == "a"]
    late = [(500, "2")] if after else []
    if after == 1000:
        # Without any lateness the window was gone before the program changed.
        late.append((0, "3" if before else "1"))
    assert told == [(0, "2"), (500, "1"), *late]


def test_nothing_is_left_of_windows_of_older_versions(tmp_path: Path) -> None:
    """Their timers did not tell which windows they were for, nor were purged windows kept."""
    shutil.copytree(GOLDEN / "windows-1", tmp_path / "savepoint")
    build, _ = timed_job.PROGRAMS["windows"]
    with JobHarness(build, tmp_path / "job") as job:
        timed_job.push_first(job)
        job.stop()
        job.start(start_from=tmp_path / "savepoint")
        job.push("s", *timed_job.elements(range(40, 60)))
        job.push("s", ("new", 10_000, 1))
        job.push("s", ("new", 20_000, 2))
        for uid in ("purged", "overlapping"):
            for name in ("windows", "window.elements", "window.state", "window.alarms"):
                assert set(job.state(uid, name)) <= {"new"}, (uid, name)
            assert set(job.state(uid, "timers.event")) == {"new"}
        assert set(job.state("purged", "window.triggers")) <= {"new"}


KEPT_OR_FOLDED: dict[str, Any] = {
    "kept": lambda windows: windows.process(Sized(), "bigint"),
    "folded": lambda windows: windows.reduce(lambda a, b: a + b),
}


class Sized(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterator[Any]:
        yield len(list(elements))


def of_numbers(made: str) -> Any:
    """Sessions of numbers; what is stored of each is a number as well, whatever it means."""

    def build(env: StreamExecutionEnvironment) -> None:
        stamped = source(env, "s", "at bigint").assign_timestamps_and_watermarks(MONOTONOUS)
        numbers = stamped.uid("time").map(lambda row: row.at, "bigint").uid("numbers")
        keyed = numbers.key_by(lambda number: 0, "int")
        sessions = keyed.window(EventTimeSessionWindows.with_gap(Time(5)))
        KEPT_OR_FOLDED[made](sessions).uid("windows").sink_to(DiscardSink()).uid("out")

    return build


@pytest.mark.parametrize(("before", "after"), [("kept", "folded"), ("folded", "kept")])
def test_elements_of_windows_are_not_taken_for_one_value_of_them(
    tmp_path: Path, before: str, after: str
) -> None:
    with JobHarness(of_numbers(before), tmp_path, configuration=NO_RESTART) as job:
        job.push("s", (10,), (12,))
        savepoint = job.savepoint()
        job.stop()
        with pytest.raises(IncompatibleStateError, match="windows"):
            job.start(of_numbers(after), start_from=savepoint)
        allowed = {"start_from": savepoint, "allow_non_restored_state": ["windows"]}
        job.start(of_numbers(after), **allowed)
        job.push("s", (13,), (100,))
        assert output_numbers(job) == [13 if after == "folded" else 1]


def output_numbers(job: JobHarness) -> list[int]:
    job.checkpoint()
    return list(job.output("out"))
