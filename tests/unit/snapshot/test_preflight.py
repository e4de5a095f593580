"""The preflight: what would become of a snapshot in a program?"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

import pytest
from msgspec.structs import replace as struct_replace

from fake_job import described
from local_engine import collected, environment, source
from turnback import (
    KeyedProcessFunction,
    ListStateDescriptor,
    Time,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from turnback.checkpoint.manifest import OperatorInfo, SourcePosition
from turnback.errors import ConfigurationError, SourceError
from turnback.functions import ProcessWindowFunction
from turnback.snapshot.matching import program_of
from turnback.snapshot.metadata import SavedState
from turnback.snapshot.preflight import Subject, Verdict, check
from turnback.state.schema import KeySchema, StateSchema
from turnback.windows import TumblingEventTimeWindows

KEY = KeySchema(("string",), True)


class Stats(NamedTuple):
    n: int
    paid: int = 0


class Declared(KeyedProcessFunction):
    stats = ValueStateDescriptor("stats", Stats)
    seen = ListStateDescriptor("seen", str)

    def process_element(self, value, ctx):
        yield value


class Opened(KeyedProcessFunction):
    kept = ValueStateDescriptor("kept", int)

    def open(self, runtime_context):
        self.more = runtime_context.get_state(ValueStateDescriptor("more", int))

    def process_element(self, value, ctx):
        yield value


def stored(uid, name, value="long", kind="value", rows=None, key=KEY):
    schema = StateSchema(uid=uid, name=name, kind=kind, key=key, value=value)
    return SavedState(schema, rows=rows)


STATS = {"row": [["n", "long"], ["paid", "long"]]}
FITTING = (
    stored("declared", "stats", STATS, rows=12),
    stored("declared", "seen", "string", "list"),
    stored("opened", "kept"),
    stored("summed", "reduced", {"row": [["k", "string"], ["n", "long"]]}),
)


def snapshot(*states, sources=("s",), max_parallelism=128, parallelism=2):
    uids = ("declared", "opened", "summed", "plain")
    operators = tuple(OperatorInfo(uid, uid, "keyed_process", parallelism) for uid in uids)
    return described(states, operators, sources, groups=max_parallelism)


@pytest.fixture(scope="module")
def plan():
    env = environment(2)
    keyed = source(env, "s", "k string, n bigint").key_by("k")
    for uid, function in (("declared", Declared()), ("opened", Opened())):
        collected(keyed.process(function, "k string, n bigint").uid(uid), f"out-{uid}")
    summed = keyed.reduce(lambda a, b: a).uid("summed")
    collected(summed.filter(lambda row: True).uid("plain"), "out-summed")
    return env.plan()


def verdicts(report):
    return {(r.uid, r.state): r.verdict for r in report.rows if r.subject is Subject.STATE}


def row(report, *id):
    (found,) = (r for r in report.rows if (r.uid, r.state) == id)
    return found


def test_what_a_program_has(plan):
    program = program_of(plan)
    assert program.states == {
        "declared": {"stats", "seen"},
        "opened": {"kept"},
        "summed": {"reduced"},
    }
    assert program.open == {"opened"}
    assert program.sources == {"s"}
    assert program.others == {"plain", "out-declared", "out-opened", "out-summed"}


def test_everything_fits(plan):
    report = check(plan, snapshot(*FITTING))
    assert report.ok
    assert set(verdicts(report).values()) == {Verdict.RESTORED}
    assert len(report.rows) == 5
    assert row(report, "declared", "stats").reason == "12 rows"
    assert row(report, "s", "").verdict is Verdict.RESTORED


def test_everything_is_new(plan):
    report = check(plan, snapshot(sources=()))
    assert report.ok
    assert {r.verdict for r in report.rows} == {Verdict.NEW}
    assert row(report, "s", "").reason == "starts at its initial position"


def test_evolved_states(plan):
    report = check(
        plan,
        snapshot(
            stored("declared", "stats", {"row": [["n", "int"]]}),
            stored("declared", "seen", "long", "list"),
            stored("opened", "kept", key=KeySchema(("long",), True)),
            stored("summed", "reduced", {"row": [["n", "long"], ["k", "string"]]}),
        ),
    )
    assert verdicts(report) == {
        ("declared", "stats"): Verdict.MIGRATED,
        ("declared", "seen"): Verdict.INCOMPATIBLE,
        ("opened", "kept"): Verdict.INCOMPATIBLE,
        ("summed", "reduced"): Verdict.MIGRATED,
    }
    assert not report.ok
    migrated = row(report, "declared", "stats")
    assert migrated.reason == "'n' widened from int to bigint; field 'paid' added with default 0"
    assert not migrated.blocking
    assert "bigint cannot become string" in row(report, "declared", "seen").reason
    assert "keyed by" in row(report, "opened", "kept").reason


def test_states_asked_for_in_open_are_unknown(plan):
    report = check(plan, snapshot(*FITTING, stored("opened", "more")))
    unknown = row(report, "opened", "more")
    assert unknown.verdict is Verdict.UNKNOWN
    assert "Opened may request it in open()" in unknown.reason
    assert "class attribute" in unknown.reason
    assert report.ok
    assert report.of(Verdict.UNKNOWN) == (unknown,)


def test_unclaimed_states_block_unless_allowed(plan):
    states = (
        *FITTING,
        stored("declard", "x", rows=5),
        stored("declared", "stat"),
        stored("plain", "x"),
    )
    report = check(plan, snapshot(*states))
    assert not report.ok
    assert [r.uid for r in report.rows if r.blocking] == ["declard", "declared", "plain"]
    assert row(report, "declard", "x").reason == (
        "no operator has this uid (renamed to 'declared'?); rename it, or allow 'declard/x' to be "
        "dropped (5 rows)"
    )
    assert "operator 'declared' has no such state" in row(report, "declared", "stat").reason
    assert "has neither a key nor operator state" in row(report, "plain", "x").reason
    report = check(plan, snapshot(*states), allow=["declard", "declared/stat", "plain"])
    assert report.ok
    assert row(report, "declard", "x").verdict is Verdict.UNCLAIMED
    assert row(report, "declard", "x").reason == "dropped, as allowed (5 rows)"


def test_renames(plan):
    states = (stored("d", "stats", STATS, rows=3), stored("o", "kept"), stored("o", "more"))
    renames = {"d": "declared", "o/kept": "opened/kept", "o/more": "opened/more", "s0": "s"}
    report = check(plan, snapshot(*states, sources=("s0",)), renames)
    assert report.ok
    assert row(report, "declared", "stats").reason == "from 'd/stats'; 3 rows"
    assert row(report, "opened", "kept").verdict is Verdict.RESTORED
    assert row(report, "opened", "more").reason.startswith("from 'o/more'; Opened may")
    assert row(report, "s", "").reason == "from 's0'"
    with pytest.raises(ConfigurationError, match="did you mean 'declared'"):
        check(plan, snapshot(*states), {"d": "declred"})


def test_sources_come_and_go(plan):
    report = check(plan, snapshot(*FITTING, sources=("t",)))
    assert row(report, "s", "").verdict is Verdict.NEW
    lost = row(report, "t", "")
    assert (lost.subject, lost.verdict) == (Subject.SOURCE, Verdict.UNCLAIMED)
    assert "rename" in lost.reason
    assert report.ok


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, Verdict.RESTORED),
        (ConfigurationError("it is gone"), Verdict.INCOMPATIBLE),
        (SourceError("no answer"), Verdict.UNKNOWN),
    ],
)
def test_sources_are_asked_whether_they_still_have_what_comes_next(plan, error, verdict):
    asked = []

    def ask(name, offset):
        asked.append((name, offset))
        if error is not None:
            raise error

    (source,) = plan.sources
    there = snapshot(*FITTING)
    report = check(replace(plan, sources=(replace(source, check=ask),)), there)
    assert asked == [("source 's'", there.sources["s"].offset)]
    assert (row(report, "s", "").verdict, report.ok) == (
        verdict,
        verdict is not Verdict.INCOMPATIBLE,
    )
    assert row(report, "s", "").reason == str(error or "")


class Streams:
    """A check that knows which streams there are."""

    def __init__(self, identity):
        self.identity = identity

    def __call__(self, name, offset):
        return ["partition 3 came since"]

    def check_identity(self, name, identity):
        if identity != self.identity:
            raise ConfigurationError(f"{name} was made anew")


@pytest.mark.parametrize(
    ("before", "now", "verdict", "reason"),
    [
        ("a", "a", Verdict.RESTORED, "partition 3 came since"),
        ("a", "b", Verdict.INCOMPATIBLE, "source 's' was made anew"),
        (None, "b", Verdict.RESTORED, "partition 3 came since"),  # of an older version
    ],
)
def test_sources_that_changed_are_told(plan, before, now, verdict, reason):
    (source,) = plan.sources
    there = snapshot(*FITTING)
    position = SourcePosition("{}", identity=before)
    there = replace(there, document=struct_replace(there.document, sources={"s": position}))
    report = check(replace(plan, sources=(replace(source, check=Streams(now)),)), there)
    assert (row(report, "s", "").verdict, row(report, "s", "").reason) == (verdict, reason)
    assert report.ok is (verdict is Verdict.RESTORED)


def test_another_number_of_key_groups(plan):
    report = check(plan, snapshot(*FITTING, max_parallelism=64))
    (groups,) = (r for r in report.rows if r.subject is Subject.KEY_GROUPS)
    assert groups.verdict is Verdict.INCOMPATIBLE
    assert "set_max_parallelism(64)" in groups.reason
    assert "offline for 128" in groups.reason
    assert not report.ok


def test_another_parallelism_is_only_told(plan):
    report = check(plan, snapshot(*FITTING, parallelism=5))
    told = report.of(Verdict.INFO)
    assert [r.uid for r in told] == ["declared", "opened", "summed"]
    assert told[0].reason == "parallelism changes from 5 to 2"
    assert report.ok


def test_the_report_as_text(plan):
    text = check(plan, snapshot(*FITTING[:3], stored("gone", "x"))).render()
    lines = text.splitlines()
    assert lines[0] == "chk-7 of job 'clicks'"
    assert lines[2].split() == ["VERDICT", "WHAT", "UID", "STATE", "REASON"]
    assert lines[3] == "restored   state   declared  stats    12 rows"
    assert lines[4] == "restored   state   declared  seen"
    assert lines[-1] == "not ok: 4 restored, 1 new, 1 unclaimed"
    nothing = replace(check(plan, snapshot()), rows=())
    assert nothing.render().endswith("ok: nothing to restore")


def test_the_report_as_json(plan):
    report = check(plan, snapshot(*FITTING, stored("gone", "x")))
    found = json.loads(json.dumps(report.to_dict()))
    assert (found["snapshot"], found["job"], found["ok"]) == ("chk-7", "clicks", False)
    assert found["rows"][0] == {
        "what": "state",
        "uid": "declared",
        "state": "stats",
        "verdict": "restored",
        "reason": "12 rows",
        "blocking": False,
    }
    assert [r["uid"] for r in found["rows"] if r["blocking"]] == ["gone"]
    assert found["rows"][-1]["state"] is None


def test_what_would_be_lost_is_told_before(plan):
    stored = replace(snapshot(*FITTING), promised={"old-out": (b"t",)})
    report = check(plan, stored, streams={"s": 2})
    assert not report.ok
    rows = {(row.subject, row.uid): row for row in report.rows if row.blocking}
    assert "reads 2 streams, but 1 in chk-7" in rows[Subject.SOURCE, "s"].reason
    assert "turnback transactions commit clicks" in rows[Subject.SINK, "old-out"].reason
    report = check(plan, stored, allow=["s", "old-out"], streams={"s": 2})
    assert report.ok
    assert {row.verdict for row in report.rows if row.uid in ("s", "old-out")} == {
        Verdict.NEW,
        Verdict.UNCLAIMED,
    }


WINDOWS = StateSchema(
    uid="windows", name="windows", kind="windowed", key=KEY, value="long",
    sub={"row": [["start", "long"], ["end", "long"]]},
)  # fmt: skip


def windowed(size):
    env = environment(2)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("n")
    stamped = source(env, "s", "k string, n bigint").assign_timestamps_and_watermarks(strategy)
    windows = stamped.uid("time").key_by("k").window(TumblingEventTimeWindows.of(Time(size)))
    collected(windows.process(First(), "k string, n bigint").uid("windows"), "out")
    return env.plan()


class First(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield next(iter(elements))


@pytest.mark.parametrize(
    ("size", "rows", "allow", "verdict"),
    [
        (10, 3, False, Verdict.RESTORED),
        (20, 3, False, Verdict.INCOMPATIBLE),
        (20, 0, False, Verdict.RESTORED),
        (20, 3, ["windows"], Verdict.NEW),
        (20, None, True, Verdict.NEW),
    ],
)
def test_windows_of_another_definition(size, rows, allow, verdict):
    definition = TumblingEventTimeWindows.of(Time(10)).definition()
    elements = stored("windows", "window.elements", rows=rows)
    states = SavedState(struct_replace(WINDOWS, definition=definition), rows=rows), elements
    operators = (OperatorInfo("windows", "First", "keyed_process", 2),)
    report = check(windowed(size), described(states, operators, ("s",)), allow=allow)
    assert report.ok == (verdict is not Verdict.INCOMPATIBLE)
    found = [r for r in report.rows if r.state == "windows"]
    assert found[0].verdict is verdict
    if verdict is Verdict.INCOMPATIBLE:
        assert "changed from tumbling windows of 10 ms by event time to tumb" in found[0].reason
    if verdict is Verdict.NEW:
        assert "its definition has changed" in found[0].reason
        dropped = {r.state for r in report.rows if r.verdict is Verdict.UNCLAIMED}
        assert dropped == {"windows", "window.elements"}, "what belongs to windows goes with them"


@pytest.mark.parametrize(
    ("rows", "verdict", "ok"),
    [(3, Verdict.UNCLAIMED, False), (None, Verdict.UNKNOWN, True), (0, None, True)],
    ids=["some-wait", "nobody-knows", "none-waits"],
)
def test_elements_that_wait_for_a_stream_and_have_no_place(plan, rows, verdict, ok):
    """They were read already; how many there are in a checkpoint is known when it is read."""
    held = stored("declared", "timers.ahead2", kind="waiting", rows=rows)
    report = check(plan, snapshot(*FITTING, held), allow=True)
    told = [row for row in report.rows if row.state == "timers.ahead2"]
    assert [row.verdict for row in told] == ([] if verdict is None else [verdict])
    assert all("wait for a slower stream" in row.reason for row in told)
    assert report.ok is ok
