"""A savepoint being put together, before anything is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from savepoint_support import state_schema

from turnback.checkpoint.manifest import OperatorInfo
from turnback.errors import ConfigurationError, PlanError, StateError
from turnback.snapshot.writer import SavepointDraft, view_names
from turnback.state.schema import KeySchema
from turnback.values.typeinfo import Types


def info(uid: str, kind: str = "keyed process") -> OperatorInfo:
    return OperatorInfo(uid, uid.title(), kind, 2)


def draft() -> SavepointDraft[str, str]:
    return SavepointDraft(
        "/sp",
        [
            (state_schema(uid="count", name="total"), "totals"),
            (state_schema("list", uid="count", name="seen"), "seen"),
            (state_schema(uid="top", name="best"), "best"),
        ],
        [info("likes", "source"), info("count"), info("top"), info("out", "sink")],
        {"likes#0": "p0", "likes#1": "p1", "posts": "p2"},
        {"count": 5, "likes": 7},
    )


def test_states_are_found_by_uid_and_name():
    schema, content = draft().find("count", "total")
    assert (schema.id, content) == (("count", "total"), "totals")


@pytest.mark.parametrize(
    ("uid", "name", "told"),
    [
        ("cuont", "total", "/sp has no state of an operator 'cuont'; did you mean 'count'?"),
        ("count", "totl", "'count' in /sp has no state 'totl'; did you mean 'total'?"),
        ("xyz", "total", "available: 'count', 'top'"),
        ("count", "xyz", "available: 'seen', 'total'"),
        ("likes", "total", "no state of an operator 'likes'"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest_name(uid, name, told):
    for use in (
        SavepointDraft.find,
        SavepointDraft.remove_state,
        lambda d, *id: SavepointDraft.rename_state(d, *id, "x"),
    ):
        with pytest.raises(StateError, match=told.replace("?", r"\?")):
            use(draft(), uid, name)


def test_adding_and_replacing():
    made = draft()
    made.put(state_schema(uid="count", name="total", value=Types.STRING()), "texts")
    made.put(state_schema(uid="new", name="total"), "more")
    assert made.find("count", "total")[0].value == "string"
    assert [content for _, content in made.states.values()] == ["texts", "seen", "best", "more"]


def test_all_states_of_an_operator_have_one_key():
    made = draft()
    other = (Types.LONG(),)
    with pytest.raises(StateError, match=r"'more' of operator 'count'.*'total' has.*or remove"):
        made.put(state_schema(uid="count", name="more", keys=other), "x")
    made.put(state_schema(uid="top", name="best", keys=other), "replaced: it is the only one")
    assert made.key_of("top") == KeySchema(("long",), True)
    assert made.key_of("nobody") is None


def test_removing():
    made = draft()
    made.remove_state("count", "seen")
    assert ("count", "seen") not in made.states
    made.remove_operator("count")
    assert list(made.states) == [("top", "best")]
    assert "count" not in made.operators
    assert made.watermarks == {"likes": 7}
    made.remove_operator("out")
    assert set(made.operators) == {"likes", "top"}
    with pytest.raises(StateError, match="'count'"):
        made.remove_operator("count")


def test_renaming_a_state():
    made = draft()
    made.rename_state("count", "total", "sum")
    assert made.find("count", "sum")[0].id == ("count", "sum")
    with pytest.raises(StateError, match="already has a state 'seen'"):
        made.rename_state("count", "sum", "seen")
    with pytest.raises(PlanError, match="must not be empty"):
        made.rename_state("count", "sum", " ")
    made.rename_state("count", "sum", "sum")


def test_an_operator_takes_all_it_has_to_its_new_uid():
    made = draft()
    made.change_uid("count", "counter")
    assert [schema.id for schema, _ in made.states.values()] == [
        ("counter", "total"),
        ("counter", "seen"),
        ("top", "best"),
    ]
    assert made.operators["counter"] == OperatorInfo("counter", "Count", "keyed process", 2)
    assert made.watermarks == {"counter": 5, "likes": 7}
    made.change_uid("likes", "clicks")
    assert made.sources == {"clicks#0": "p0", "clicks#1": "p1", "posts": "p2"}
    made.change_uid("posts", "articles")
    assert made.sources == {"clicks#0": "p0", "clicks#1": "p1", "articles": "p2"}


def test_watermarks_of_partitions_belong_to_their_strategy():
    marks = {"time": 5, "time#likes-0": 5, "time#likes-1": 9, "time#2": 3, "timeless#x": 1}
    made: SavepointDraft[str, str] = SavepointDraft(
        "/sp", operators=[info("time"), info("time#2")], watermarks=marks
    )
    made.change_uid("time", "by-time")
    others = {"time#2": 3, "timeless#x": 1}
    assert made.watermarks == {"by-time": 5, "by-time#likes-0": 5, "by-time#likes-1": 9, **others}
    made.remove_operator("by-time")
    assert made.watermarks == others


def test_a_uid_that_is_taken_or_not_there():
    made = draft()
    for taken in ("top", "out", "posts"):
        with pytest.raises(StateError, match=f"already has an operator '{taken}'"):
            made.change_uid("count", taken)
    with pytest.raises(StateError, match="did you mean 'likes'"):
        made.change_uid("lieks", "x")
    with pytest.raises(PlanError):
        made.change_uid("count", "")
    made.change_uid("count", "count")


def test_positions_of_sources():
    made = draft()
    made.add_sources({"posts": "new", "likes": "one"}, [info("posts"), info("likes")])
    assert made.sources == {"posts": "new", "likes": "one"}
    assert set(made.operators) == {"likes", "count", "top", "out", "posts"}
    made.add_sources({"more": "m"})
    made.drop_sources(["likes", "posts"])
    assert made.sources == {"more": "m"}
    with pytest.raises(ConfigurationError, match=r"no position of source 'likes'.*'more'"):
        made.drop_sources(["likes"])


# -- the names of states in SQL

NAMES = st.text(min_size=1, max_size=6)


def test_a_view_is_named_after_uid_and_state():
    assert view_names([("count", "total")]) == {("count", "total"): "count_total"}


def test_what_sql_does_not_take_becomes_an_underscore():
    ids = [("count likes/day", "n.total"), ("9 lives", "x"), ("_hidden", "x"), ("zähler", "ß")]
    assert view_names(ids) == {
        ("count likes/day", "n.total"): "count_likes_day_n_total",
        ("9 lives", "x"): "s_9_lives_x",
        ("_hidden", "x"): "s_hidden_x",
        ("zähler", "ß"): "z_hler__",
    }


def test_names_that_would_be_the_same_get_a_number():
    ids = [("a", "b_c"), ("a_b", "c"), ("A", "B_c")]
    assert view_names(ids) == {
        ("A", "B_c"): "A_B_c",
        ("a", "b_c"): "a_b_c_2",
        ("a_b", "c"): "a_b_c_3",
    }


@given(st.sets(st.tuples(NAMES, NAMES)), st.randoms())
def test_names_are_unique_plain_and_do_not_depend_on_the_order(ids, random):
    names = view_names(ids)
    assert names.keys() == ids
    assert len({name.lower() for name in names.values()}) == len(ids)
    assert all(name.isascii() and name.isidentifier() for name in names.values())
    shuffled = list(ids)
    random.shuffle(shuffled)
    assert view_names(shuffled) == names
