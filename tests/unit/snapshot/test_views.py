"""Names of states that SQL takes without quotes."""

from hypothesis import given
from hypothesis import strategies as st

from turnback.snapshot.draft import view_names

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
