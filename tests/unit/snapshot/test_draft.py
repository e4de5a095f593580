"""A savepoint being put together, before anything is written."""

import pytest
from savepoint_support import state_schema

from turnback.checkpoint.manifest import OperatorInfo
from turnback.core.errors import ConfigurationError, PlanError, StateError
from turnback.snapshot.draft import SavepointDraft
from turnback.types.factory import Types


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
        ("xyz", "total", "there is 'count', 'top'"),
        ("count", "xyz", "there is 'seen', 'total'"),
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
    assert made.key_of("top") == {"types": ["long"], "columns": True}
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
    with pytest.raises(StateError, match="has a state 'seen' already"):
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


def test_a_uid_that_is_taken_or_not_there():
    made = draft()
    for taken in ("top", "out", "posts"):
        with pytest.raises(StateError, match=f"has an operator '{taken}' already"):
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
    with pytest.raises(ConfigurationError, match=r"no position of a source 'likes'.*'more'"):
        made.drop_sources(["likes"])
