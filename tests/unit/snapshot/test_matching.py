"""Which state of a snapshot goes to which state of a program?"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from fake_job import described
from turnback.checkpoint.manifest import Manifest, OperatorInfo, SourcePosition
from turnback.errors import ConfigurationError, IncompatibleStateError
from turnback.plan.plan import Rank
from turnback.snapshot.matching import Program, match_program, written_name
from turnback.snapshot.metadata import SavedState, StatePart
from turnback.snapshot.preflight import refuse_data_loss
from turnback.snapshot.snapshot import Snapshot
from turnback.state.files import StorageRef
from turnback.state.schema import KeySchema, StateSchema


def schema(uid, name):
    key = KeySchema(("string",), True)
    return StateSchema(uid=uid, name=name, kind="value", key=key, value="long")


def snapshot(*ids, sources=(), operators=()):
    return described(
        [saved(id, rows=1200, length=34_567) for id in ids],
        [OperatorInfo(uid, f"The {uid}", "map", 2) for uid in operators],
        sources,
    )


def saved(id, rows, length):
    return SavedState(schema(*id), rows, (StatePart("state/x", length, "", rows, 0, 0),))


def program(*ids, open=(), sources=(), others=()):
    states = {uid: frozenset(n for u, n in ids if u == uid) for uid, _ in ids}
    states.update({uid: states.get(uid, frozenset()) for uid in open})
    return Program(states, frozenset(open), frozenset(sources), frozenset(others))


def pairs(claims):
    return {id: state.id for id, state in claims.states.items()}


def ids(states):
    return [state.id for state in states]


A_X, A_Y, B_X, B_Y = ("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")


def test_states_are_found_by_uid_and_name():
    found = match_program(snapshot(A_X, A_Y, B_X), program(A_X, A_Y, ("new", "z")))
    assert pairs(found) == {A_X: A_X, A_Y: A_Y}
    assert ids(found.unclaimed) == [B_X]
    assert not found.undecided
    with pytest.raises(IncompatibleStateError):
        refuse_data_loss(snapshot(A_X, A_Y, B_X), found)


def test_nothing_to_refuse():
    refuse_data_loss(snapshot(A_X), match_program(snapshot(A_X), program(A_X)))


def test_what_is_asked_for_in_open_is_undecided():
    found = match_program(snapshot(A_X, A_Y), program(A_X, open="a"))
    assert pairs(found) == {A_X: A_X, A_Y: A_Y}
    assert found.undecided == {A_Y}
    assert not found.unclaimed


def test_an_operator_without_key_claims_no_state():
    assert ids(match_program(snapshot(A_X), program(others="a")).unclaimed) == [A_X]


@pytest.mark.parametrize(
    ("renames", "wanted"),
    [
        ({"a": "b"}, {B_X: A_X, B_Y: A_Y}),
        ({"a/x": "b/y", "a/y": "b/x"}, {B_Y: A_X, B_X: A_Y}),
        ({A_X: B_Y, A_Y: "b/x"}, {B_Y: A_X, B_X: A_Y}),
        ({"a": "b", A_X: ("c", "z")}, {("c", "z"): A_X, B_Y: A_Y}),
    ],
)
def test_renames(renames, wanted):
    found = match_program(snapshot(A_X, A_Y), program(B_X, B_Y, ("c", "z")), renames)
    assert pairs(found) == wanted
    assert not found.unclaimed


def test_names_can_be_swapped():
    assert pairs(match_program(snapshot(A_X, B_X), program(A_X, B_X), {"a": "b", "b": "a"})) == {
        A_X: B_X,
        B_X: A_X,
    }


def test_a_rename_of_a_state_moves_no_other():
    found = match_program(snapshot(A_X, A_Y), program(A_X, A_Y, ("a", "z")), {"a/x": "a/z"})
    assert pairs(found) == {("a", "z"): A_X, A_Y: A_Y}


def test_a_rename_into_a_function_that_asks_in_open():
    found = match_program(snapshot(A_X), program(open="b"), {"a/x": "b/anything"})
    assert pairs(found) == {("b", "anything"): A_X}
    assert found.undecided == {("b", "anything")}


def test_renames_move_sources_too():
    found = match_program(snapshot(sources=["s", "t"]), program(sources=["s2", "u"]), {"s": "s2"})
    assert found.sources == {"s2": "s"}
    assert found.lost_sources == ("t",)
    assert found.operators == {"s2": "s"}


SLASHES = snapshot(("a", "b/c"), ("a/b", "c"), ("a/b", "d"))


def test_names_with_slashes():
    target = program(("n/m", "x/y"), ("a/b", "c"), ("a", "b/c"), ("a/b", "d"))
    found = match_program(SLASHES, target, {"a/b/d": "n/m/x/y"})
    assert pairs(found)["n/m", "x/y"] == ("a/b", "d")
    with pytest.raises(ConfigurationError, match=r"\('a', 'b/c'\) or \('a/b', 'c'\); write .*pair"):
        match_program(SLASHES, target, {"a/b/c": "n/m/x/y"})
    found = match_program(SLASHES, target, {("a", "b/c"): "n/m/x/y"})
    assert pairs(found)["n/m", "x/y"] == ("a", "b/c")
    both = snapshot(("a", "b"), ("a/b", "c"))
    with pytest.raises(ConfigurationError, match=r"'a/b' can mean 'a/b' or \('a', 'b'\)"):
        match_program(both, target, allow=["a/b"])
    assert written_name(("a", "b/c")) == "('a', 'b/c')"
    assert written_name(("a", "b")) == "'a/b'"


@pytest.mark.parametrize(
    ("renames", "message"),
    [
        ({"clik": "b"}, r"renames: chk-7 has no operator or state 'clik'; did you mean 'click'\?"),
        ({"click/cuont": "b/x"}, r"chk-7 has no .*'click/cuont'; did you mean 'click/count'\?"),
        ({("click", "z"): "b/x"}, r"chk-7 has no .*did you mean 'click'"),
        ({"qqqq": "b"}, r"available: 'click', 'click/count'"),
        ({"click": "sesions"}, r"the program has no operator 'sesions'; did you mean 'sessions'\?"),
        ({"click": "b/x"}, r"renames\['click'\]: the program has no operator 'b/x'"),
        ({"click/count": "b"}, r"the program has no state 'b'; "),
        ({"click/count": "sessions/yyyyy"}, r"has no state 'sessions/yyyyy'; did you mean"),
        ({"click": "b", "click/count": 5}, r"expected 'uid'.* got 5"),
        ({"click/count": "b/x", ("click", "count"): "b/x"}, "'click/count' twice"),
    ],
)
def test_wrong_renames(renames, message):
    with pytest.raises(ConfigurationError, match=message):
        match_program(snapshot(("click", "count")), program(B_X, ("sessions", "x")), renames)


@pytest.mark.parametrize(
    "renames", [{"a": "b"}, {"a/x": "b/x"}, {"a/x": "c/z", "b/x": "c/z"}, {"a": "c", "b": "c"}]
)
def test_two_states_do_not_become_one(renames):
    with pytest.raises(ConfigurationError, match="would start from 'a/x' and 'b/x'"):
        match_program(snapshot(A_X, B_X), program(B_X, ("c", "z"), ("c", "x")), renames)


def test_two_sources_do_not_become_one():
    with pytest.raises(ConfigurationError, match="source 't' would start from 's' and 't'"):
        match_program(snapshot(sources=["s", "t"]), program(sources=["t"]), {"s": "t"})


def test_a_collision_that_nothing_takes_over_is_none():
    found = match_program(snapshot(A_X, A_Y, B_X), program(B_Y), {"a": "b"})
    assert pairs(found) == {B_Y: A_Y}
    assert ids(found.unclaimed) == [A_X, B_X]


@pytest.mark.parametrize(
    ("allow", "left"),
    [
        (False, [A_X, A_Y, B_X]),
        (True, []),
        ((), [A_X, A_Y, B_X]),
        (["a"], [B_X]),
        ("a", [B_X]),
        ({"a/y", "b"}, [A_X]),
        ([("a", "x"), "b/x"], [A_Y]),
    ],
)
def test_what_may_be_dropped(allow, left):
    found = match_program(snapshot(A_X, A_Y, B_X), program(), allow=allow)
    assert ids(found.unclaimed) == left
    assert sorted(ids(found.unclaimed) + ids(found.dropped)) == [A_X, A_Y, B_X]


def test_what_is_claimed_is_not_dropped():
    found = match_program(snapshot(A_X), program(A_X), allow=["a"])
    assert pairs(found) == {A_X: A_X}
    assert not found.dropped


def test_an_allowance_that_allows_nothing():
    stored = snapshot(("click", "count"), operators=["click", "stateless"])
    wanted = "allow_non_restored_state: chk-7 has no .*'{}'; did you mean '{}'"
    for given, near in (("clik", "click"), ("click/cont", "click/count")):
        with pytest.raises(ConfigurationError, match=wanted.format(given, near)):
            match_program(stored, program(), allow=[given])
    with pytest.raises(ConfigurationError, match="'stateless'"):
        match_program(stored, program(), allow=["stateless"])


def test_the_refusal_names_everything():
    stored = snapshot(A_X, A_Y, B_X, ("c/d", "z"), operators=["a", "b"])
    found = match_program(stored, program(A_X))
    with pytest.raises(IncompatibleStateError) as caught:
        refuse_data_loss(stored, found)
    text = str(caught.value)
    assert text.startswith(
        "chk-7 of job 'clicks' has state that no operator of the program claims:"
    )
    assert "\n  state 'y' of operator 'a' (The a): 1,200 rows, 33.8 KiB\n" in text
    assert "\n  state 'z' of operator 'c/d': 1,200 rows" in text
    assert "'x' of operator 'a'" not in text
    assert "renames={'a/y': ...}" in text
    assert "allow_non_restored_state=True" in text
    names = re.search(r"allow_non_restored_state=(\[.*\])", text)[1]
    assert names == "['a/y', 'b', 'c/d']"
    again = match_program(stored, program(A_X), allow=["a/y", "b", "c/d"])
    refuse_data_loss(stored, again)
    assert len(again.dropped) == 3


def test_sizes_that_are_not_known_are_not_told():
    stored = described([SavedState(schema("a", "x"))])
    with pytest.raises(IncompatibleStateError, match=r"state 'x' of operator 'a'\n"):
        refuse_data_loss(stored, match_program(stored, program()))
    for length, told in ((5, "5 bytes"), (1024, "1.0 KiB"), (5 << 40, "5.0 TiB")):
        stored = described([saved(A_X, 3, length)])
        with pytest.raises(IncompatibleStateError, match=rf"operator 'a': 3 rows, {told}\n"):
            refuse_data_loss(stored, match_program(stored, program()))


def test_a_checkpoint_as_a_snapshot():
    sources = {leaf: SourcePosition(None) for leaf in ("s", "two#0", "two#1", "odd#1")}
    operators = tuple(OperatorInfo(uid, uid, "source", 1) for uid in ("s", "two", "odd#1"))
    manifest = Manifest(
        job="j", job_id="id", number=7, attempt=1, epoch=1, created_ms=0, trigger="final",
        parent=None, max_parallelism=64, sources=sources, state=(), schemas=(schema("a", "x"),),
        operators=operators, transactions={}, watermarks={},
    )  # fmt: skip
    promised = {"gone": (b"t",), "empty": ()}
    info = Snapshot(manifest, StorageRef("memory://jobs/j"), promised)
    assert (info.name, info.job, info.max_parallelism) == ("chk-7", "j", 64)
    assert info.streams == {"s": 1, "two": 2, "odd#1": 1}
    assert info.promising_sinks == ["gone"]
    assert ids(info.states) == [A_X]
    assert info.operators == operators


def test_a_source_that_reads_another_number_of_streams():
    stored = described(sources=("s", "t#0", "t#1"))
    now = Program({}, sources=frozenset("su"), streams={"s": 3, "u": 2})
    found = match_program(stored, now, {"t": "u"})
    assert found.changed_sources == {"s": (1, 3)}
    with pytest.raises(IncompatibleStateError) as caught:
        refuse_data_loss(stored, found)
    assert "source 's' reads 3 streams, but 1 in chk-7 of job 'clicks'" in str(caught.value)
    assert "allow_non_restored_state=['s']" in str(caught.value)
    for allow in (True, ["s"]):
        allowed = match_program(stored, now, {"t": "u"}, allow)
        refuse_data_loss(stored, allowed)
        assert allowed.rewound_sources == ("s",)


def test_promised_output_of_a_sink_that_is_gone():
    operators = tuple(OperatorInfo(uid, uid, "sink", 1) for uid in ("kept", "gone", "old"))
    promised = dict.fromkeys(("kept", "gone", "old"), (b"t",))
    stored = described(operators=operators, promised=promised)
    now = Program({}, others=frozenset(("kept", "new")), sinks=frozenset(("kept", "new")))
    found = match_program(stored, now, {"old": "new"})
    assert found.sinks == {"kept": "kept", "old": "new"}
    assert found.unclaimed_sinks == ("gone",)
    with pytest.raises(IncompatibleStateError) as caught:
        refuse_data_loss(stored, found)
    for part in ("'gone'", "renames={'gone': ...}", "turnback transactions commit clicks"):
        assert part in str(caught.value)
    allowed = match_program(stored, now, {"old": "new"}, ["gone"])
    refuse_data_loss(stored, allowed)
    assert allowed.dropped_sinks == ("gone",)


# -- elements that wait for slower streams

ONE, TWO = ("op", "ahead.input1"), ("op", "ahead.input2")
OLD = [("op", "timers.ahead"), ("op", "timers.ahead2"), ("op", "timers.ahead3")]


def of_streams(*ranks, states=(ONE, TWO)):
    """A program with one operator that processes elements in the order of time."""
    given = program(*states, others={strategy for _, strategy in ranks})
    return replace(given, ranks={"op": tuple(Rank(*rank) for rank in ranks)})


def waiting(claims):
    return {
        id: [(each.state.id[1], each.strategy) for each in some]
        for id, some in claims.waiting.items()
    }


def test_elements_that_wait_stay_with_their_input_whatever_comes_and_goes():
    stored = snapshot(ONE, TWO, operators=["op", "ta", "tb"])
    for ranks in ([(0, "ta"), (0, "tc"), (1, "tb")], [(0, "tc"), (1, "tb")]):
        found = match_program(stored, of_streams(*ranks), allow=True)
        assert pairs(found) == {ONE: ONE, TWO: TWO}
        assert (found.waiting, found.stranded) == ({}, ())


def test_elements_that_wait_follow_the_names_of_strategies():
    stored = snapshot(ONE, TWO, operators=["op", "ta", "tb"])
    found = match_program(stored, of_streams((0, "t1"), (1, "tb")), {"ta": "t1"})
    assert waiting(found) == {ONE: [("ahead.input1", None)], TWO: [("ahead.input2", None)]}


def test_elements_that_an_older_version_let_wait_are_known_by_their_position():
    stored = snapshot(*OLD, operators=["op", "ta", "tb", "tz"])
    found = match_program(stored, of_streams((0, "ta"), (0, "tz"), (1, "tb")))
    assert waiting(found) == {
        ONE: [("timers.ahead", "ta"), ("timers.ahead2", "tz")],
        TWO: [("timers.ahead3", "tb")],
    }
    renamed = match_program(
        stored, of_streams((0, "a"), (0, "tz"), (1, "tb")), {"tz": "a", "ta": "tz"}
    )
    assert waiting(renamed) == {
        ONE: [("timers.ahead", "tz"), ("timers.ahead2", "a")],
        TWO: [("timers.ahead3", "tb")],
    }
    refuse_data_loss(stored, found)
    more = match_program(stored, of_streams((0, "new"), (0, "ta"), (0, "tz"), (1, "tb")))
    assert waiting(more) == waiting(found), "what is new has let nothing wait"


@pytest.mark.parametrize(
    ("stored", "now"),
    [
        (OLD[:2], of_streams((0, "op"), (0, "ta"), (1, "tb"))),
        (OLD[:2], of_streams((0, "ta"), (1, "new"))),
        (OLD[:2], of_streams((0, "ta"), states=[ONE])),
        ([ONE, TWO], of_streams(states=[("op", "x")])),
    ],
    ids=["known-elsewhere", "another-strategy", "stream-removed", "no-order"],
)
def test_elements_that_wait_and_belong_nowhere_are_never_dropped_unasked(stored, now):
    held = snapshot(*stored, operators=["op", "ta", "tb"])
    for allow in (False, True, ["op"]):
        found = match_program(held, now, allow=allow)
        assert ids(found.stranded) == stored
        with pytest.raises(
            IncompatibleStateError, match=r"'op'.*wait for a slower stream.*--drain"
        ):
            refuse_data_loss(held, found)
    found = match_program(held, now, allow=["/".join(id) for id in stored])
    assert (found.stranded, ids(found.dropped)) == ((), stored)
    refuse_data_loss(held, found)


def test_no_elements_that_wait_are_in_nobodys_way():
    held = described([saved(id, rows=0, length=0) for id in OLD[:2]], [], [])
    refuse_data_loss(held, match_program(held, of_streams((0, "ta"), states=[ONE])))


def test_elements_that_wait_may_go_with_their_operator():
    held = snapshot(ONE, TWO)
    assert ids(match_program(held, program(), allow=["op"]).dropped) == [ONE, TWO]
